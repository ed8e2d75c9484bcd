"""A run that ends between two writes: what the ledger, the checkpoint and the release say afterwards."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from privacy.test_runs import BUDGET, METHOD, KillAfter, Killed, OwnTerms, fit
from sfumato.methods.base import Method
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dpaf import DPAF
from sfumato.methods.registry import load
from sfumato.privacy import Ledger, RunRefused, Step
from sfumato.privacy.curator import AnswerLost
from sfumato.privacy.interfaces import Started
from sfumato.training import run as training_run
from sfumato.training.checkpoint import FolderCheckpoint
from sfumato.training.run import Run
from worst_case import worst_case_images


class KilledBefore(FolderCheckpoint):
    """The process ends before the run's entry on the ledger, after the checkpoint has named the run."""

    def start(self, started: Started) -> None:
        super().start(started)
        raise Killed


class KilledAfter(FolderCheckpoint):
    """The process ends after the run's entry on the ledger, before the checkpoint knows the ledger's new head."""

    def start(self, started: Started) -> None:
        if self.started is not None:
            raise Killed
        super().start(started)


@pytest.mark.parametrize("kind", [KilledBefore, KilledAfter])
def test_a_run_that_was_killed_while_it_started_is_the_same_run(tmp_path: Path, kind: type[FolderCheckpoint]) -> None:
    """The resumed run has the same id, and the ledger never holds a second, empty run."""
    ledger, checkpoint = tmp_path / "ledger", kind(tmp_path / "checkpoint")
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint)
    started = checkpoint.started
    assert started is not None
    entries = [started.run] if kind is KilledAfter else []
    assert [run["run"] for run in Ledger.read(ledger).runs()] == entries
    card = fit(METHOD, ledger, FolderCheckpoint(checkpoint.folder)).card
    assert card.certified and card.run == started.run
    assert [run["run"] for run in Ledger.read(ledger).runs()] == [started.run]


def test_a_run_that_was_killed_before_the_head_of_its_first_charge_was_written_goes_on(tmp_path: Path) -> None:
    """The file was created and is empty: the charge is on the ledger, and its noise was not drawn."""

    class KilledWhileCharging(FolderCheckpoint):
        def charged(self, length: int, digest: str) -> None:
            (self.folder / "ledger_head").touch()
            raise Killed

    ledger, method = tmp_path / "ledger", METHOD
    with pytest.raises(Killed):
        fit(method, ledger, KilledWhileCharging(tmp_path / "checkpoint"))
    card = fit(method, ledger, FolderCheckpoint(tmp_path / "checkpoint")).card
    assert card.certified and Ledger.read(ledger).charged_steps(card.run, "training") == METHOD.steps


class Reported:
    """A progress display that remembers the steps of one part."""

    def __init__(self, part: str) -> None:
        self.part, self.steps = part, list[int]()

    def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
        if name == self.part:
            self.steps.append(done)


@pytest.mark.parametrize("method", [replace(DPMERF.small(), iterations=60), replace(DPAF.small(), iterations=60)])
def test_a_generator_goes_on_where_it_was_kept(tmp_path: Path, method: Method) -> None:
    """Training on released answers is public work, and most of the time of such a run."""
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    with pytest.raises(Killed):
        fit(method, ledger, checkpoint, progress=KillAfter(40, "generator"))
    resumed = Reported("generator")
    assert fit(method, ledger, FolderCheckpoint(checkpoint.folder), progress=resumed).card.certified
    assert resumed.steps == list(range(41, 61))


