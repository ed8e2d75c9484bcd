"""Images from the checkpoint of a training that has not ended, for the custodian alone.

The method's own code runs once more, with a Curator that has no records, no ledger and no noise. It makes no step: it
hands out the answers and the networks that the checkpoint holds, all of them computed from noisy answers. So a preview
touches no private data and costs no privacy. What records remember (their private state) is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sfumato.methods.base import Method
from sfumato.networks.pixels import Shape
from sfumato.privacy import Curator, NoGuarantee, Plan, PrivateState
from sfumato.privacy.curator import Item
from sfumato.privacy.interfaces import PublicInput
from sfumato.privacy.step import Step
from sfumato.training.checkpoint import FolderCheckpoint

CLASSES_AT_MOST = 10
_IMAGES = 40


class NoPreview(ValueError):
    """There is nothing yet from which images can be drawn; the text says why."""


@dataclass(frozen=True)
class Preview:
    """Images ``uint8 [rows · columns, C, H, W]``, a row for each of the first classes, and the training's progress.

    ``part`` is the part of the training that was saved last; ``done`` of its ``total`` steps are in the images.
    """

    images: np.ndarray
    classes: tuple[str, ...]
    columns: int
    part: str
    done: int
    total: int


def preview(method: Method, checkpoint: FolderCheckpoint) -> Preview:
    """Images as the training in ``checkpoint`` would release them if it ended now. It runs on the CPU."""
    described = checkpoint.described()
    if described is None:
        raise NoPreview("there is no training under way in this folder")
    if method.raw_access:
        raise NoPreview(f"{method.name} keeps no checkpoint; its first images are those of the release")
    shape, classes = described
    method = type(method).configured({**method.parameters(), **method.preview_settings})
    curator = CheckpointCurator(checkpoint, method.plan(NoGuarantee()), shape=shape, classes=classes)
    shown = classes[:CLASSES_AT_MOST]
    columns = max(4, min(8, _IMAGES // len(shown)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same codes in every preview, so that two of them can be compared
        trained, _ = method.fit_networks(curator)
        part, done, total = curator.last()
        # As in a release: a new network, and nothing but the tensors that it lists.
        model = method.build(shape, len(classes))
        model.load_state_dict(trained.state_dict())
        model.eval().requires_grad_(False)
        with torch.no_grad():
            drawn = method.generate(model, torch.arange(len(shown)).repeat_interleave(columns))
    images = (torch.nan_to_num(drawn).clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return Preview(images, shown, columns, part, done, total)


class CheckpointCurator(Curator):
    """Answers from a checkpoint alone. It is not initialised as a Curator: it has no data, ledger or noise to use."""

    def __init__(self, checkpoint: FolderCheckpoint, plan: Plan, *, shape: Shape, classes: tuple[str, ...]) -> None:
        self.shape, self.classes, self.plan, self.device = shape, classes, plan, torch.device("cpu")
        self._folder = checkpoint
        self._restored: list[tuple[str, int, int]] = []

    def last(self) -> tuple[str, int, int]:
        """The last part of the training that the checkpoint holds, its steps, and how many there will be."""
        if not self._restored:
            raise NoPreview("the training has not come to the part that makes images")
        return self._restored[-1]

    def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
        """No step; what is kept comes from the checkpoint."""
        if keep and not self._restore(name, keep, self.plan.event(name).steps):
            raise NoPreview(f"the training has not come to the part {name!r} yet, or has not saved it")
        yield from ()

    def _single(self, name: str, ask: Callable[[Step, str], Tensor]) -> Tensor:
        stored = self._folder.answer(name)
        if stored is None:
            raise NoPreview(f"the training has not come to the part {name!r} yet")
        return stored.to(torch.get_default_dtype())

    def private_state(
        self, name: str, shape: tuple[int, ...], *, fill: float = 0.0, shards: int | None = None
    ) -> PrivateState:
        """State of no record at all."""
        return PrivateState(name, 0, shape, fill, self.device, shards=shards)

    def track(
        self, items: Iterable[Item], name: str, total: int, *, keep: Mapping[str, Any] | None = None
    ) -> Iterator[Item]:
        """No item; what is kept comes from the checkpoint if this part has begun."""
        if keep:
            self._restore(name, keep, total)
        yield from ()

    def treat_as_public(self, public: PublicInput) -> None:
        """Nothing is learnt from it here."""

    def _restore(self, name: str, keep: Mapping[str, Any], total: int) -> bool:
        done = self._folder.restore(name, keep, ())
        if done:
            self._restored.append((name, done, total))
        return done > 0
