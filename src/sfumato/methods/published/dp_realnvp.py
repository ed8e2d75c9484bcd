"""RealNVP on pixels without privacy, with batch normalisation as Dinh et al. train it, or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from sfumato.methods.base import Method
from sfumato.methods.dp_realnvp import PixelFlow
from sfumato.methods.published import RawRecords
from sfumato.networks.flows import BatchNormRealNVP
from sfumato.networks.pixels import Shape
from sfumato.privacy import Counts, Curator, SubsampledGaussian


@dataclass(frozen=True)
class DPRealNVPPublished(Method):
    """Maximum likelihood on pixels, without privacy (Dinh et al., 2017): what figure 6 of DP-LFlow starts from.

    Guarantee: none. It trains on the records themselves; batch normalisation mixes the records of a batch, so that no
    clip would bound what one of them contributes.

    Differs from the paper: linear layers on all pixels instead of convolutions.

    >>> from sfumato.privacy import NoGuarantee
    >>> DPRealNVPPublished().plan(NoGuarantee()).events
    ()
    """

    name: ClassVar[str] = "dp-realnvp-published"
    paper: ClassVar[str] = "Dinh, Sohl-Dickstein, Bengio: RealNVP (2017), as in DP-LFlow (TMLR 2023)"
    variants: ClassVar[Mapping[str, str]] = {
        "published": "without privacy, with batch normalisation: raw access, no guarantee"
    }
    raw_access: ClassVar[bool] = True

    batch_norm: bool = True
    iterations: int = 3000
    batch_size: int = 128
    couplings: int = 9
    hidden: int = 512
    learning_rate: float = 0.001
    temperature: float = 1.0

    @classmethod
    def small(cls, variant: str = "certified") -> Self:
        return cls(variant=variant, iterations=2, batch_size=8, couplings=2, hidden=4)

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        return ()

    def build(self, shape: Shape, classes: int) -> PixelFlow:
        model = PixelFlow(shape, couplings=self.couplings, hidden=self.hidden, labels=classes)
        if self.batch_norm:
            dimensions = model.flow.dimensions
            model.flow = BatchNormRealNVP(dimensions, couplings=self.couplings, hidden=self.hidden, labels=classes)
        return model

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Adam on batches of records."""
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        records = RawRecords(curator, "RealNVP is trained here on the records themselves, without noise")
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        iterations = self.iterations if len(records) else 0
        for _ in curator.track(range(iterations), "train", iterations):
            images, labels = records.take(torch.randint(len(records), (self.batch_size,)))
            dequantised = (255.0 * images + torch.rand_like(images)) / 256.0
            optimizer.zero_grad(set_to_none=True)
            (-model.log_density(dequantised, labels).mean() / model.flow.dimensions).backward()
            optimizer.step()
        return model, None

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        if not isinstance(model, PixelFlow):
            raise TypeError(f"a flow on pixels is needed, not {type(model).__name__}")
        return model.draw(labels, temperature=self.temperature)
