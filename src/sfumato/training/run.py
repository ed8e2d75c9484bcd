"""The product's act: train a method on private records within a plan, and leave a run's folder.

In the folder, ``release/`` may leave; ``internal/`` and the ledger may not.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from sfumato.files import private_folder, write_file, write_json
from sfumato.privacy import Counts, Curator, Ledger, Plan, PrivateRecords, Progress
from sfumato.privacy.distributed import World
from sfumato.privacy.interfaces import KeptKey, Tape
from sfumato.privacy.ledger import new_run_id
from sfumato.privacy.session import Session, check_limit, session
from sfumato.release.card import Card, make_card
from sfumato.release.release import Release, Sampler
from sfumato.release.signature import SigningKey
from sfumato.training.checkpoint import FolderCheckpoint
from sfumato.training.profiling import Cost

_FREE = 256 * 2**20
"""Bytes of the disk that have to be free before anything is spent."""


class Trainable(Sampler, Protocol):
    """What a training needs of a method: what it is called and how its networks are fitted on noisy answers."""

    paper: ClassVar[str]
    curator_type: ClassVar[type[Curator]]

    @classmethod
    def identifier(cls) -> str:
        """The name on cards and ledgers."""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        """Train on the Curator's answers; return the network, and the noisy class counts if it asked for them."""

    def claim(self) -> dict[str, Any] | None:
        """The ε that its authors claim for the same noise."""

    def published(self, release: Release) -> Release:
        """What may leave of what was trained, where that is not all."""

    def settings_remark(self) -> str:
        """A sentence for the card about where the settings come from."""


@dataclass(frozen=True)
class RunOptions:
    """How a plan is carried out, besides method, data and budget. Everything here is public.

    Attributes:
        device: The torch device; by default a GPU where there is one.
        max_images_per_unit: The largest number of images of one person that are used.
        progress: Receives the progress of every loop.
        seed: Makes the run repeatable, for tests. The noise can then be recomputed, so the card says ε = ∞.
        command: The command line, for the card.
        remarks: Sentences for the card, such as what to expect from the images.
        notes: What the custodian states on the card, such as purpose and contact.
        internal: Show the texts of exceptions that are raised on private records.
        ledger: The collection's ledger; by default a run's folder has its own.
        resume: Continue the run that was begun in the folder.
        facts: What a resumption must give again, besides method, parameters, budget and these options.
        files: Texts that are written into ``internal/`` when the run begins, by name.
        key: Signs the release.
        keep_key: Keep the key of the noise in ``internal/``, so that the custodian can compute the run again. Whoever
            has it can remove the noise.
    """

    device: str | torch.device | None = None
    max_images_per_unit: int = 16
    progress: Progress | None = None
    seed: int | None = None
    command: str | None = None
    remarks: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    internal: bool = False
    ledger: Path | None = None
    resume: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    key: SigningKey | None = None
    keep_key: bool = False


def train(
    method: Trainable,
    private: PrivateRecords,
    plan: Plan,
    ledger: Ledger | str | Path | None,
    options: RunOptions,
    *,
    checkpoint: FolderCheckpoint | None = None,
    tape: Tape | None = None,
    keep: Callable[[KeptKey], None] | None = None,
    noise_key: bytes | None = None,
) -> Release:
    """Carry out a method's plan on private records and return what may leave; no folder is written."""
    if not isinstance(private, PrivateRecords):
        raise TypeError(f"fit needs PrivateImages, not {type(private).__name__}")
    parameters = method.parameters()
    running = session(
        private,
        plan,
        ledger,
        method=method.identifier(),
        parameters=parameters,
        curator_type=method.curator_type,
        device=options.device,
        max_images_per_unit=options.max_images_per_unit,
        checkpoint=checkpoint,
        progress=options.progress,
        seed=options.seed,
        tape=tape,
        internal=options.internal,
        keep=keep,
        key=noise_key,
    )
    with running as run:
        tensors, counts = _trained(method, run)
        # Built anew from its parameters: nothing that the training left on the object crosses into the release.
        rebuilt = type(method).configured(parameters)
        if run.card is not None:
            card = Card.from_json(json.loads(run.card))
            release = rebuilt.published(Release(rebuilt, tensors, card))
            release.card = card  # whose hash is on the ledger
            return release
        card = make_card(
            method=method.identifier(),
            paper=method.paper,
            parameters=parameters,
            plan=run.plan,
            ledger=run.ledger,
            run=run.run,
            reasons=run.reasons(),
            shape=private.shape,
            classes=private.classes,
            counts=counts,
            declared_size=private.declared_size,
            max_images_per_unit=options.max_images_per_unit,
            device=str(run.curator.device),
            command=options.command,
            claim=method.claim(),
            remarks=(method.settings_remark(), *options.remarks),
            notes=options.notes,
        )
        release = rebuilt.published(Release(rebuilt, tensors, card)).bound()
        run.end(release.card.text, release.hashes(run.ledger))
    return release


def _trained(method: Trainable, run: Session) -> tuple[Mapping[str, Tensor], Sequence[float] | None]:
    """The trained tensors and noisy class counts, or those that a run kept before it was killed while it ended."""
    if run.result is not None:
        return run.result.tensors, run.result.counts
    with torch.random.fork_rng(), _tf32_products(run.curator.device):
        torch.manual_seed(run.public_seed)
        model, noisy = method.fit_networks(run.curator)
    tensors, counts = model.state_dict(), None if noisy is None else noisy.values.tolist()
    run.learnt(tensors, counts)
    return tensors, counts


