"""Samples of several processes are drawn and written part by part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from release.cards import certified
from sfumato.privacy.distributed import RankLost, World
from sfumato.release import SyntheticImages
from sfumato.release import export as shards_module
from sfumato.release.export import export_shards, read_export


class Drawing:
    """A release that remembers how many images were asked for at a time."""

    card = certified(shape=(1, 8, 8), classes=("cat", "dog"))
    classes = card.classes

    def __init__(self) -> None:
        self.asked: list[int] = []

    def sample(self, count: int, *, labels: np.ndarray, seed: int, **options: Any) -> SyntheticImages:
        self.asked.append(count)
        images = np.random.default_rng(seed).integers(0, 256, (count, *self.card.shape), dtype=np.uint8)
        return SyntheticImages(images, labels, self.card)


def test_a_process_holds_a_part_of_its_images_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "ROWS", 4)
    release, seen = Drawing(), []
    report = lambda task, done, total: seen.append((done, total))  # noqa: E731
    folder = export_shards(release, 11, tmp_path / "out", World(), seed=1, progress=report)  # type: ignore[arg-type]
    drawn = read_export(folder)
    assert release.asked == [4, 4, 3] and seen == [(4, 11), (8, 11), (11, 11)]
    assert drawn.labels.tolist() == [number % 2 for number in range(11)]
    assert len({image.tobytes() for image in drawn.images}) == 11  # every part has a seed of its own


class Lonely(World):
    """The second of three processes, whose fellows end after the first exchange."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1, 3)
        self.folder, self.exchanges = folder, 0

    def from_first(self, make: Callable[[], Any]) -> Any:
        (self.folder / "images").mkdir(parents=True)
        return str(self.folder)

    def wait(self) -> None:
        self.exchanges += 1
        if self.exchanges > 1:
            raise RankLost("another process has ended")


def test_a_process_that_has_ended_is_noticed_after_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "ROWS", 4)
    release = Drawing()
    with pytest.raises(RankLost):
        export_shards(release, 3000, tmp_path / "out", Lonely(tmp_path / "new"), seed=1)  # type: ignore[arg-type]
    assert release.asked == [4, 4]  # of 1000 images


@pytest.mark.parametrize("rank", [0, 1])
def test_every_process_takes_part_in_as_many_exchanges(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine images in two processes: five, and four that need a part less."""
    monkeypatch.setattr(shards_module, "ROWS", 4)
    waits: list[int] = []
    world = World(rank, 2)
    monkeypatch.setattr(world, "wait", lambda: waits.append(1))
    monkeypatch.setattr(world, "from_first", Lonely(tmp_path / "new").from_first)
    export_shards(Drawing(), 9, tmp_path / "out", world, seed=1)  # type: ignore[arg-type]
    assert len(waits) == 2 + 2


class OnAnotherMachine(World):
    """A process that does not see the folder which the first one has made."""

    def from_first(self, make: Callable[[], Any]) -> Any:
        return "/somewhere/else"


def test_a_folder_that_a_machine_does_not_see_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a disk that all of them share"):
        export_shards(Drawing(), 11, tmp_path / "out", OnAnotherMachine(1, 2), seed=1)  # type: ignore[arg-type]
