"""A cache of feature statistics, by content: the same images go through the same feature network once.

A cache entry is computed from private images, so it may not leave. Only the owner can read the folder and its files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save

from sfumato.evaluation.classifiers import Progress, silent
from sfumato.evaluation.features import FeatureNetwork
from sfumato.evaluation.fidelity import FeatureStatistics, statistics
from sfumato.evaluation.running_statistics import feature_statistics
from sfumato.files import cache_folder, private_folder, write_file


def default_folder() -> Path:
    """The user's cache folder, outside every run's release."""
    return cache_folder() / "evaluation"


def content_key(pixels: np.ndarray, network: FeatureNetwork) -> str:
    """A hash of the pixels, their shape, and the network that computes their features."""
    digest = hashlib.sha256()
    digest.update(repr(("statistics 1", pixels.shape, str(pixels.dtype), network.hash, network.resize)).encode())
    for start in range(0, len(pixels), 4096):
        digest.update(np.ascontiguousarray(pixels[start : start + 4096]).data)
    return digest.hexdigest()


def cached_statistics(
    network: FeatureNetwork,
    pixels: np.ndarray,
    *,
    folder: Path | None,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
) -> FeatureStatistics:
    """Statistics of these images, from the cache in ``folder`` if they are there; ``None`` uses no cache."""
    device = torch.device(device)
    if folder is None:
        return feature_statistics(network, pixels, device=device, progress=progress)
    path = folder / f"{content_key(pixels, network)}.safetensors"
    if path.exists():
        tensors = {name: tensor.to(device) for name, tensor in load_file(path).items()}
        if "mean" not in tensors:
            return statistics(tensors["rows"])
        return FeatureStatistics(int(tensors["count"]), tensors["mean"], tensors["covariance"], tensors["rows"])
    found = feature_statistics(network, pixels, device=device, progress=progress)
    tensors = {"rows": found.rows}
    if found.count > len(found.rows):
        # Otherwise mean and covariance follow from the rows.
        tensors |= {"mean": found.mean, "covariance": found.covariance, "count": torch.tensor(found.count)}
    private_folder(folder)
    write_file(path, save({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}), private=True)
    return found
