"""What every method is: public parameters, a list of questions, networks fitted on the answers, a sampler."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

import torch
from torch import Tensor, nn

from sfumato.methods.first_edition import renamed_parameters
from sfumato.privacy import (
    AnyBudget,
    Counts,
    Curator,
    Ledger,
    Plan,
    PrivateRecords,
    Progress,
    SubsampledGaussian,
)
from sfumato.privacy.interfaces import Tape
from sfumato.privacy.session import session
from sfumato.release.card import make_card
from sfumato.release.release import Release
from sfumato.training.checkpoint import FolderCheckpoint

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Method(ABC):
    """A way to learn a generator from noisy answers. Fields are public; private data enters ``fit`` alone.

    A subclass says what it will ask (``spending``), what it releases (``build``), how it learns (``fit_networks``)
    and how it draws (``generate``). The guarantee is none of its business: it follows from the ledger.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    variants: ClassVar[Mapping[str, str]] = {"certified": "the certified form"}
    """Variant → one line about it. The first is what ``certified`` means."""
    raw_variants: ClassVar[frozenset[str]] = frozenset()
    """Variants that need the raw records, as published, and so run under ``NoGuarantee`` alone."""
    curator_type: ClassVar[type[Curator]] = Curator

    variant: str = "certified"

    def __post_init__(self) -> None:
        if self.variant == "certified":
            object.__setattr__(self, "variant", next(iter(self.variants)))
        if self.variant not in self.variants:
            raise ValueError(f"{self.name} has no variant {self.variant!r}; it has {', '.join(self.variants)}")

    # What a method's author writes

    @classmethod
    @abstractmethod
    def small(cls, variant: str = "certified") -> Self:
        """A configuration that trains in about a second on a handful of tiny images, for tests and audits."""

    @abstractmethod
    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Every question it will ask, with noise in proportion; calibration scales it to the budget."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """The network that is released, with fresh random weights. Its state is the list of what may leave."""

    @abstractmethod
    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Learn from the Curator's answers: the network to release, and noisy class counts if it asked for them."""

    @abstractmethod
    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """One image in 0..1 for each label, with torch's global generator, which is public here."""

    def claim(self) -> dict[str, Any] | None:
        """An ε that its authors claim for the very noise it draws, ``epsilon``, ``delta`` and ``by``; shown struck."""
        return None

    # What follows from it

    @classmethod
    def certified_variants(cls) -> tuple[str, ...]:
        """All that ask a Curator only."""
        return tuple(variant for variant in cls.variants if variant not in cls.raw_variants)

    def parameters(self) -> dict[str, Any]:
        """The public hyper-parameters, variant first."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def plan(self, budget: AnyBudget) -> Plan:
        """What a run will spend under this budget. Touches no data."""
        return Plan.calibrated(self.queries(), budget)

    def fit(
        self,
        private: PrivateRecords,
        budget: AnyBudget,
        ledger: Ledger | str | Path | None = None,
        *,
        device: str | torch.device | None = None,
        max_images_per_unit: int = 16,
        checkpoint: FolderCheckpoint | None = None,
        progress: Progress | None = None,
        command: str | None = None,
        seed: int | None = None,
        tape: Tape | None = None,
        internal: bool = False,
    ) -> Release:
        """Learn from ``private`` within ``budget`` and return what may leave.

        ``ledger`` is where the spending is written; without one it lives in memory and only the card remembers it.
        A ``seed`` makes the run repeatable, for tests: its noise can be recomputed, so its card says ε = ∞.
        ``internal`` shows the texts of exceptions that are raised on private records.
        """
        if not isinstance(private, PrivateRecords):
            raise TypeError(f"fit needs PrivateImages, not {type(private).__name__}")
        parameters = self.parameters()
        running = session(
            private,
            self.plan(budget),
            ledger,
            method=self.name,
            parameters=parameters,
            curator_type=self.curator_type,
            device=device,
            max_images_per_unit=max_images_per_unit,
            checkpoint=checkpoint,
            progress=progress,
            seed=seed,
            tape=tape,
            internal=internal,
        )
        with running as run:
            with torch.random.fork_rng(), _quick_products(run.curator.device):
                torch.manual_seed(run.public_seed)
                model, counts = self.fit_networks(run.curator)
            run.end()
            card = make_card(
                method=self.name,
                paper=self.paper,
                parameters=parameters,
                plan=run.plan,
                ledger=run.ledger,
                run=run.run,
                reasons=run.reasons(),
                shape=private.shape,
                classes=private.classes,
                counts=None if counts is None else counts.values.tolist(),
                declared_size=private.declared_size,
                max_images_per_unit=max_images_per_unit,
                device=str(run.curator.device),
                command=command,
                claim=self.claim(),
            )
        # Built anew from its parameters: nothing that the training left on the object crosses into the release.
        return Release(type(self)(**parameters), model.state_dict(), card)

    @classmethod
    def configured(cls, settings: Mapping[str, Any]) -> Self:
        """From ``key = value`` settings, as a command line or TOML file gives them; an unknown key is an error."""
        hints = {field.name: get_type_hints(cls)[field.name] for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in settings.items():
            if key not in hints:
                raise ValueError(f"{cls.name} has no parameter {key!r}; {_nearest(cls.name, key, hints)}")
            values[key] = _convert(key, value, hints[key])
        return cls(**values)


def _nearest(method: str, key: str, known: Collection[str]) -> str:
    """What an unknown parameter is called now, or the known parameter that is spelled most like it."""
    present = renamed_parameters(method).get(key)
    if present in known:
        return f"it is called {present!r} now"
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"


@contextmanager
def _quick_products(device: torch.device) -> Iterator[None]:
    """TF32 for matrix products on a GPU, as torch has it for convolutions; the engine's clip leaves room for both."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _convert(key: str, value: Any, kind: Any) -> Any:
    """A setting as the field's type; text from a command line is read, anything that does not fit is refused."""
    try:
        if kind is bool:
            if isinstance(value, bool):
                return value
            return {"true": True, "false": False}[str(value).lower()]
        if kind is int and not isinstance(value, bool):
            number = float(value)
            if number == int(number):
                return int(number)
        elif kind is float and not isinstance(value, bool):
            return float(value)
        elif kind is str and isinstance(value, str):
            return value
    except (KeyError, ValueError, TypeError, OverflowError):
        pass
    raise ValueError(f"parameter {key!r} must be {getattr(kind, '__name__', kind)}, not {value!r}")
