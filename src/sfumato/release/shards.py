"""Samples that several processes draw together: one parquet file for each of them, and one card."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from sfumato.files import new_folder, write_json
from sfumato.privacy.distributed import World
from sfumato.release.export import ROWS, check_export, write_parquet_file
from sfumato.release.release import Release
from sfumato.release.synthetic import SyntheticImages

Report = Callable[[str, int, int], None]
"""What is done, how many of how many."""


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
    progress: Report | None = None,
) -> Path:
    """Draw ``count`` images and write them into a new folder, all or nothing; called in every process.

    Process r of n draws every n-th image from number r on, with a generator of its own, and writes them to
    ``images/train-0000r-of-0000n.parquet``. The folder must be seen by all processes. It gets its name when all files
    are written. A process holds a thousand images at a time, whatever their number.

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
        progress: Receives how many images this process has drawn.
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
        if not (temporary / "images").is_dir():
            raise FileNotFoundError(
                f"process {world.rank} does not see the folder {path} of the first one: processes of several machines "
                "need an --out on a disk that all of them share"
            )
        own = range(world.rank, count, world.size)
        rounds = range(0, -(-count // world.size), ROWS)  # as many in every process

        def parts() -> Iterator[SyntheticImages]:
            for start in rounds:
                part = np.asarray(own[start : start + ROWS], dtype=np.int64)
                if len(part):
                    wanted = part % len(release.classes) if labels is None else labels[part]
                    yield release.sample(
                        len(part),
                        labels=None if proportions and labels is None else wanted,
                        proportions=proportions,
                        seed=None if seed is None else _own_seed(seed, world.rank, start),
                        device=device,
                    )
                # A process that has ended is noticed here, and a slow one is waited for here and not for hours.
                world.wait()
                if progress is not None:
                    progress("drawing images", min(start + ROWS, len(own)), len(own))

        name = f"train-{world.rank:05d}-of-{world.size:05d}.parquet"
        write_parquet_file(temporary / "images" / name, release.card, parts())
        world.wait()
        if world.first:
            write_json(temporary / "card.json", release.card.to_json(), private=False)
    world.wait()
    return path


def _own_seed(seed: int, rank: int, start: int) -> int:
    """Equal seeds would draw the same images in every process, and in every part."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {rank} {start}".encode(), digest_size=7).digest(), "little")
