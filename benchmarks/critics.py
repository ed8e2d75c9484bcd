"""Critics of shards side by side: their convolutions in groups, against products of patches, in one run.

    python benchmarks/critics.py [--device cuda] [--shards 300] [--rows 20] [--rounds 5]

One step of GS-WGAN: five updates of every critic on its own images, and the gradient of each with respect to its fakes.
Medians, and the relative difference of the two results.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor, nn

from sfumato.methods.gs_wgan import ShardedCritics
from sfumato.networks import generators as networks


def visit(critics: ShardedCritics, images: Tensor, fakes: Tensor, labels: Tensor, mixes: Tensor) -> Tensor:
    shares = torch.full(labels.shape, 1 / labels.shape[1], device=labels.device)
    moved = critics.trained(images.new_zeros(len(images), len(critics)), images, fakes, labels, shares, mixes)
    return critics.image_gradients(moved, fakes, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shards", type=int, default=300)
    parser.add_argument("--rows", type=int, default=20, help="images of each shard")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    size = (options.shards, options.rows)
    images, fakes = (torch.rand(*size, 1, 28, 28, device=options.device) for _ in range(2))
    labels, mixes = torch.randint(10, size, device=options.device), torch.rand(*size, 5, device=options.device)
    critics = ShardedCritics(
        networks.Critic((1, 28, 28), 10).to(options.device), steps=5, learning_rate=0.004, gradient_penalty=10.0
    )
    by_patches, seconds, found = networks.by_patches, {}, {}
    for name, way in (("groups", nn.Conv2d.__call__), ("patches", by_patches)):
        # The network takes patches on a GPU and groups elsewhere; here each way has its turn on any device.
        networks.convolution_for = lambda images, way=way: way
        times = []
        for _ in range(1 + options.rounds):
            start = time.perf_counter()
            found[name] = visit(critics, images, fakes, labels, mixes)
            if "cuda" in options.device:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        seconds[name] = statistics.median(times[1:])  # the first one chooses algorithms
    apart = float((found["groups"] - found["patches"]).norm() / found["groups"].norm())
    print(f"| device | shards | groups s | patches s | groups ÷ patches | apart |\n{'|---' * 6}|")
    ratio = seconds["groups"] / seconds["patches"]
    times = f"{seconds['groups']:.3f} | {seconds['patches']:.3f} | {ratio:.2f}"
    print(f"| {options.device} | {options.shards} | {times} | {apart:.1e} |")


if __name__ == "__main__":
    main()