def test_a_schedule_goes_on_with_its_learning_rate(tmp_path: Path) -> None:
    """What DP-MERF keeps: network, optimiser and schedule are those of a training that was never stopped."""
    inputs, wanted = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)

    def trained(checkpoint: FolderCheckpoint, *parts: range) -> Any:
        for part in parts:
            torch.manual_seed(0)
            model = torch.nn.Linear(3, 2)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 30, pct_start=0.1)
            keep = {"model": model, "optimizer": optimizer, "schedule": schedule}
            checkpoint.restore("generator", keep, ())
            for index in part:
                (model(inputs) - wanted).square().mean().backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                checkpoint.save("generator", index + 1, keep, (), last=False)
        return [*model.parameters()], schedule.get_last_lr()

    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole = trained(FolderCheckpoint(tmp_path / "whole", seconds=0.0), range(30))
    parts = trained(FolderCheckpoint(tmp_path / "parts", seconds=0.0), range(17), range(17, 30))
    assert all(torch.equal(one, other) for one, other in zip(whole[0], parts[0], strict=True))
    assert whole[1] == parts[1]


def test_the_end_of_a_training_loop_is_saved_whenever_it_comes(tmp_path: Path) -> None:
    """A run that is killed in a later part has all of the earlier ones, however short they were."""
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=1e9)
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(METHOD.steps, "training"))
    model = METHOD.build((1, 28, 28), len(worst_case_images().classes))
    assert checkpoint.restore("training", {"model": model}, ()) == METHOD.steps
    release = fit(METHOD, ledger, FolderCheckpoint(checkpoint.folder))
    assert release.card.certified
    for name, tensor in model.state_dict().items():
        assert torch.equal(release.model.state_dict()[name], tensor)


class NeverSaved(FolderCheckpoint):
    """The process ends before any step was saved."""

    def save(self, *_: object, **__: object) -> None:
        """Nothing."""


def test_a_loop_whose_steps_were_all_charged_and_lost_is_refused(tmp_path: Path) -> None:
    """It could only go on with a network that has seen nothing."""
    ledger, checkpoint = tmp_path / "ledger", NeverSaved(tmp_path / "checkpoint")
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(METHOD.steps, "training"))
    with pytest.raises(AnswerLost, match="budget of its own"):
        fit(METHOD, ledger, FolderCheckpoint(checkpoint.folder))
    assert sum(event.steps for event in Ledger.read(ledger).events()) == METHOD.steps


def killed_when(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
    def end(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(place, name, end)


@pytest.mark.parametrize(("place", "name"), [(Ledger, "end_run"), (training_run, "make_card"), (Run, "finish")])
def test_a_run_that_was_killed_while_it_ended_keeps_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str
) -> None:
    """Before the closing entry, after it, and before the release is written."""
    run = Run(tmp_path / "run")
    run.begin({}, resume=False)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_when(patched, place, name)
        run.finish(fit(METHOD, run.ledger, run.checkpoint))
    (kept,) = (run.internal / "checkpoint").glob("result *")
    events = Ledger.read(run.ledger).events()

    again = Run(tmp_path / "run")
    again.begin({}, resume=True)
    result = again.checkpoint.result(kept.stem.removeprefix("result "))
    again.finish(fit(METHOD, again.ledger, again.checkpoint))
    release = load(again.release)
    assert result is not None and release.card.certified and Ledger.read(run.ledger).ended(release.card.run)
    assert all(torch.equal(tensor, result.tensors[name]) for name, tensor in release.model.state_dict().items())
    assert Ledger.read(run.ledger).events() == events == METHOD.plan(BUDGET).events
    assert not again.checkpoint.folder.exists()


def copied(ledger: Path, place: Path) -> Path:
    for suffix in ("", ".head"):
        shutil.copy(f"{ledger}{suffix}", f"{place}{suffix}")
    return place


def test_a_copy_of_the_ledger_without_a_charge_is_refused_before_any_step_was_saved(tmp_path: Path) -> None:
    """The answers of the lost steps were drawn; a ledger that does not know them would let them be drawn for free."""
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=1e9)
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(1, "training"))
    older = copied(ledger, tmp_path / "older")
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(2, "training"))
    with pytest.raises(RunRefused, match="older copy"):
        fit(METHOD, older, checkpoint)
    assert fit(METHOD, ledger, checkpoint).card.certified


