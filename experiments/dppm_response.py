"""What DPPM's randomised response changes: score networks trained by both lines of its loss (7) at several ε.

    OMP_NUM_THREADS=1 python experiments/dppm_response.py

Writes ``docs/results/dppm-response.json``: errors of denoising images that were not trained on. Everything but the
response is the same in all trainings: images, first weights, batches, noise and projections. Trained with vʳ = v, which
is plain sliced score matching, is the control of the second line. The first line learns the score times a known
constant; it is the control that shows that the measurement sees a response which matters. Drawn digits of 14×14, so
that no file of data is needed.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from sfumato.data.digits import draw_digits
from sfumato.experiments.results import DataUsed, Measured, ResultRow, ResultSet, provenance
from sfumato.methods.published.dppm import DPPMPublished
from sfumato.networks.pixels import per_row
from sfumato.networks.score import RefineNet
from sfumato.training.optimisation import set_learning_rate, warmup_cosine_decay

RESULT = Path(__file__).parents[1] / "docs" / "results" / "dppm-response.json"
SIGMAS = (0.5, 1.0, 2.0)
CHECKPOINTS = (50, 100, 200)
RECORDS, HELD_OUT, BATCH = 4000, 500, 32
NO_RESPONSE = 1e6  # an ε at which vʳ is v


@cache
def digits(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Drawn digits of 14×14 in −1..1, with their labels."""
    found = draw_digits(count, seed=seed)
    pixels = torch.as_tensor(found.pixels).float() / 127.5 - 1.0
    return torch.nn.functional.avg_pool2d(pixels, 2), torch.as_tensor(found.labels).long()


@torch.no_grad()
def denoising_error(model: RefineNet, images: Tensor, labels: Tensor) -> float:
    """The mean squared error of a pixel, averaged over noise levels."""
    generator = torch.Generator().manual_seed(2)
    errors = []
    for sigma in SIGMAS:
        level = torch.full((len(images),), sigma)
        noisy = images + sigma * torch.randn(images.shape, generator=generator)
        denoised = noisy + per_row(level).square() * model.score(noisy, level, labels)
        errors.append((denoised - images).square().mean().item())
    return math.fsum(errors) / len(errors)


def errors(method: DPPMPublished) -> dict[str, Measured]:
    """The errors after each number of iterations of one training."""
    (images, labels), held_out = digits(RECORDS, seed=0), digits(HELD_OUT, seed=1)
    torch.manual_seed(0)
    model = method.build((1, 14, 14), 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=method.learning_rate)
    found = {}
    for number in range(CHECKPOINTS[-1]):
        torch.manual_seed(number)
        rows = torch.randint(RECORDS, (BATCH,))
        set_learning_rate(optimizer, method.learning_rate * warmup_cosine_decay(number / CHECKPOINTS[-1]))
        optimizer.zero_grad(set_to_none=True)
        method.loss(model, images[rows], labels[rows]).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if number + 1 in CHECKPOINTS:
            error = denoising_error(model, *held_out)
            found[f"error after {number + 1}"] = Measured(error, None, 1)
    return found


def row(line: str, epsilon: float) -> ResultRow:
    """One training."""
    method = DPPMPublished(variant="published", width=8, loss_line=line, response_epsilon=epsilon)
    name = "no response" if epsilon == NO_RESPONSE else f"response at ε {epsilon:g}"
    return ResultRow(
        setting=f"{line} line, {name}",
        data=DataUsed("digits", "drawn", records=RECORDS, test_records=HELD_OUT),
        protocol="denoising",
        epsilon=None,
        delta=1e-5,
        unit="image",
        method=method.name,
        variant="published",
        values=errors(method),
    )


if __name__ == "__main__":
    made = provenance("python experiments/dppm_response.py", "cpu")
    found = [row("second", epsilon) for epsilon in (NO_RESPONSE, 10.0, 1.0, 0.1)]
    found += [row("first", epsilon) for epsilon in (10.0, 1.0, 0.1)]
    title = "DPPM's loss at several ε: errors of denoising held-out digits"
    ResultSet("dppm-response", title, "full", made, tuple(found)).save(RESULT, private=False)