@contextmanager
def _tf32_products(device: torch.device) -> Iterator[None]:
    """TF32 for matrix products on a GPU, as torch has it for convolutions; the engine's margins allow for both."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def train_run(
    folder: str | Path, method: Trainable, private: PrivateRecords, plan: Plan, options: RunOptions
) -> Release:
    """Train into ``folder``: the release, the ledger unless the collection has its own, and what stays internal.

    Where several processes train together the first one alone writes; all of them return the release.
    """
    run = Run(folder, ledger=options.ledger)
    facts = {
        "method": method.identifier(),
        "parameters": method.parameters(),
        "budget": plan.budget.to_json(),
        "ledger": str(run.ledger.resolve()),
        "seed": options.seed,
        "declared_size": private.declared_size,
        "max_images_per_unit": options.max_images_per_unit,
        **({"keep_key": True} if options.keep_key else {}),
        **options.facts,
    }
    keep = run.keep_key if options.keep_key else None
    return in_folder(
        run,
        private,
        facts,
        options,
        lambda: train(method, private, plan, run.ledger, options, checkpoint=run.checkpoint, keep=keep),
    )


def in_folder(
    run: Run, private: PrivateRecords, facts: Mapping[str, Any], options: RunOptions, learn: Callable[[], Release]
) -> Release:
    """Begin the run, let it ``learn``, and finish it; a run that fails before it has spent anything leaves nothing."""
    world = World.current()

    def begin() -> None:
        run.begin(facts, resume=options.resume)
        for name, text in options.files.items():
            write_file(run.internal / name, text, private=True)

    world.from_first(begin)
    cost = Cost(options.device or "cpu", resumed=options.resume)
    try:
        release = learn()
        if world.first:
            cost.keep(run.internal)
            run.finish(release, key=options.key)
    except Exception:
        if world.first:
            run.discard_if_unspent()
        raise
    return release


def release_folder(path: str | Path) -> Path:
    """The release of a run's folder; a release's own folder is returned as it is."""
    path = Path(path)
    if not (path / "release").is_dir():
        return path
    if (path / "card.json").exists():
        raise ValueError(f"{path} and the folder 'release' in it both hold a release; name the one that is meant")
    return path / "release"


class Run:
    """Begins, resumes and finishes a run in ``folder``. The ledger is the run's own unless the collection has one."""

    def __init__(self, folder: str | Path, *, ledger: str | Path | None = None) -> None:
        self.folder = Path(folder)
        self.release = self.folder / "release"
        self.internal = self.folder / "internal"
        self.hold_out = self.internal / "hold_out.json"
        self._settings = self.internal / "run.json"
        self._keys = self.internal / "keys.json"
        self._created: bool | None = None
        self.ledger = Path(ledger) if ledger is not None else self.folder / "ledger.jsonl"
        self.checkpoint = FolderCheckpoint(self.internal / "checkpoint")

    def check(self, *, resume: bool, plan: Plan | None = None) -> None:
        """Refuse a folder that cannot hold this run, and a plan that does not fit its ledger; nothing is written."""
        if self.release.exists():
            raise FileExistsError(f"{self.folder} holds a finished run; choose another --out")
        if self.folder.exists() and not self.folder.is_dir():
            raise FileExistsError(f"{self.folder} is a file; choose another --out")
        if resume:
            if not self._settings.exists():
                raise FileNotFoundError(f"{self.folder} holds no run to resume")
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise FileExistsError(f"{self.folder} is not empty; choose another --out, or --resume a stopped run")
        place = next(one for one in (self.folder, *self.folder.absolute().parents) if one.exists())
        if shutil.disk_usage(place).free < _FREE:
            # An answer that cannot be kept is paid for all the same.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
        if plan is not None and self.ledger.exists():
            ledger = Ledger.read(self.ledger)
            check_limit(ledger, plan)
            ledger.reserve(new_run_id(), plan.events)

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._settings.read_text())
        return found

    def begin(self, facts: Mapping[str, Any], *, resume: bool) -> None:
        """Start with these public facts, or continue a run that was begun with the same."""
        self.check(resume=resume)
        written = json.loads(json.dumps(facts))
        if resume:
            before = self.facts()
            changed = sorted(key for key in {*before, *written} if before.get(key) != written.get(key))
            if changed:
                raise ValueError(f"the run was begun with another {', '.join(changed)}; resume with the same command")
            for torn in self.folder.glob(".release-*"):
                shutil.rmtree(torn)  # left by a crash while the release was written
            return
        self._created = not self.folder.exists()
        private_folder(self.internal)
        write_json(self._settings, written, private=True)

    def keep_key(self, kept: KeptKey) -> None:
        """Write the key of a beginning or resumption down, readable by the owner alone."""
        write_json(self._keys, [*map(asdict, self.kept_keys()), asdict(kept)], private=True)

    def kept_keys(self) -> list[KeptKey]:
        return [KeptKey(**one) for one in json.loads(self._keys.read_text())] if self._keys.exists() else []

    def discard_if_unspent(self) -> None:
        """After an error: remove the files of a run that was begun here and has spent nothing."""
        if self._created is None or self._has_spent():
            return
        shutil.rmtree(self.internal, ignore_errors=True)
        if self.ledger.parent == self.folder:
            for path in self.folder.glob(f"{self.ledger.name}*"):
                path.unlink()
        if self._created:
            self.folder.rmdir()

    def _has_spent(self) -> bool:
        if self.ledger.parent == self.folder:
            return self.ledger.exists() and bool(Ledger.read(self.ledger).events())
        started = self.checkpoint.started
        return started is not None and self.ledger.exists() and bool(Ledger.read(self.ledger).events(started.run))

    def finish(self, release: Release, *, key: SigningKey | None = None) -> None:
        """Write the release, signed if there is a key; then what was kept for a resumption is no longer needed."""
        release.save(self.release, key=key)
        self.checkpoint.delete()
