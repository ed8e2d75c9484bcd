"""Measure what a record costs in a step of every method on one CPU core, and write it to ``costs.toml``.

    OMP_NUM_THREADS=1 python experiments/method_costs.py

Every method with its default settings is profiled on random images of 28×28 grey pixels (``training.profiling``),
scaled to 60,000 of them, and its seconds are divided by the records that all steps process. Nothing else should run
meanwhile.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from sfumato.planning.costs import costs, record_steps
from sfumato.methods import find
from sfumato.training.profiling import rehearse

COSTS = Path(__file__).parents[1] / "src" / "sfumato" / "planning" / "costs.toml"
IMAGES = 60_000


def main() -> None:
    """All methods but the published forms, which read the records themselves, and those with shards.

    The few records of a profile leave most shards empty, so that its time does not grow with them.
    """
    torch.set_num_threads(1)
    text = COSTS.read_text(encoding="utf-8")
    for name in costs()["methods"]:
        method = find(name)()
        if method.raw_access or any(event.shards for event in method.queries()):
            continue
        work = rehearse(method, shape=(1, 28, 28), classes=10, images=IMAGES)
        each = work.seconds / record_steps(method, IMAGES)
        print(f"{name}: {work.seconds:.0f} s, {each:.2g} s for a record", flush=True)
        text = re.sub(rf"^({name} = {{ cpu = )[\d.e-]+", rf"\g<1>{each:.2g}", text, flags=re.MULTILINE)
    COSTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
