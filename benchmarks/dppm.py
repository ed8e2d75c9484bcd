"""A private step of DPPM against a plain one: the same rows, the same loss, in turn, in one process.

    python benchmarks/dppm.py [--device cuda] [--records 60000] [--set draws=4 --set sampling_rate=0.02]

Random images of 28×28; medians of 15 rounds, of which the first five choose algorithms. How good the images are that
DPPM's samplers make is measured by ``sfumato experiment run experiments/methods.toml --only dppm-samplers``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from sfumato.methods.dppm import DPPM
from sfumato.networks.score import ScoreNetwork
from sfumato.privacy.gradients import Batch, clipped_sum
from sfumato.privacy.randomness import Randomness

ROUNDS, WARM_UP = 15, 5
SHAPE, CLASSES = (1, 28, 28), 10


def median_seconds(ways: dict[str, Callable[[], object]], device: str) -> dict[str, float]:
    """Every way in turn, so that what else the machine does meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            synchronise(device)
            start = time.perf_counter()
            way()
            synchronise(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times[WARM_UP:]) for name, times in seconds.items()}


def synchronise(device: str) -> None:
    if "cuda" in device:
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    method = DPPM.configured(dict(text.split("=", 1) for text in options.set))
    units = round(method.sampling_rate * options.records)
    model = method.build(SHAPE, CLASSES).to(options.device).generator
    if not isinstance(model, ScoreNetwork):
        raise SystemExit("the private step is that of the certified variant")
    ids = torch.arange(units * method.draws, device=options.device) // method.draws
    draws = Randomness(0).draws(ids, torch.arange(len(ids), device=options.device) % method.draws, "benchmark")
    images = torch.rand(units, *SHAPE, device=options.device).repeat_interleave(method.draws, 0)
    labels = torch.randint(CLASSES, (units,), device=options.device).repeat_interleave(method.draws)
    weights = torch.full((units, method.draws), 1 / method.draws, device=options.device)
    batch = Batch(images, labels, draws, weights)

    def plain() -> None:
        method.loss(model, images, labels, draws).mean().backward()
        model.zero_grad(set_to_none=True)

    ways = {"plain": plain, "private": lambda: clipped_sum(model, method.loss, batch, method.clip_norm)}
    seconds = median_seconds(ways, options.device)
    print("| device | records | draws | plain ms | private ms | private ÷ plain |\n" + "|---" * 6 + "|")
    numbers = f"{1000 * seconds['plain']:.1f} | {1000 * seconds['private']:.1f}"
    ratio = seconds["private"] / seconds["plain"]
    print(f"| {options.device} | {units} | {method.draws} | {numbers} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
