"""Two walks: what a training enters from the command to its release, and what one gradient step enters.

    python docs/tools/walks.py

The first walk lists modules in the order in which ``sfumato train`` first calls a function of theirs, and counts how
often the package changes along the list. The second counts the modules that one private step of DP-VAE enters.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import sfumato

ROOT = str(Path(sfumato.__file__).parent) + "/"


def entered(act: Callable[[], Any]) -> list[str]:
    """The modules of the package whose functions are called during ``act``, in order of the first call."""
    found: dict[str, None] = {}

    def watch(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        # The body of a module is an import, and no step of the walk.
        if event == "call" and name.startswith(ROOT) and frame.f_code.co_name != "<module>":
            found.setdefault(name.removeprefix(ROOT))

    sys.setprofile(watch)
    try:
        act()
    finally:
        sys.setprofile(None)
    return list(found)


def train(method: str, *settings: str) -> None:
    """The command, on a few random images."""
    from sfumato.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.npz")
        np.savez(data, images=np.zeros((24, 8, 8), np.uint8), labels=np.arange(24) % 2)
        words = [f"--method={method}", "--classes=2", "--epsilon=5", "--device=cpu", f"--out={folder}/run", "--quiet"]
        sys.argv = ["sfumato", "train", str(data), *words, *(f"--set={one}" for one in settings)]
        with suppress(SystemExit), redirect_stdout(StringIO()):
            main()


def step_modules() -> list[str]:
    """The modules that a private step enters: from the loss that is handed in to the noisy gradient."""
    from sfumato.privacy.step import Step

    found: list[str] = []
    plain = Step.noisy_gradient

    def watched(self: Step, *arguments: Any, **options: Any) -> Any:
        result: list[Any] = []
        walked = entered(lambda: result.append(plain(self, *arguments, **options)))
        found[:] = found or walked
        return result[0]

    Step.noisy_gradient = watched  # type: ignore[method-assign]
    try:
        train("dp-vae", "steps=2", "width=2")
    finally:
        Step.noisy_gradient = plain  # type: ignore[method-assign]
    return found


def main() -> None:
    """Print both walks."""
    train("dp-merf", "iterations=2", "features=8")  # once before, so that imports are done
    walk = entered(lambda: train("dp-merf", "iterations=2", "features=8"))
    packages = [name.split("/")[0] for name in walk]
    changes = sum(one != other for one, other in pairwise(packages))
    print(f"train: {len(walk)} modules, {changes} changes of package\n  {' '.join(walk)}")
    step = step_modules()
    print(f"one gradient step: {len(step)} modules\n  {' '.join(step)}")


if __name__ == "__main__":
    main()
