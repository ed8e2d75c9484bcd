"""A run is one object on the ledger: resumed there or refused, and certified only if all of it is charged there."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dp_realnvp import DPRealNVP
from sfumato.privacy import Budget, BudgetExceeded, Curator, Ledger, LedgerBusy, NoGuarantee, Plan, RunRefused, Step
from sfumato.privacy.gradients.terms import Grouped
from sfumato.privacy.interfaces import PublicInput
from sfumato.privacy.mechanism import Query, add_noise
from sfumato.privacy.step import PrivateRowsError
from sfumato.release.release import Release
from sfumato.training.checkpoint import FolderCheckpoint
from sfumato.training.checkpoint import _read as read_saved
from worst_case import worst_case_images

BUDGET = Budget(3.0, 1e-5)
METHOD = replace(DPRealNVP.small(), steps=6)


class Killed(BaseException):
    """Stands for the end of the process."""


class KillAfter:
    """A progress display that ends the run after some steps of an event."""

    def __init__(self, steps: int, event: str | None = None) -> None:
        self.steps, self.event = steps, event

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
        if epsilon is not None and done >= self.steps and self.event in (None, name):
            raise Killed


def fit(method: Any, ledger: Any, checkpoint: FolderCheckpoint | None = None, **options: Any) -> Release:
    return method.fit(worst_case_images(), BUDGET, ledger, checkpoint=checkpoint, device="cpu", **options)


@pytest.fixture
def killed(tmp_path: Path) -> tuple[Path, FolderCheckpoint]:
    """A run that was killed after three of six steps, with its ledger and checkpoint."""
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(3, "training"))
    return ledger, checkpoint


def test_a_killed_run_goes_on_with_its_ledger_and_is_charged_whole(killed: tuple[Path, FolderCheckpoint]) -> None:
    ledger, checkpoint = killed
    release = fit(METHOD, ledger, checkpoint)
    assert release.card.certified and release.card.epsilon == pytest.approx(3.0, rel=0.02)
    read = Ledger.read(ledger)
    assert len(read.runs()) == 1 and read.ended(release.card.run)
    assert read.charged_steps(release.card.run, "training") == 6
    entry = read.run_entry(release.card.run)
    assert len(entry["run"]) == 32 and not entry["seeded"] and entry["device"] == "cpu"
    assert entry["parameters"] == json.loads(json.dumps(METHOD.parameters()))
    assert [event["name"] for event in entry["plan"]["events"]] == [e.name for e in METHOD.plan(BUDGET).events]


@pytest.mark.parametrize("which", ["another", "none", "lost", "swapped"])
def test_a_run_is_not_resumed_with_another_ledger(
    killed: tuple[Path, FolderCheckpoint], tmp_path: Path, which: str
) -> None:
    ledger, checkpoint = killed
    if which == "lost":
        ledger.unlink()
        Path(f"{ledger}.head").unlink()
    if which == "swapped":
        fit(DPMERF.small(), tmp_path / "other")
    given = {"another": tmp_path / "other", "none": None, "lost": ledger, "swapped": tmp_path / "other"}[which]
    with pytest.raises(RunRefused, match="start a new run"):
        fit(METHOD, given, checkpoint)


def test_a_run_is_not_resumed_with_an_older_copy_of_its_ledger(tmp_path: Path) -> None:
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(2, "training"))
    for suffix in ("", ".head"):
        shutil.copy(f"{ledger}{suffix}", tmp_path / f"copy{suffix}")
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(4, "training"))
    with pytest.raises(RunRefused, match="older copy"):
        fit(METHOD, tmp_path / "copy", checkpoint)


def test_a_run_is_not_resumed_with_a_shortened_ledger(killed: tuple[Path, FolderCheckpoint]) -> None:
    """Cut back to the state before the run, head and all."""
    ledger, checkpoint = killed
    lines = ledger.read_text().splitlines()
    ledger.write_text(lines[0] + "\n")
    Path(f"{ledger}.head").write_text(json.dumps({"length": 1, "hash": json.loads(lines[0])["hash"]}))
    with pytest.raises(RunRefused, match="lost entries"):
        fit(METHOD, ledger, checkpoint)


def test_a_finished_run_is_not_run_again_from_its_checkpoint(tmp_path: Path) -> None:
    """Without its ledger it is refused; with it, the same release is made again and nothing is asked."""
    checkpoint = FolderCheckpoint(tmp_path / "in memory")
    assert fit(DPMERF.small(), None, checkpoint).card.certified
    with pytest.raises(RunRefused, match="start a new run"):
        fit(DPMERF.small(), None, checkpoint)
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint")
    first = fit(DPMERF.small(), ledger, checkpoint)
    entries = ledger.read_bytes()
    again = fit(DPMERF.small(), ledger, checkpoint)
    assert ledger.read_bytes() == entries and replace(again.card, made="") == replace(first.card, made="")
    tensors = zip(first.model.state_dict().values(), again.model.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in tensors)
    next(checkpoint.folder.glob("result *")).unlink()
    with pytest.raises(RunRefused, match="has made its release; start a new run"):
        fit(DPMERF.small(), ledger, checkpoint)


def test_a_run_goes_on_with_its_own_parameters_only(killed: tuple[Path, FolderCheckpoint]) -> None:
    ledger, checkpoint = killed
    entries = ledger.read_bytes()
    for other in (replace(METHOD, learning_rate=1.0), DPMERF.small()):
        with pytest.raises(RunRefused, match="parameters"):
            fit(other, ledger, checkpoint, seed=5)
    assert ledger.read_bytes() == entries, "a refused run leaves no trace, not even its seed"


@pytest.mark.parametrize("seeds", [(5, None), (None, 5)])
def test_once_seeded_never_certified(tmp_path: Path, seeds: tuple[int | None, int | None]) -> None:
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(3, "training"), seed=seeds[0])
    release = fit(METHOD, ledger, checkpoint, seed=seeds[1])
    assert not release.card.certified and any("seed" in reason for reason in release.card.reasons)
    assert Ledger.read(ledger).seeded(release.card.run)


def test_no_card_is_made_for_an_answer_that_was_not_charged(tmp_path: Path) -> None:
    """A checkpoint that holds an answer its ledger does not know."""
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(1, "training"))
    (saved,) = (tmp_path / "checkpoint").glob("steps training*")
    tensors, structure = read_saved(saved)
    checkpoint._write(saved, tensors, {**structure, "done": 5})
    with pytest.raises(RunRefused, match="5 answers of 'training' are in use and 1 "):
        fit(METHOD, ledger, checkpoint)


def test_a_link_to_a_ledger_is_the_ledger(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    with Ledger(tmp_path / "ledger", BUDGET), pytest.raises(LedgerBusy):
        Ledger(tmp_path / "link", BUDGET)
    with Ledger(tmp_path / "link", BUDGET) as ledger:
        ledger.start_run(method="m", variant="v", seeded=False)
    assert len(Ledger.read(tmp_path / "ledger").runs()) == 1
    assert not (tmp_path / "link.head").exists()


def test_every_ledger_and_every_run_has_an_id_of_its_own(tmp_path: Path) -> None:
    ledgers = [Ledger(None, BUDGET) for _ in range(2)]
    runs = [ledgers[0].start_run(method="m", variant="v", seeded=False) for _ in range(2)]
    assert len({ledger.id for ledger in ledgers} | set(runs)) == 4
    assert all(len(one) == 32 for one in (*runs, ledgers[0].id))


# Only the project's own Curator, Step and terms certify


class QuietCurator(Curator):
    """Draws a millionth of the noise."""

    def _release(self, query: Query) -> Tensor:
        sums = tuple(replace(one, standard_deviation=one.standard_deviation * 1e-6) for one in query.sums)
        return add_noise(replace(query, sums=sums), self._randomness)


class OwnStep(Step):
    """Does nothing else than the project's own."""


