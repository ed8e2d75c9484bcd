"""Datasets of experiments and papers: where they are, how they are read, what replaces one that is not available."""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.data import Images
from sfumato.data.digits import draw_digits
from sfumato.data.holdout import HoldOut, read_train_and_test
from sfumato.experiments.spec import DataSpec, from_table, hint

FOLDER_VARIABLE = "SFUMATO_DATA"
TEST_DIGITS = 10_000


@dataclass(frozen=True)
class Dataset:
    """``train`` and ``test`` are paths below the data folder; without ``test`` one path holds both splits."""

    name: str
    title: str
    records: int
    train: str = ""
    test: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    person_column: str = ""
    """The column that a person-level unit is read from."""
    split: str = "as published"
    """How training and test images were divided."""
    part_of: str = ""
    home: str = ""
    """Where it can be had."""
    substitute: str = ""
    drawn: bool = False


@dataclass(frozen=True)
class LocatedDataset:
    """A dataset that is available. ``asked`` is the one it replaces, or itself."""

    dataset: Dataset
    asked: Dataset
    train: Path
    test: Path | None
    given: bool
    """By the user's own path, so that nothing is known about how much of the dataset it is."""

    @property
    def remark(self) -> str:
        """What differs from the dataset that was asked for; empty when nothing is known to."""
        if self.asked.name != self.dataset.name:
            return f"{self.asked.title} is not available; {self.dataset.title} replaces it"
        if self.dataset.part_of and not self.given:
            return f"{self.dataset.records:,} of {self.dataset.part_of}"
        return ""

    def spec(
        self,
        *,
        unit: str = "image",
        records: int | None = None,
        test_records: int | None = None,
    ) -> DataSpec:
        options = dict(self.dataset.options)
        if unit == "person":
            if not self.dataset.person_column:
                raise ValueError(f"{self.dataset.title} has no column of persons, so unit = 'person' cannot be used")
            options["person_column"] = self.dataset.person_column
        return DataSpec(
            name=self.dataset.name,
            train=self.train,
            test=self.test,
            options=options,
            records=records,
            test_records=test_records,
            drawn=self.dataset.drawn,
            split="" if self.given else self.dataset.split,
            remark=self.remark,
        )


@cache
def datasets() -> dict[str, Dataset]:
    """All known datasets by name."""
    text = files("sfumato.experiments").joinpath("datasets.toml").read_text(encoding="utf-8")
    return {
        name: from_table(Dataset, {"name": name, **table}, f"datasets.toml, {name}")
        for name, table in tomllib.loads(text).items()
    }


@dataclass(frozen=True)
class DatasetLocator:
    """The data folder, and datasets that the user keeps elsewhere."""

    folder: Path
    elsewhere: Mapping[str, tuple[Path, Path | None]]

    @classmethod
    def of(cls, words: Sequence[str]) -> DatasetLocator:
        """From ``FOLDER``, ``NAME=PATH`` or ``NAME=TRAIN,TEST`` as the command line gives them."""
        folder = Path(os.environ.get(FOLDER_VARIABLE, "data"))
        elsewhere: dict[str, tuple[Path, Path | None]] = {}
        for word in words:
            name, separator, place = word.partition("=")
            if not separator:
                folder = Path(word)
                continue
            if name not in datasets():
                raise LookupError(f"--data {name}=…: there is no dataset {name!r}; {hint(name, datasets())}")
            train, _, test = place.partition(",")
            elsewhere[name] = (Path(train), Path(test) if test else None)
        return cls(folder, elsewhere)

    def find(self, name: str) -> LocatedDataset | None:
        """The dataset, or its substitute; ``None`` when neither is available."""
        if name not in datasets():
            raise LookupError(f"there is no dataset {name!r}; {hint(name, datasets())}")
        asked = datasets()[name]
        if asked.drawn:
            return LocatedDataset(asked, asked, Path(name), None, given=False)
        for wanted in (asked, datasets().get(asked.substitute)):
            place = None if wanted is None else self._paths(wanted)
            if wanted is not None and place is not None:
                return LocatedDataset(wanted, asked, *place, given=wanted.name in self.elsewhere)
        return None

    def require(self, name: str) -> LocatedDataset:
        """As ``find``; an error where neither the dataset nor its substitute is available."""
        found = self.find(name)
        if found is None:
            raise FileNotFoundError(
                f"{name} is not in {self.folder}; give the data folder or the dataset: --data FOLDER or "
                f"--data {name}=PATH"
            )
        return found

    def _paths(self, wanted: Dataset) -> tuple[Path, Path | None] | None:
        train, test = self.folder / wanted.train, self.folder / wanted.test if wanted.test else None
        if wanted.name in self.elsewhere:
            train, test = self.elsewhere[wanted.name]
            if not train.exists():
                raise FileNotFoundError(f"--data {wanted.name}={train}: there is no such file or folder")
        return (train, test) if train.exists() and (test is None or test.exists()) else None


# Reading


def read_images(data: DataSpec) -> tuple[Images, Images]:
    """Training and test images, as many of them as the specification says."""
    if data.drawn:
        return draw_digits(data.records or 60_000, seed=0), draw_digits(data.test_records or TEST_DIGITS, seed=1)
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in data.options.items()}
    train, test = _read(data.train, data.test, data.hold_out, tuple(sorted(options.items())))
    return _subset(train, data.records), _subset(test, data.test_records)


def _subset(images: Images, count: int | None) -> Images:
    if count is None or count >= len(images.pixels):
        return images
    chosen = np.sort(np.random.default_rng(0).permutation(len(images.pixels))[:count])
    persons = None if images.persons is None else images.persons[chosen]
    return Images(images.pixels[chosen], images.labels[chosen], images.classes, persons)


@lru_cache(maxsize=2)
def _read(
    train: Path, test: Path | None, hold_out: Path | None, options: tuple[tuple[str, Any], ...]
) -> tuple[Images, Images]:
    division = None if hold_out is None else HoldOut.load(hold_out)
    return read_train_and_test(train, test, hold_out=division, **dict(options))


def content_hash(*images: Images) -> str:
    """SHA-256 of the pixels and labels of several sets, in order."""
    digest = hashlib.sha256()
    for one in images:
        digest.update(repr((one.pixels.shape, str(one.pixels.dtype), one.classes)).encode())
        for start in range(0, len(one.pixels), 4096):
            digest.update(one.pixels[start : start + 4096].tobytes())
        digest.update(one.labels.astype("int64").tobytes())
    return digest.hexdigest()
