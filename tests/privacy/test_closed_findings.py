"""What a red team did to version 0.2.0, one test for each finding; every one of them fails on that version."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato.data import PrivateImages
from sfumato.data.inspection import inspect
from sfumato.data.persons import Persons, one_spelling
from sfumato.data.source import Record, Selection
from sfumato.methods.dp_merf import DPMERF
from sfumato.methods.dp_realnvp import DPRealNVP
from sfumato.methods.dpaf import DPAF
from sfumato.methods.scored import ScoredMethod
from sfumato.privacy import Block, Budget, Ledger, LedgerBusy, LedgerDamaged, RunRefused, SubsampledGaussian
from sfumato.privacy.accounting import epsilon
from sfumato.release.export import export
from sfumato.release.public_input import read_public
from sfumato.release.release import Release
from sfumato.release.verification import disagreements
from sfumato.training.checkpoint import FolderCheckpoint
from worst_case import worst_case_images

BUDGET = Budget(1.0, 1e-5)


def collection(folder: Path, name: str = "own.npz") -> Path:
    folder.mkdir(exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 28, 28), dtype=np.uint8)
    np.savez(folder / name, images=pixels, labels=np.arange(12) % 4, classes=np.array(list("abcd")))
    return folder / name


WAYS = ["the same path", "a symbolic link", "a hard link", "the folder around it"]


@pytest.mark.parametrize("way", WAYS)
def test_private_files_are_not_public(tmp_path: Path, way: str) -> None:
    own = collection(tmp_path / "data")
    other = own
    if way == "a symbolic link":
        (other := tmp_path / "other.npz").symlink_to(own)
    elif way == "a hard link":
        os.link(own, other := tmp_path / "other.npz")
    elif way == "the folder around it":
        other = own.parent
    private = PrivateImages.read(own)
    curator_sees = private.lies_in(other)
    assert curator_sees and not private.lies_in(collection(tmp_path / "elsewhere"))
    if other.is_file():
        with pytest.raises(ValueError, match="the private collection itself"):
            replace(DPAF.small(), public=str(other)).fit(private, BUDGET, device="cpu")


def test_a_list_of_private_files_is_not_public(tmp_path: Path) -> None:
    """Lists of the same folder may name different files, and are then two collections."""
    for number in range(4):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / f"{number}.png")
    for name, numbers in {"own": (0, 1), "same": (1, 2), "other": (2, 3)}.items():
        lines = ["file,label", *(f"{number}.png,a" for number in numbers)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    private = PrivateImages.read(tmp_path / "own.csv", classes=("a",))
    assert private.lies_in(tmp_path / "same.csv") and not private.lies_in(tmp_path / "other.csv")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return DPMERF.small().fit(worst_case_images(), BUDGET, tmp_path_factory.mktemp("r") / "ledger", device="cpu")


def test_an_export_whose_events_were_taken_out_is_not_read(certified: Release, tmp_path: Path) -> None:
    path = export(certified.sample(4, seed=0), tmp_path / "out")
    card = json.loads((path / "card.json").read_text())
    for change in ({"events": []}, {"epsilon": 0.01}, {"events": card["events"][:1]}):
        (path / "card.json").write_text(json.dumps({**card, **change}))
        with pytest.raises(ValueError, match="does not follow from the events"):
            read_public(path, size=(28, 28), colour="grey")


def test_a_card_from_elsewhere_is_the_custodians_statement(certified: Release, tmp_path: Path) -> None:
    path = export(certified.sample(4, seed=0), tmp_path / "out")
    with Ledger(None, Budget(9.0, 1e-5)) as ledger:
        run = ledger.start_run(method="m", variant="v", seeded=False)
        ledger.note_public(run, read_public(path, size=(28, 28), colour="grey")[1])
        (one,) = ledger.public_inputs(run)
    assert one["release"] == certified.card.run and "proof" not in one


def test_a_card_that_names_a_run_of_this_ledger_says_what_the_ledger_says(tmp_path: Path) -> None:
    """Otherwise the images of a costly release would be taken for those of a cheap one, whose spending is counted."""
    with Ledger(None, Budget(9.0, 1e-5)) as ledger:
        first = DPMERF.small().fit(worst_case_images(), BUDGET, ledger, device="cpu")
        public = read_public(export(first.sample(4, seed=0), tmp_path / "out"), size=(28, 28), colour="grey")[1]
        run = ledger.start_run(method="m", variant="v", seeded=False)
        ledger.note_public(run, public)
        dear = SubsampledGaussian("sum", (Block("sum", 0.1),))
        with pytest.raises(ValueError, match="other events than this ledger charged"):
            ledger.note_public(run, replace(public, name="dear", events=(dear,)))
        ledger.note_seed(first.card.run)
        with pytest.raises(ValueError, match="has no guarantee"):
            ledger.note_public(run, replace(public, name="again"))


def test_images_keep_their_mark_in_another_format(certified: Release, tmp_path: Path) -> None:
    """Where the program that converts them keeps EXIF, as most do."""
    path = export(certified.sample(4, seed=0), tmp_path / "out")
    copied = tmp_path / "copied" / "a"
    copied.mkdir(parents=True)
    for number, file in enumerate(sorted((path / "images").rglob("*.png"))):
        with Image.open(file) as image:
            image.save(copied / f"{number}.jpg", exif=image.getexif())
    with pytest.raises(ValueError, match=r"without their card\.json"):
        read_public(copied.parent, size=(28, 28), colour="grey")


class _Killed(Exception):
    pass


def test_a_run_is_not_resumed_with_other_images(tmp_path: Path) -> None:
    """Same path, same number of images, rows shifted by one."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    labels = np.arange(40) % 2
    first = PrivateImages.from_arrays(pixels, labels, classes=2)
    checkpoint = FolderCheckpoint(tmp_path / "checkpoint", seconds=0.0)

    class Stops:
        def report(self, name: str, done: int, total: int, epsilon: float | None) -> None:
            raise _Killed

    with pytest.raises(_Killed):
        DPRealNVP.small().fit(first, BUDGET, tmp_path / "ledger", device="cpu", checkpoint=checkpoint, progress=Stops())
    moved = PrivateImages.from_arrays(np.roll(pixels, 1, axis=0), np.roll(labels, 1), classes=2)
    with pytest.raises(RunRefused, match="the collection has changed"):
        DPRealNVP.small().fit(moved, BUDGET, tmp_path / "ledger", device="cpu", checkpoint=checkpoint)
    kept = "".join(file.read_text() for file in (tmp_path / "checkpoint").glob("*.json"))
    assert first._digest() not in kept, "the fingerprint is keyed"
    resumed = DPRealNVP.small().fit(first, BUDGET, tmp_path / "ledger", device="cpu", checkpoint=checkpoint)
    assert resumed.card.certified