class OwnStepCurator(Curator):
    step_type = OwnStep


class Quiet(DPMERF):
    curator_type: ClassVar[type[Curator]] = QuietCurator


class Stepping(DPMERF):
    curator_type: ClassVar[type[Curator]] = OwnStepCurator


@dataclass(frozen=True)
class Smaller(Grouped):
    """A made-up bound."""

    @property
    def bound(self) -> float:
        return 1e-6


class OwnTerms(DPRealNVP):
    def fit_networks(self, curator: Curator) -> tuple[nn.Module, None]:
        model = self.build(curator.shape, len(curator.classes))
        for step in curator.steps("training"):

            def shared(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
                return sum(parameter.sum() for parameter in model.parameters())  # type: ignore[return-value]

            terms = Smaller(None, shared, groups=2, clip_norms=(0.0, 1.0), batch=8.0)
            step.noisy_terms(self.queries()[-1].blocks[0].name, model, terms)
        return model, None


@pytest.mark.parametrize(("method", "named"), [(Quiet, "QuietCurator"), (Stepping, "OwnStep"), (OwnTerms, "Smaller")])
def test_an_authors_own_mechanism_is_not_certified(method: Any, named: str) -> None:
    card = fit(method.small(), None).card
    assert not card.certified and card.epsilon is None
    assert any(named in reason for reason in card.reasons)


def test_the_release_does_not_keep_the_object_that_saw_the_data() -> None:
    class Stashing(DPMERF):
        def fit_networks(self, curator: Curator) -> Any:
            object.__setattr__(self, "stash", curator._records._pixels.copy())
            return super().fit_networks(curator)

    method = Stashing.small()
    release = fit(method, None)
    assert hasattr(method, "stash") and not hasattr(release.method, "stash")


# Smaller matters


@pytest.mark.parametrize("internal", [False, True])
def test_the_text_of_an_exception_on_private_rows_is_withheld(internal: bool) -> None:
    class Telling(DPRealNVP):
        def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
            # In range for random images, which are at most 1; torch's message names the index.
            brightness = images.new_zeros(2)[images.amax((1, 2, 3)).long()]
            return super().loss(model, images, labels, random) + brightness  # type: ignore[arg-type]

    private = worst_case_images()
    private._pixels = np.full(private._pixels.shape, 7.125, dtype=np.float32)
    kind = IndexError if internal else PrivateRowsError
    with pytest.raises(kind) as raised:
        replace(Telling.small(), sampling_rate=1.0).fit(private, BUDGET, device="cpu", internal=internal)
    assert ("index 7" in str(raised.value)) == internal
    if not internal:
        assert "IndexError" in str(raised.value)
        assert raised.value.__context__ is None and raised.value.__cause__ is None


@pytest.mark.parametrize("internal", [False, True])
def test_what_is_warned_of_on_private_rows_is_withheld(internal: bool) -> None:
    step: Any = SimpleNamespace(_curator=SimpleNamespace(_internal=internal))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Step._on_private_rows(step, warnings.warn, "a bright record")
    # A ResourceWarning comes from whatever object of an earlier test happens to be collected meanwhile.
    told = [str(one.message) for one in seen if one.category is not ResourceWarning]
    assert told == ["a bright record"] * internal


def test_a_method_that_needs_the_raw_records_has_no_plan_under_a_budget() -> None:
    with pytest.raises(BudgetExceeded, match="NoGuarantee"):
        Plan.calibrated((), BUDGET)
    assert Plan.calibrated((), NoGuarantee()).events == ()


def test_public_collections_are_named_on_the_ledger_and_on_the_card(tmp_path: Path) -> None:
    class WithPublic(DPMERF):
        def fit_networks(self, curator: Curator) -> Any:
            curator.treat_as_public(PublicInput("digits", "0" * 64))
            return super().fit_networks(curator)

    card = fit(WithPublic.small(), tmp_path / "ledger").card
    (one,) = Ledger.read(tmp_path / "ledger").public_inputs(card.run)
    digest = one["fingerprint"]
    assert len(digest) == 64 and digest != "0" * 64 and one["name"] == "digits"
    assert any("digits" in fact and digest in fact and "custodian" in fact for fact in card.public)


def test_a_budget_with_a_large_delta() -> None:
    with pytest.raises(ValueError, match="refused"):
        Budget(1.0, 0.5)
    with pytest.warns(UserWarning, match="large"):
        Budget(1.0, 0.02)


def test_manual_seed_does_not_repeat_a_run() -> None:
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(fit(DPMERF.small(), None).model.state_dict())
    assert any(not torch.equal(found[0][name], found[1][name]) for name in found[0])
