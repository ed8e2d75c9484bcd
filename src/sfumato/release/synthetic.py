"""Synthetic images together with the card of the release that they were drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sfumato.release.card import Card

if TYPE_CHECKING:
    from sfumato.options import ExportFormat


@dataclass(frozen=True, eq=False)
class SyntheticImages:
    """Images drawn from a release. They carry its card, so that the guarantee goes wherever they go.

    ``images, labels = release.sample(100)`` unpacks the two arrays, and ``synthetic[3]`` is an image in 0..1 with its
    label, so that ``torch.utils.data.DataLoader(synthetic)`` gives batches as of any other data set.

    Attributes:
        images: Pixels, ``uint8 [N, C, H, W]``.
        labels: Class numbers, ``int64 [N]``.
        card: The card of the release, which also names the classes.
    """

    images: np.ndarray
    labels: np.ndarray
    card: Card

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[1] not in (1, 3):
            raise ValueError(f"images must be uint8 [N, 1 or 3, H, W], not {self.images.dtype} {self.images.shape}")
        if self.labels.shape != (len(self.images),) or not np.issubdtype(self.labels.dtype, np.integer):
            raise ValueError("labels must be one whole number for each image")
        if self.images.shape[1:] != self.card.shape:
            raise ValueError(f"the card is that of images {self.card.shape}, not {self.images.shape[1:]}")
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise ValueError(f"labels must be numbers 0 to {len(self.classes) - 1}, one for each class")

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class, in the order of the labels."""
        return self.card.classes

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        """One image, a float tensor ``[C, H, W]`` in 0..1, and its class number."""
        return torch.from_numpy(np.array(self.images[row])).float() / 255, int(self.labels[row])

    def __iter__(self) -> Iterator[np.ndarray]:
        """Iterate over the two arrays, not over the images: ``images, labels = synthetic``."""
        return iter((self.images, self.labels))

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.images.shape[1:]))
        return f"SyntheticImages({len(self):,} of {shape}, {len(self.classes)} classes, {self.card.guarantee})"

    def to_torch(self) -> TensorDataset:
        """Images ``[N, C, H, W]`` in 0..1 and labels, as one ``TensorDataset``, for training that fits into memory."""
        labels = torch.from_numpy(np.asarray(self.labels, dtype=np.int64))
        return TensorDataset(torch.from_numpy(self.images).float() / 255, labels)

    def to_hf(self) -> Any:
        """A Hugging Face ``Dataset`` with the columns ``image`` and ``label``; its description has the guarantee."""
        try:
            import datasets
        except ImportError:
            raise ImportError("to_hf() needs the package datasets: pip install datasets") from None
        features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=list(self.classes)))
        pictures = [image[0] if len(image) == 1 else np.moveaxis(image, 0, -1) for image in self.images]
        rows = {"image": pictures, "label": self.labels.tolist()}
        return datasets.Dataset.from_dict(
            rows, features=features, info=datasets.DatasetInfo(description=self.card.sentence, features=features)
        )

    def save(self, path: str | Path, *, format: ExportFormat = "folder") -> Path:
        """Write the images and their card into a new folder (``sfumato.release.export``).

        ``load_dataset("imagefolder", data_dir=path / "images")`` of Hugging Face reads what "folder" writes.
        """
        from sfumato.release.export import export

        return export(self, path, format=format)