def test_the_result_of_a_run_needs_a_ledger_with_all_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    with pytest.raises(Killed):
        fit(METHOD, ledger, checkpoint, progress=KillAfter(3, "training"))
    older = copied(ledger, tmp_path / "older")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_when(patched, Ledger, "end_run")
        fit(METHOD, ledger, checkpoint)
    (checkpoint.folder / "ledger_head").unlink()
    with pytest.raises(RunRefused, match="6 answers of 'training' are in use and 3 "):
        fit(METHOD, older, checkpoint)
    assert fit(METHOD, ledger, checkpoint).card.certified


def test_code_outside_the_trusted_base_is_a_fact_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process that used it is gone when the card is made."""
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    method = OwnTerms.small()
    with monkeypatch.context() as patched, pytest.raises(Killed):
        killed_when(patched, Ledger, "end_run")
        fit(method, ledger, checkpoint)
    card = fit(method, ledger, checkpoint).card
    assert not card.certified and any("Smaller" in reason for reason in card.reasons)


@pytest.mark.parametrize("change", ["one record fewer", "another record", "another order"])
def test_state_of_records_is_not_given_to_others(tmp_path: Path, change: str) -> None:
    """A record's vector would depend on the record that had its place before; and no text counts them."""
    ledger, checkpoint = tmp_path / "ledger", FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)
    method, private = DP2VAE.small("record"), worst_case_images()
    with pytest.raises(Killed):
        method.fit(private, BUDGET, ledger, checkpoint=checkpoint, device="cpu", progress=KillAfter(1))
    changed = private._without(0, "image") if change == "one record fewer" else worst_case_images()
    if change == "another record":
        changed._pixels = changed._pixels.copy()
        changed._pixels[3] = 1 - changed._pixels[3]
    if change == "another order":
        changed._pixels = changed._pixels[::-1]
    with pytest.raises(RunRefused, match="has changed") as raised:
        method.fit(changed, BUDGET, ledger, checkpoint=checkpoint, device="cpu")
    assert not any(character.isdigit() for character in str(raised.value))
    card = method.fit(worst_case_images(), BUDGET, ledger, checkpoint=checkpoint, device="cpu").card
    assert card.certified


def test_a_result_belongs_to_its_run(tmp_path: Path) -> None:
    """A file of another run in the folder is not taken for this run's result."""
    first, second = (FolderCheckpoint(tmp_path / name) for name in ("first", "second"))
    fit(DPMERF.small(), tmp_path / "ledger", first)
    second.folder.mkdir()
    (found,) = first.folder.glob("result *")
    shutil.copy(found, second.folder)
    card = fit(replace(DPMERF.small(), iterations=3), tmp_path / "other", second).card
    assert card.run not in found.name and Ledger.read(tmp_path / "other").charged_steps(card.run, "label counts") == 1


def test_answers_whose_names_look_alike_have_files_of_their_own(tmp_path: Path) -> None:
    checkpoint = FolderCheckpoint(tmp_path)
    names = ("mean/variance", "mean-variance", "mean%2Fvariance")
    for number, name in enumerate(names):
        checkpoint.save_answer(name, torch.tensor([float(number)]))
    found = [checkpoint.answer(name) for name in names]
    assert [None if one is None else float(one) for one in found] == [0.0, 1.0, 2.0]


def test_an_object_is_not_given_another_step_than_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger notes the step of the Curator's class, so that this one has to be the one in use."""

    class Quiet(Step):
        def _noise_multiplier(self, block: str) -> float:
            return 1e-6 * super()._noise_multiplier(block)

    used: list[float] = []
    train, multiplier = DPMERF.fit_networks, Step._noise_multiplier

    def with_own_step(method: DPMERF, curator: Any) -> Any:
        curator.step_type = Quiet
        return train(method, curator)

    def watched(step: Step, block: str) -> float:
        used.append(multiplier(step, block) if type(step) is Step else 0.0)
        return multiplier(step, block)

    monkeypatch.setattr(DPMERF, "fit_networks", with_own_step)
    monkeypatch.setattr(Step, "_noise_multiplier", watched)
    assert fit(DPMERF.small(), None).card.certified
    assert used and min(used) > 0.0, "a certified card, and a step of the method's own drew the noise"
