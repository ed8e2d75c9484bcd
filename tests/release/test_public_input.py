"""Collections that a method treats as public: named on the card, refused without a guarantee, counted with one."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from release.test_verification import StopsEarly
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dpaf import DPAF
from sfumato.privacy import (
    AnyBudget,
    Block,
    Budget,
    BudgetExceeded,
    Ledger,
    NoGuarantee,
    RunRefused,
    SubsampledGaussian,
)
from sfumato.privacy.accounting import FILTER, calibrate, epsilon, filtered_epsilon
from sfumato.privacy.interfaces import PublicInput
from sfumato.release.export import export
from sfumato.release.public_input import read_public
from sfumato.release.release import Release
from worst_case import worst_case_images

SMALL = Budget(1.0, 1e-5)


def generator(ledger: Path | None, budget: AnyBudget = SMALL, seed: int | None = None) -> Release:
    return DPMERF.small().fit(worst_case_images(), budget, ledger, device="cpu", seed=seed)


def dpaf(public: Path, ledger: Path | Ledger | None, budget: Budget = SMALL) -> Release:
    return replace(DPAF.small(), public=str(public)).fit(worst_case_images(), budget, ledger, device="cpu")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return generator(tmp_path_factory.mktemp("release") / "ledger")


@pytest.fixture(scope="module")
def unguarded() -> Release:
    return generator(None, NoGuarantee(), seed=1)


def test_a_public_collection_is_on_the_card_with_its_content(tmp_path: Path) -> None:
    """By name and by a hash that another content does not have."""
    rng = np.random.default_rng(0)
    digests = []  # of the content
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        pixels = rng.integers(0, 256, (12, 28, 28), dtype=np.uint8)
        np.savez(folder / "letters.npz", images=pixels, labels=np.arange(12) % 3)
        digests.append(read_public(folder / "letters.npz", size=(28, 28), colour="grey")[1].sha256)
    card = dpaf(folder / "letters.npz", tmp_path / "ledger").card
    (fact,) = [fact for fact in card.public if "letters.npz" in fact]
    assert digests[0] != digests[1]
    assert card.certified and "by the custodian's statement shares no record" in fact
    (one,) = Ledger.read(tmp_path / "ledger").public_inputs(card.run)
    assert one["name"] == "letters.npz" and one["fingerprint"] in fact
    # Whether the "public" pixels are the private ones is not known, so that no unkeyed hash of them leaves.
    assert all(digest not in (tmp_path / "ledger").read_text() + card.text for digest in digests)
    other = dpaf(folder / "letters.npz", None).card
    assert other.public != card.public, "another ledger has another key"


def test_synthetic_images_without_a_guarantee_are_refused(unguarded: Release, tmp_path: Path) -> None:
    """As the folder that was written, as the images in it, and as a copy without the card."""
    for form in ["folder", "npz", "parquet"]:
        for number, place in enumerate(["export", "images", "copied"]):
            here = tmp_path / f"{form}-{number}"
            here.mkdir()
            path = export(unguarded.sample(6, seed=0), here / "out", format=form, allow_no_guarantee=True)  # type: ignore[arg-type]
            images = next(path.glob("images*"))
            if place == "copied":
                copied = here / f"public{images.suffix}"
                images = shutil.copytree(images, copied) if images.is_dir() else shutil.copy(images, copied)
            with pytest.raises(ValueError, match="without a guarantee"):
                read_public(path if place == "export" else Path(images), size=(28, 28), colour="grey")


def test_certified_images_without_their_card_cannot_be_counted(certified: Release, tmp_path: Path) -> None:
    path = export(certified.sample(6, seed=0), tmp_path / "out", format="npz")
    shutil.copy(path / "images.npz", tmp_path / "public.npz")
    with pytest.raises(ValueError, match=r"without their card\.json"):
        read_public(tmp_path / "public.npz", size=(28, 28), colour="grey")


def test_certified_images_add_what_they_have_cost(certified: Release, tmp_path: Path) -> None:
    """Charged to a ledger that does not know their run; refused where there is no room for both."""
    public = export(certified.sample(6, seed=0), tmp_path / "out")
    with pytest.raises(BudgetExceeded):
        dpaf(public, tmp_path / "small")
    own = DPAF.small().plan(SMALL).events
    with Ledger(tmp_path / "ledger", Budget(3.0, 1e-5)) as ledger:
        card = dpaf(public, ledger).card
        order = ledger.entries()[0]["order"]
    # The run was planned when the images could be seen, so that the filter's ε holds and the accountant's does not.
    both = filtered_epsilon([*own, *certified.card.events], order, 1e-5)
    assert card.epsilon is not None and 1.02 < both <= card.epsilon <= both * 1.01
    assert both > epsilon([*own, *certified.card.events], 1e-5)
    assert card.accountant == FILTER
    assert card.best_guess >= (1 + math.tanh(card.epsilon / 2)) / 2
    assert any(certified.card.run in fact and "spending is counted" in fact for fact in card.public)
    assert Ledger.read(tmp_path / "ledger").spent() == pytest.approx(both)


def test_images_of_a_run_that_stopped_early_add_the_whole_plan(tmp_path: Path) -> None:
    """Where it stopped was chosen after its answers, also for a run on another ledger that builds on it."""
    first = StopsEarly.small().fit(worst_case_images(), SMALL, device="cpu")
    (asked,), (whole,) = first.card.events, StopsEarly.small().plan(SMALL).events
    assert isinstance(asked, SubsampledGaussian) and asked == whole.times(1)
    public = export(first.sample(6, seed=0), tmp_path / "out")
    with Ledger(None, Budget(4.0, 1e-5)) as ledger:
        card = dpaf(public, ledger).card
        order = ledger.entries()[0]["order"]
    both = filtered_epsilon([*DPAF.small().plan(SMALL).events, whole], order, 1e-5)
    assert card.epsilon is not None and both <= card.epsilon <= both * 1.01
    assert first.card.planned == (whole,)


def test_images_of_a_run_on_the_same_ledger_are_counted_once(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", Budget(4.0, 1e-5)) as ledger:
        first = generator(ledger)  # type: ignore[arg-type]
        public = export(first.sample(6, seed=0), tmp_path / "out")
        card = dpaf(public, ledger).card
        together = ledger.spent()
        charged = len(ledger.events())
        order = ledger.entries()[0]["order"]
    both = filtered_epsilon([*first.card.events, *DPAF.small().plan(SMALL).events], order, 1e-5)
    assert card.epsilon is not None and both <= card.epsilon <= both * 1.01
    assert card.collection_epsilon is not None and together <= card.collection_epsilon <= together * 1.01
    assert charged == len(first.card.events) + len(DPAF.small().plan(SMALL).events)
    assert all(event in card.events for event in first.card.events), "the card names what the earlier release spent"


def test_units_are_not_mixed_and_a_collection_does_not_change(certified: Release, tmp_path: Path) -> None:
    public = read_public(export(certified.sample(6, seed=0), tmp_path / "out"), size=(28, 28), colour="grey")[1]
    persons = Ledger(None, Budget(9.0, 1e-5, unit="person"))
    run = persons.start_run(method="m", variant="v", seeded=False)
    with pytest.raises(ValueError, match="per image and this ledger counts per person"):
        persons.note_public(run, public)
    images = Ledger(None, Budget(9.0, 1e-5))
    run = images.start_run(method="m", variant="v", seeded=False)
    images.note_public(run, public)
    entries = images.head
    images.note_public(run, public)
    assert images.head == entries, "a resumed run notes it once"
    with pytest.raises(RunRefused, match="has changed"):
        images.note_public(run, replace(public, sha256="0" * 64))


def test_a_run_that_builds_on_a_release_of_another_ledger_is_held_to_the_filter() -> None:
    """Two plans that fit together if they are fixed in advance: the second was made when the first could be read."""
    queries = [
        SubsampledGaussian(name, (Block("sum"),), sampling_rate=0.02, steps=1000) for name in ("first", "second")
    ]
    first, second = calibrate(queries, SMALL)
    ledger = Ledger(None, SMALL)
    run = ledger.start_run(method="m", variant="v", seeded=False)
    ledger.reserve(run, [second])
    public = PublicInput("images", "0" * 64, release="another run", events=(first,), unit="image")
    with pytest.raises(BudgetExceeded, match=r"ε would be 1\.0"):
        ledger.note_public(run, public)
    roomy = Ledger(None, Budget(2.0, 1e-5))
    run = roomy.start_run(method="m", variant="v", seeded=False)
    roomy.reserve(run, [second])
    roomy.note_public(run, public)
    roomy.charge(run, second)
    together = filtered_epsilon([first, second], roomy.entries()[0]["order"], 1e-5)
    assert roomy.spent() == roomy.release_epsilon(run, 1e-5) == pytest.approx(together)
