"""The base class of all methods: public parameters, a list of queries, networks fitted on the answers, a sampler."""

from __future__ import annotations

import difflib
import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

import torch
from torch import Tensor, nn

from sfumato.networks.pixels import Shape as Shape
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
from sfumato.release.release import Release
from sfumato.training.checkpoint import FolderCheckpoint
from sfumato.training.run import RunOptions, train

Network = TypeVar("Network", bound=nn.Module)
_CHOSEN_ON: Mapping[str, str] = {
    "dp-diffusion": "drawn digits",
    "dp-lflow": "MNIST and Fashion-MNIST",
    "dp-merf": "MNIST and Fashion-MNIST",
    "dp-mixture": "parts of the training images of MNIST and Fashion-MNIST",
    "dp2-vae": "MNIST",
    "dppm": "MNIST and Fashion-MNIST",
    "gs-wgan": "MNIST",
}


def settings_remark(name: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """One sentence: defaults, and the public data they were chosen on, or which settings were given.

    >>> settings_remark("dp2-vae", {"steps": 3}, {"steps": 3})
    'All settings are defaults, which were chosen on MNIST, a public data set.'
    """
    given = [key for key, value in parameters.items() if value != defaults.get(key)]
    if given:
        return (
            f"These settings were given by the custodian: {', '.join(given)}. Choosing them by looking at the "
            "collection, other than by 'sfumato tune', is not covered by the guarantee."
        )
    sets = _CHOSEN_ON.get(name)
    if sets is None:
        return "All settings are defaults; they were not chosen on this collection."
    kind = "public data sets" if " and " in sets else "a public data set"
    return f"All settings are defaults, which were chosen on {sets}, {kind}."


def tuned_remark(candidates: int) -> str:
    """What the card says about settings that were chosen by private selection."""
    return (
        f"The settings were chosen on this collection among {candidates} candidates by private selection; the choice "
        "is part of the spending."
    )


class UnknownSetting(TypeError, ValueError):
    """A setting that the method does not have: a wrong call in Python, a wrong value on the command line."""


@dataclass(frozen=True)
class Method(ABC):
    """A method that learns a generator from noisy answers about private records.

    The fields of the dataclass are its hyper-parameters; they are public. Private data enters ``fit`` only. A subclass
    lists its queries (``queries``), builds the network that is released (``build``), trains it on the answers
    (``fit_networks``) and draws images (``generate``). The guarantee follows from the ledger and is never stated by
    the method.
    """

    name: ClassVar[str]
    """The name in the registry."""
    paper: ClassVar[str]
    """Authors, title and year of the paper."""
    variants: ClassVar[Mapping[str, str]] = {"certified": "the certified form"}
    """The variants of the same algorithm, each with one line about it. ``certified`` means the first."""
    raw_access: ClassVar[bool] = False
    """Whether it needs the raw records, and so runs under ``NoGuarantee`` only."""
    curator_type: ClassVar[type[Curator]] = Curator
    paper_settings: ClassVar[Mapping[str, Any] | None] = None
    """The settings of its paper, variant included, as far as they are known; ``--preset paper`` starts from them."""

    variant: str = "certified"

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Refuse unknown settings here, where the nearest known one can be named."""
        for key in settings:
            cls._check_known(key)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if self.variant == "certified":
            object.__setattr__(self, "variant", next(iter(self.variants)))
        if self.variant not in self.variants:
            raise ValueError(f"{self.name} has no variant {self.variant!r}; it has {', '.join(self.variants)}")

    # What the author of a method writes

    @classmethod
    @abstractmethod
    def small(cls, variant: str = "certified") -> Self:
        """The smallest configuration, which trains in about a second on a few images, for tests and audits."""

    @abstractmethod
    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """Every query that it will make, with relative noise multipliers; calibration scales them to the budget."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """The network that is released, with random weights. Its state lists the tensors that may leave."""

    @abstractmethod
    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Train on the Curator's answers; return the network, and the noisy class counts if it asked for them."""

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """One image in 0..1 for each label, with torch's global generator, which is public here.

        By default the network draws them from the labels.
        """
        images: Tensor = model(labels)
        return images

    def claim(self) -> dict[str, Any] | None:
        """The ε that its authors claim for the same noise: ``epsilon``, ``delta`` and ``by``. Pages strike it out."""
        return None

    # What follows from it

    @classmethod
    def identifier(cls) -> str:
        """The name on cards and ledgers: the registered name, or ``module:Class`` for a class of the user's own."""
        return cls.name if cls.__module__.startswith("sfumato.") else f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def certified_variants(cls) -> tuple[str, ...]:
        """The variants that need no raw access."""
        return () if cls.raw_access else tuple(cls.variants)

    def parameters(self) -> dict[str, Any]:
        """The public hyper-parameters, variant first."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def plan(self, budget: AnyBudget) -> Plan:
        """What a run will spend under this budget. It touches no data."""
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
        remarks: Sequence[str] = (),
        notes: Mapping[str, str] | None = None,
    ) -> Release:
        """Train on private records within a budget and return what may leave.

        Args:
            private: The private records.
            budget: The ε and δ to spend, or ``NoGuarantee()``.
            ledger: Where the spending is recorded; without one it is kept in memory and on the card only.
            device: The torch device; a GPU where there is one.
            max_images_per_unit: The largest number of images of one person that are used.
            checkpoint: Where an interrupted training can be resumed from.
            progress: Receives the progress of every loop.
            command: The command line, for the card.
            seed: Makes the run repeatable, for tests. The noise can then be recomputed, so the card says ε = ∞.
            tape: Records the queries of an audit.
            internal: Show the texts of exceptions that are raised on private records.
            remarks: Public sentences for the card, such as what to expect from the images.
            notes: What the custodian states on the card, such as purpose and contact.
        """
        options = RunOptions(
            device=device,
            max_images_per_unit=max_images_per_unit,
            progress=progress,
            command=command,
            seed=seed,
            internal=internal,
            remarks=tuple(remarks),
            notes=notes or {},
        )
        return train(self, private, self.plan(budget), ledger, options, checkpoint=checkpoint, tape=tape)

    def published(self, release: Release) -> Release:
        """What may leave of what was trained, where that is not all."""
        return release

    def settings_remark(self) -> str:
        """A sentence for the card: whether these are the default settings, and on what those were chosen."""
        defaults = type(self)(variant=self.variant).parameters()
        return settings_remark(self.name, self.parameters(), defaults)

    @classmethod
    def as_in_the_paper(cls, **changes: Any) -> Self:
        """The settings of its paper, as far as they are known, with these changes."""
        return cls.configured({**cls.preset("paper"), **changes})

    @classmethod
    def preset(cls, name: str) -> Mapping[str, Any]:
        """The settings of a preset; the only one is ``paper``."""
        if name != "paper":
            raise ValueError(f"there is no preset {name!r}; the only one is 'paper'")
        if cls.paper_settings is None:
            raise ValueError(f"{cls.name} has no preset 'paper': its defaults are the only settings that are known")
        return cls.paper_settings

    @classmethod
    def _check_known(cls, key: str) -> None:
        known = [field.name for field in fields(cls)]
        if key not in known:
            raise UnknownSetting(f"{cls.name} has no parameter {key!r}; {_nearest(key, known)}")

    @classmethod
    def configured(cls, settings: Mapping[str, Any]) -> Self:
        """A method from settings as a command line or a TOML file gives them; an unknown key is an error."""
        hints = _field_types(cls)
        values: dict[str, Any] = {}
        for key, value in settings.items():
            cls._check_known(key)
            values[key] = _convert(key, value, hints[key])
        return cls(**values)


def expected(model: nn.Module, kind: type[Network]) -> Network:
    """The network, which must be of this kind."""
    if not isinstance(model, kind):
        raise TypeError(f"a {kind.__name__} is needed, not {type(model).__name__}")
    return model


def check_ema_decay(decay: float) -> None:
    """Refuse a decay outside [0, 1)."""
    if not 0 <= decay < 1:
        raise ValueError(f"ema_decay must lie in [0, 1), not {decay:g}; 0 releases the last weights")


def check_choices(method: Method, choices: Mapping[str, Collection[str]]) -> None:
    """Refuse a field whose value is not one of its choices."""
    for field, allowed in choices.items():
        value = getattr(method, field)
        if value not in allowed:
            raise ValueError(f"{field} must be one of {', '.join(allowed)}, not {value!r}")


def _nearest(key: str, known: Collection[str]) -> str:
    """The known parameter that is spelled most like ``key``, or all of them."""
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"


@functools.cache
def _field_types(method: type[Method]) -> dict[str, Any]:
    """The resolved type of every field; resolving annotations is slow."""
    hints = get_type_hints(method)
    return {field.name: hints[field.name] for field in fields(method)}


def _convert(key: str, value: Any, kind: Any) -> Any:
    """A setting as the field's type; text is parsed, and a value that does not fit is refused."""
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
