"""Samples that several processes draw together: one parquet file for each of them, and one card."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from sfumato.files import new_folder, write_json
from sfumato.privacy.distributed import World
from sfumato.release.export import check_export, write_parquet_file
from sfumato.release.release import Release


def export_shards(
    release: Release,
    count: int,
    path: str | Path,
    world: World,
    *,
    labels: np.ndarray | None = None,
    proportions: bool = False,
    seed: int | None = None,
    device: str | torch.device | None = None,
    allow_no_guarantee: bool = False,
) -> Path:
    """Draw ``count`` images and write them into a new folder, all or nothing; called in every process.

    Process r of n draws every n-th image from number r on, with a generator of its own, and writes them to
    ``images/train-0000r-of-0000n.parquet``. The folder must be seen by all processes. It gets its name when all files
    are written.

    Args:
        release: The release to draw from.
        count: The number of images in all files together.
        path: The folder to write; it must be empty or absent.
        world: The processes.
        labels: The class number of each image; balanced over the classes by default.
        proportions: Draw the labels by the noisy class counts of the card instead.
        seed: Makes the images repeatable with this number of processes.
        device: By default the GPU if there is one.
        allow_no_guarantee: Images whose card says "no guarantee" are written only with this.
    """
    path = Path(path)
    if count < world.size:
        raise ValueError(f"{count} images cannot be divided over {world.size} processes; use fewer processes")
    with ExitStack() as stack:

        def begun() -> str:
            check_export(release.card, path, allow_no_guarantee=allow_no_guarantee)
            folder = stack.enter_context(new_folder(path))
            (folder / "images").mkdir()
            return str(folder)

        temporary = Path(world.from_first(begun))
        own = np.arange(count)[world.rank :: world.size]
        if labels is None and not proportions:
            labels = np.arange(count) % len(release.classes)
        drawn = release.sample(
            len(own),
            labels=None if labels is None else labels[own],
            proportions=proportions,
            seed=None if seed is None else _own_seed(seed, world.rank),
            device=device,
        )
        write_parquet_file(temporary / "images" / f"train-{world.rank:05d}-of-{world.size:05d}.parquet", drawn)
        world.wait()
        if world.first:
            write_json(temporary / "card.json", release.card.to_json(), private=False)
    world.wait()
    return path


def _own_seed(seed: int, rank: int) -> int:
    """Equal seeds would draw the same images in every process."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {rank}".encode(), digest_size=7).digest(), "little")
