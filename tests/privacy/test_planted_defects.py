"""Defects that earlier tests did not find when they were planted; ``mutants/chosen.toml`` plants them again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sfumato.methods import DPMERF
from sfumato.methods.dp_vae import DPVAE
from sfumato.privacy import Block, Budget, Curator, Ledger, Plan, PrivateRecords, Randomness, SubsampledGaussian
from sfumato.privacy.events import Relation
from sfumato.privacy.ledger import Journal, LedgerDamaged
from sfumato.release import Release

COUNTS = SubsampledGaussian("counts", (Block("sum", 40.0, fixed=True),))
TRAIN = SubsampledGaussian("train", (Block("a"),), sampling_rate=0.5, steps=3)


def halves(count: int = 80, size: int = 8) -> PrivateRecords:
    """Black images of one class and white images of another."""
    labels = np.arange(count) % 2
    pixels = np.repeat(labels, size * size).reshape(count, 1, size, size).astype(np.uint8) * 255
    return PrivateRecords(pixels, labels, classes=("black", "white"))


def curator(records: PrivateRecords, event: SubsampledGaussian, budget: Budget, seed: int | None = None) -> Curator:
    ledger = Ledger(None, budget)
    run = ledger.start_run(method="m", variant="v", seeded=seed is not None)
    plan = Plan.calibrated((event,), budget)
    return Curator(records, plan, ledger, run=run, randomness=Randomness(seed))


def test_label_counts_have_the_planned_noise() -> None:
    classes = tuple(map(str, range(3000)))
    nobody = PrivateRecords(np.zeros((0, 1, 2, 2), np.uint8), classes=classes)
    noise = curator(nobody, COUNTS, Budget(1.0, 1e-5)).noisy_histogram("counts").values
    # The standard deviation of 3,000 draws is within 7 % of the true one but once in a million times.
    assert float(noise.std()) == pytest.approx(40.0, rel=0.07)


def test_a_delta_above_one_over_the_declared_size_is_refused_by_the_curator() -> None:
    declared = PrivateRecords(np.zeros((5, 1, 2, 2), np.uint8), declared_size=2000)
    with pytest.raises(ValueError, match=r"delta|δ"):
        curator(declared, COUNTS, Budget(1.0, 1e-3))
    curator(declared, COUNTS, Budget(1.0, 1e-5))


def test_every_step_is_on_the_ledger() -> None:
    running = curator(halves(), TRAIN, Budget(5.0, 1e-5))
    for step in running.steps("train"):
        step.noisy_sum("a", lambda images, labels, random: images.flatten(1), clip_norm=1.0)
    assert running._ledger.charged_steps(running._run, "train") == 3


def test_streams_are_told_apart_by_where_their_labels_end() -> None:
    one, other = (Randomness(0).gaussian(8, torch.device("cpu"), *label) for label in (("ab", "c"), ("a", "bc")))
    assert not torch.equal(one, other)


def test_an_entry_is_on_the_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    journal = Journal(tmp_path / "ledger", write=True)
    journal.append({"kind": "test"})
    journal.close()
    assert (tmp_path / "ledger").stat().st_ino in synced


def test_an_entry_cannot_be_moved_within_the_chain(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", Budget(1.0, 1e-5)) as ledger:
        for method in "abc":
            ledger.start_run(method=method, variant="v", seeded=False)
    first, one, other, last = (tmp_path / "ledger").read_text().splitlines()
    (tmp_path / "ledger").write_text("\n".join([first, other, one, last]) + "\n")
    with pytest.raises(LedgerDamaged, match="line 2 does not fit the chain"):
        Ledger.read(tmp_path / "ledger")


def test_dp_merf_uses_the_labels() -> None:
    release = replace(DPMERF.small(), iterations=150).fit(halves(), Budget(1e4, 1e-5), seed=0)
    black, white = (release.sample(20, labels=np.full(20, label), seed=1).images.mean() for label in (0, 1))
    assert white > black + 60


def test_dp_vae_uses_the_labels() -> None:
    release = replace(DPVAE.small(), steps=60).fit(halves(), Budget(1e4, 1e-5), seed=0)
    black, white = (release.sample(20, labels=np.full(20, label), seed=1).images.mean() for label in (0, 1))
    assert white > black + 15


def test_the_card_shows_the_noisy_counts() -> None:
    """Their noise has a standard deviation of about 10."""
    release = DPMERF.small().fit(halves(2000), Budget(1e3, 1e-5), seed=0)
    assert release.card.class_counts == pytest.approx((1000, 1000), abs=200)


def test_draws_of_two_names_differ_and_integers_stay_in_range() -> None:
    ids = torch.arange(500)
    draws = Randomness(0).draws(ids, torch.zeros_like(ids), "test")
    assert not torch.equal(draws.normal("a", 2), draws.normal("b", 2))
    numbers = draws.integers("c", 5, 4)
    assert set(numbers.flatten().tolist()) == {0, 1, 2, 3, 4}


def test_an_edited_line_is_named(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", Budget(1.0, 1e-5)) as ledger:
        ledger.start_run(method="m", variant="v", seeded=False)
    lines = (tmp_path / "ledger").read_text().splitlines()
    (tmp_path / "ledger").write_text("\n".join([lines[0], lines[1].replace('"m"', '"n"')]) + "\n")
    with pytest.raises(LedgerDamaged, match="line 2 does not fit the chain"):
        Ledger.read(tmp_path / "ledger")


def test_a_replaced_unit_moves_a_sum_by_two_clip_norms() -> None:
    event = replace(TRAIN, shards=10)
    assert event.relation is Relation.REPLACE and event.sensitivity(event.relation) == 2.0
    assert TRAIN.sensitivity(TRAIN.relation) == 1.0


def test_a_release_makes_a_method_of_its_own() -> None:
    method = DPMERF.small()
    release = method.fit(halves(), Budget(1.0, 1e-5))
    again = Release(method, release.model.state_dict(), release.card)
    assert again.method == method and again.method is not method
