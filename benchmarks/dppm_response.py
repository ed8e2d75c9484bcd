"""Does DPPM's loss depend on its randomised response? Learning curves of both lines of loss (7) at several ε.

    python benchmarks/dppm_response.py --out RESULT.json

Trains the score network of ``dppm-published`` on drawn digits and measures the denoising error on other drawn digits,
at fixed noise levels and with the same noise every time. The second line of the loss is what the paper trains; in
expectation it does not contain the response, so its curves should agree at every ε. The first line, which the paper
says is equal to it, is the control: its minimum is the score times a factor that depends on ε.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor

from sfumato.data.digits import draw_digits
from sfumato.methods.published.dppm import DPPMPublished
from sfumato.networks.score import RefineNet
from sfumato.training.optimisation import set_learning_rate, warmup_cosine_decay

SIGMAS = (0.2, 0.5, 1.0, 2.0)
EPSILONS = (10.0, 1.0, 0.1)
TEST = 64


def digits(count: int, seed: int, size: int) -> tuple[Tensor, Tensor]:
    drawn = draw_digits(count, seed=seed)
    images = torch.from_numpy(drawn.pixels).float() / 127.5 - 1.0
    return torch.nn.functional.adaptive_avg_pool2d(images, size), torch.from_numpy(drawn.labels)


@torch.no_grad()
def errors(model: RefineNet, images: Tensor, labels: Tensor) -> list[float]:
    """The mean squared error of the clean estimate at every level."""
    found = []
    for sigma in SIGMAS:
        noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
        level = torch.full((len(images),), sigma)
        found.append(float((model.denoise(images + sigma * noise, level, labels) - images).square().mean()))
    return found


def curve(method: DPPMPublished, arguments: argparse.Namespace, seed: int) -> list[dict[str, object]]:
    """Errors after equal parts of the training; the same initial weights for the same seed."""
    images, labels = digits(arguments.records, 1, arguments.size)
    test_images, test_labels = digits(TEST, 2, arguments.size)
    torch.manual_seed(seed)
    model = method.build((1, arguments.size, arguments.size), 10)
    optimizer = torch.optim.Adam(model.parameters())
    every, points = max(1, method.iterations // arguments.points), []
    for number in range(method.iterations):
        set_learning_rate(optimizer, method.learning_rate * warmup_cosine_decay(number / method.iterations))
        rows = torch.randint(len(images), (method.batch_size,))
        optimizer.zero_grad()
        method.loss(model, images[rows], labels[rows]).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (number + 1) % every == 0:
            points.append({"iterations": number + 1, "errors": errors(model, test_images, test_labels)})
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--size", type=int, default=14)
    parser.add_argument("--records", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--points", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    curves = []
    for line in ("second", "first"):
        for epsilon in EPSILONS:
            for seed in range(arguments.seeds):
                method = DPPMPublished(
                    width=arguments.width,
                    iterations=arguments.iterations,
                    batch_size=32,
                    loss_line=line,
                    response_epsilon=epsilon,
                )
                started = time.process_time()
                points = curve(method, arguments, seed)
                seconds = round(time.process_time() - started, 1)
                curves.append({"line": line, "epsilon": epsilon, "seed": seed, "points": points, "seconds": seconds})
                last = "  ".join(f"{error:.4f}" for error in points[-1]["errors"])  # type: ignore[attr-defined]
                print(f"{line} line, ε {epsilon:g}, seed {seed}: {last}  ({seconds:g} processor seconds)", flush=True)
    if arguments.out:
        settings = {key: value for key, value in vars(arguments).items() if key != "out"}
        arguments.out.write_text(
            json.dumps({"settings": settings, "sigmas": SIGMAS, "curves": curves}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
