"""Synthetic images are a data set: for a DataLoader, for Hugging Face, on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from release.cards import certified
from sfumato.data import PublicImages
from sfumato.release import SyntheticImages


def drawn(channels: int = 1) -> SyntheticImages:
    card = certified(shape=(channels, 8, 8), classes=("cat", "dog"))
    images = np.random.default_rng(0).integers(0, 256, (20, *card.shape), dtype=np.uint8)
    return SyntheticImages(images, np.arange(20) % 2, card)


def test_a_loader_gives_batches_of_images_and_labels() -> None:
    found = drawn()
    batches = list(DataLoader(found, batch_size=8))
    assert [len(labels) for _, labels in batches] == [8, 8, 4]
    images = torch.cat([images for images, _ in batches])
    assert torch.equal((images * 255).round().to(torch.uint8), torch.from_numpy(found.images))
    assert torch.cat([labels for _, labels in batches]).tolist() == found.labels.tolist()
    both = found.to_torch()
    assert torch.equal(both.tensors[0], images) and both.tensors[1].dtype == torch.int64
    assert found[-1][1] == 1
    with pytest.raises(IndexError):
        found[20]


def test_two_arrays_are_unpacked_and_its_name_says_what_is_promised(tmp_path: Path) -> None:
    found = drawn()
    images, labels = found
    assert images is found.images and labels is found.labels
    assert repr(found) == "SyntheticImages(20 of 1×8×8, 2 classes, certified)"
    assert len(PublicImages.read(found.save(tmp_path / "out"))) == 20


@pytest.mark.long
def test_hugging_face_reads_both_ways(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for channels in (1, 3):
        found = drawn(channels)
        table = found.to_hf()
        assert table.features["label"].names == ["cat", "dog"] and table.info.description == found.card.sentence
        first = np.asarray(table[3]["image"])
        assert np.array_equal(first if channels == 1 else np.moveaxis(first, -1, 0), np.squeeze(found.images[3]))
        place = tmp_path / str(channels)
        table.save_to_disk(place / "saved")
        assert np.array_equal(PublicImages.read(place / "saved").pixels, found.images)
        found.save(place / "folder")
        read = datasets.load_dataset(
            "imagefolder", data_dir=str(place / "folder" / "images"), cache_dir=place / "cache"
        )
        assert read["train"].features["label"].names == ["cat", "dog"] and len(read["train"]) == 20
