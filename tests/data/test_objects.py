"""Data sets that are Python objects: of torch, of torchvision's kind, of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import IterableDataset, Subset, TensorDataset

from data.samples import CLASSES, pictures
from sfumato.data import BadInput, PrivateImages, PublicImages, read


class Pictures(torch.utils.data.Dataset[tuple[Image.Image, int]]):
    """As torchvision's data sets: PIL images, and ``classes``."""

    classes: ClassVar = list(CLASSES)

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        return Image.fromarray(np.moveaxis(self.images[row], 0, -1)), int(self.labels[row])


class Stream(IterableDataset[dict[str, Any]]):
    """Without a length; rows are mappings, and persons are named."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        images, labels = pictures()
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            yield {"image": image, "label": np.int64(label), "patient": f"P{row // 4}"}


def test_all_kinds_hold_the_same_images() -> None:
    images, labels = pictures()
    tensors = torch.from_numpy(images), torch.from_numpy(labels)
    scaled = TensorDataset(tensors[0].float() / 255, tensors[1])
    for dataset in (Pictures(images, labels), TensorDataset(*tensors), scaled, Stream()):
        found = read(dataset, classes=CLASSES)
        assert np.array_equal(found.pixels, images) and np.array_equal(found.labels, labels)
        assert found.place is None
    assert read(Subset(Pictures(images, labels), [2, 5])).classes == CLASSES
    assert read(Stream(), classes=3, person_column="patient").persons.tolist() == [n // 4 for n in range(12)]  # type: ignore[union-attr]
    assert read(Pictures(images, labels), size=4, colour="grey").pixels.shape == (12, 1, 4, 4)
    assert len(PublicImages.read(TensorDataset(*tensors))) == 12


def test_what_cannot_be_read_is_said_without_naming_rows() -> None:
    images, labels = pictures()
    pixels, numbers = torch.from_numpy(images).float() / 255, torch.from_numpy(labels)
    mixed = [(images[0], 0), (images[1][:, :4], 1)]

    class Broken(Pictures):
        def __getitem__(self, row: int) -> tuple[Image.Image, int]:
            raise RuntimeError("Ada Lovelace's scan is damaged")

    for dataset, options, said in (
        (TensorDataset(2 * pixels - 1, numbers), {"classes": 3}, r"Normalize transform"),
        (TensorDataset(pixels, numbers), {}, "label set is public"),
        (TensorDataset(pixels), {"classes": 3}, "have no label"),
        (TensorDataset(pixels, numbers + 1), {"classes": 3}, "not in the declared label set"),
        ({"train": 0, "test": 1}, {}, "train, test"),
        (7, {}, "int is not a collection"),
        (mixed, {"classes": 3}, "differ in size"),
        (Stream(), {"classes": 3, "image_column": "scan"}, "no single column 'scan'"),
        (Broken(images, labels), {}, "raises an error"),
    ):
        with pytest.raises(BadInput, match=said) as caught:
            read(dataset, **options)  # type: ignore[arg-type]
        assert "row 0" not in str(caught.value) and "Ada" not in str(caught.value)
        assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_tensors_are_arrays() -> None:
    images, labels = (torch.from_numpy(values) for values in pictures())
    private = PrivateImages.from_arrays(images.float() / 255, labels, classes=CLASSES)
    assert private.shape == (3, 8, 8)
    with pytest.raises(ValueError, match="between 0 and 1"):
        PrivateImages.from_arrays(images.float(), labels, classes=CLASSES)


@pytest.mark.long
def test_a_hugging_face_data_set() -> None:
    datasets = pytest.importorskip("datasets")
    images, labels = pictures()
    features = datasets.Features(scan=datasets.Image(), finding=datasets.ClassLabel(names=list(CLASSES)))
    rows = {"scan": [np.moveaxis(image, 0, -1) for image in images], "finding": labels.tolist()}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    for one in (dataset, dataset.to_iterable_dataset()):
        found = read(one)
        assert found.classes == CLASSES and np.array_equal(found.pixels, images)
        assert np.array_equal(found.labels, labels)
    with pytest.raises(BadInput, match="train"):
        read(datasets.DatasetDict(train=dataset))