SPELLINGS = (
    "Zoë Müller",
    "Zoe\u0308 Mu\u0308ller",
    "ZOË MÜLLER",
    "zoë\u00a0müller",
    "Zoë Mül\u200bler ",
    "  zoë  müller",
    "Zoe\u200b\u0308 Mu\u034f\u0308ller",
    "Zoë Müller\u3164\x00",
)


def test_one_person_has_one_spelling(tmp_path: Path) -> None:
    persons = Persons(Selection(person_column="who"))
    records = [Record(name=str(n), label="a", person=name, file=None, load=None) for n, name in enumerate(SPELLINGS)]  # type: ignore[arg-type]
    assert {persons.number(record) for record in records} == {0}
    assert one_spelling("O\u2019Brien\u2011Lee") == one_spelling("O'Brien-Lee") != one_spelling("O'Brien Lee")
    apart = Record(name="7", label="a", person="7", file=None, load=None)  # type: ignore[arg-type]
    assert persons.number(apart) == 1 and persons.number(replace(apart, person="007")) == 2


def test_an_inspection_counts_the_names_that_were_joined(tmp_path: Path) -> None:
    names = [*SPELLINGS, "7", "007"]
    with (tmp_path / "list.csv").open("w", encoding="utf-8") as file:
        file.write("file,label,who\n")
        for number, name in enumerate(names):
            Image.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / f"{number}.png")
            file.write(f'{number}.png,a,"{name}"\n')
    found = inspect(tmp_path / "list.csv", Selection(person_column="who"))
    assert len(found.persons) == 3 and found.joined_names == len(SPELLINGS) - 1 and found.zeros == 1


def test_an_honest_release_with_its_accuracy_fits_its_ledger() -> None:
    ledger = Ledger(None, Budget(3.0, 1e-5))
    release = ScoredMethod.of(DPMERF.small(), noise=30.0).fit(
        worst_case_images(), Budget(3.0, 1e-5), ledger, device="cpu"
    )
    assert release.card.method == "dp-merf" and disagreements(release.card, ledger) == []


def test_a_hard_link_to_a_ledger_has_its_lock(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger", BUDGET):
        pass
    os.link(tmp_path / "ledger", tmp_path / "link")
    shutil.copy(tmp_path / "ledger.head", tmp_path / "link.head")
    with Ledger(tmp_path / "ledger"), pytest.raises(LedgerBusy):
        Ledger(tmp_path / "link")


def test_a_ledger_that_is_replaced_while_it_is_written_takes_no_charge(tmp_path: Path) -> None:
    event = SubsampledGaussian("sum", (Block("sum", 5.0),))
    with Ledger(tmp_path / "ledger", BUDGET) as ledger:
        run = ledger.start_run(method="m", variant="v", seeded=False)
        ledger.reserve(run, [event])
        (tmp_path / "ledger").rename(tmp_path / "moved")
        shutil.copy(tmp_path / "moved", tmp_path / "ledger")
        with pytest.raises(LedgerDamaged, match="replaced or removed"):
            ledger.charge(run, event)


def test_a_release_that_builds_on_another_is_counted_by_the_filter(certified: Release, tmp_path: Path) -> None:
    public = export(certified.sample(6, seed=0), tmp_path / "out")
    with Ledger(None, Budget(4.0, 1e-5)) as ledger:
        card = replace(DPAF.small(), public=str(public)).fit(worst_case_images(), BUDGET, ledger, device="cpu").card
        assert card.composition == {"rule": "renyi filter", "order": ledger.order}
        assert card.lineage == (certified.card.run,) and disagreements(card, ledger) == []
    assert card.epsilon is not None and card.epsilon > epsilon(card.accounted, 1e-5)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 255.0), (0.0, float("nan"))])
def test_floats_outside_0_to_1_are_refused(low: float, high: float) -> None:
    pixels = np.full((3, 8, 8), 0.5)
    pixels[0, 0, 0], pixels[-1, -1, -1] = low, high
    with pytest.raises(ValueError, match="must lie between 0 and 1") as refusal:
        PrivateImages.from_arrays(pixels)
    assert not any(str(value) in str(refusal.value) for value in (low, "nan"))
    assert PrivateImages.from_arrays(np.clip(np.nan_to_num(pixels), 0, 1)).shape == (1, 8, 8)
