"""The published protocols for synthetic images. Values of different protocols never share a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sfumato.evaluation.classifiers import (
    CNN,
    LOGISTIC_REGRESSION,
    MLP,
    ClassifierSpec,
    pooled_cnn,
    small_pooled_cnn,
)
from sfumato.evaluation.results import ProtocolSummary


@dataclass(frozen=True)
class Protocol:
    """Classifiers, the real set of the distances, and how many synthetic images its papers use.

    Attributes:
        reference: The real split that FID is computed against.
        agreement_classifier: The classifier that, trained on real data, measures label agreement.
        selection: How the epoch is picked.
    """

    name: str
    papers: str
    synthetic_count: int
    reference: Literal["train", "test"]
    classifiers: tuple[ClassifierSpec, ...]
    agreement_classifier: str
    selection: str

    def summary(self) -> ProtocolSummary:
        trained = any(spec.network is not None for spec in self.classifiers)
        return ProtocolSummary(
            name=self.name,
            papers=self.papers,
            synthetic_count_in_the_papers=self.synthetic_count,
            fid_against=f"real {self.reference}",
            classifiers=tuple(spec.name for spec in self.classifiers),
            selection=self.selection,
            input="pixels / 255",
            optimiser="Adam, learning rate 0.001; cross-entropy" if trained else "scikit-learn defaults",
        )


_LAST = "last epoch"

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "sinkhorn",
            "DP-Sinkhorn, DP²-VAE, DP-LFlow",
            60_000,
            "test",
            (LOGISTIC_REGRESSION, MLP, CNN),
            "CNN",
            _LAST,
        ),
        Protocol(
            "dppm",
            "DPPM, DataLens, DPAF",
            10_000,
            "train",
            (ClassifierSpec("CNN", pooled_cnn, epochs=20),),
            "CNN",
            _LAST,
        ),
        Protocol(
            "dpdm",
            "DPDM",
            60_000,
            "train",
            (ClassifierSpec("CNN", small_pooled_cnn, epochs=50, held_out=0.1),),
            "CNN",
            "best epoch on 10 % held out of the images trained on",
        ),
    )
}


def protocol_named(name: str) -> Protocol:
    """The protocol of that name; the error lists them all."""
    if name not in PROTOCOLS:
        raise ValueError(f"there is no protocol {name!r}; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
