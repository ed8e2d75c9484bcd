"""Data sets that are Python objects: of ``torch.utils.data``, of torchvision, of Hugging Face ``datasets``."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from sfumato.data.decode import ImageTransform
from sfumato.data.errors import BadInput, parsing
from sfumato.data.source import Record, Selection

OUT_OF_RANGE = (
    "Scale them first: from -1..1 by (pixels + 1) / 2, from 0..255 by pixels / 255, and leave a Normalize transform "
    "out; or give bytes (uint8)"
)
"""What to do with floating pixels that are not between 0 and 1."""


class ObjectSource:
    """A data set whose rows are tuples (image, label) or mappings with columns; each row is asked for once.

    An image is a PIL image, an array or a tensor. A Hugging Face ``ClassLabel`` and the attribute ``classes`` of a
    torchvision data set declare the label set.
    """

    def __init__(self, dataset: Any, selection: Selection) -> None:
        if isinstance(dataset, Mapping):
            raise BadInput(
                f"this is a collection of data sets: {', '.join(map(str, dataset))}",
                advice='Give one of them, such as dataset["train"].',
            )
        if not (hasattr(dataset, "__getitem__") or isinstance(dataset, Iterable)):
            raise BadInput(
                f"{type(dataset).__name__} is not a collection of images",
                advice="Give a path, a torch.utils.data.Dataset or a Hugging Face Dataset; arrays and tensors go to "
                "PrivateImages.from_arrays.",
            )
        self._dataset, self._selection = dataset, selection
        features = getattr(dataset, "features", None)
        self._features: Mapping[str, Any] = features if isinstance(features, Mapping) else {}
        self.classes = self._declared()

    def fingerprint(self) -> str:
        """Never the same: what an object returns cannot be known without asking it."""
        return secrets.token_hex(16)

    def records(self) -> Iterator[Record]:
        for number, row in enumerate(self._rows()):
            name = f"row {number}"
            image, label, person = self._columns(row)
            yield Record(partial(_pixels, image, name=name), _plain(label), _plain(person), name)

    def _rows(self) -> Iterator[Any]:
        with parsing("the data set raises an error when it is read", advice="Read it in a loop of your own first."):
            if hasattr(self._dataset, "__len__") and hasattr(self._dataset, "__getitem__"):
                yield from (self._dataset[number] for number in range(len(self._dataset)))
            else:
                yield from self._dataset

    def _columns(self, row: Any) -> tuple[Any, Any, Any]:
        """Image, label and person of a row."""
        wanted = self._selection
        if isinstance(row, Mapping):
            image = self._named(row, wanted.image_column, ("image", "img", "pixels"), "Image")
            label = self._named(row, wanted.label_column, ("label", "labels"), "ClassLabel") if wanted.labelled else ""
            person = None if wanted.person_column is None else self._named(row, wanted.person_column, (), "")
            return row[image], row[label] if label else None, None if person is None else row[person]
        row = row if isinstance(row, tuple | list) else (row,)
        if wanted.labelled and len(row) < 2:
            raise BadInput(
                "the rows of the data set have no label",
                advice="Return (image, label), or read without labels (labelled=False).",
            )
        return row[0], row[1] if wanted.labelled else None, None

    def _named(self, row: Mapping[str, Any], given: str | None, usual: tuple[str, ...], feature: str) -> str:
        """The column that was named, the one of a usual name, or the only one of its kind."""
        names = [given] if given is not None else [name for name in usual if name in row][:1]
        names = names or [name for name, kind in self._features.items() if type(kind).__name__ == feature]
        if len(names) != 1 or names[0] not in row:
            raise BadInput(
                f"the data set has no single column {given or usual[0]!r}",
                advice=f"Name the columns with image_column, label_column, person_column. Columns: {', '.join(row)}.",
            )
        return names[0]

    def _declared(self) -> tuple[str, ...] | None:
        if self._features:
            kinds = [
                kind
                for name, kind in self._features.items()
                if type(kind).__name__ == "ClassLabel" and self._selection.label_column in (None, name)
            ]
            return tuple(kinds[0].names) if len(kinds) == 1 else None
        holder = self._dataset
        while not hasattr(holder, "classes") and hasattr(holder, "dataset"):
            holder = holder.dataset  # of a torch.utils.data.Subset
        found = getattr(holder, "classes", None)
        return tuple(map(str, found)) if isinstance(found, list | tuple) and found else None


def array_of(values: Any) -> np.ndarray:
    """A NumPy array of an array or a tensor on any device.

    >>> array_of([1, 2])
    array([1, 2])
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    return np.asarray(values)


def _pixels(image: Any, transform: ImageTransform, *, name: str) -> np.ndarray:
    if isinstance(image, Image.Image):
        with parsing("an image cannot be decoded", advice="Repair or remove it.", name=name):
            return transform.convert(image)
    array = array_of(image)
    if np.issubdtype(array.dtype, np.floating) and not ((array >= 0) & (array <= 1)).all():
        raise BadInput("floating pixels must lie between 0 and 1, and some do not", advice=OUT_OF_RANGE, detail=name)
    return transform.fit(array, name=name)


def _plain(value: Any) -> Any:
    """A label or person as a whole number or a string; anything else as it is, which no label set has."""
    if value is None or isinstance(value, int | str):
        return value
    array = array_of(value)
    return array.item() if array.ndim == 0 and array.dtype.kind in "iub" else str(value)
