"""Numbers in sentences that follow from the accountant, a network or a result file: they are computed and compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sfumato import DPPM, PRIVAE, DPLFlow
from sfumato.experiments.datasets import datasets
from sfumato.networks.samplers import hamiltonian, heun
from sfumato.privacy import Block, Budget, SubsampledGaussian
from sfumato.privacy.accounting import calibrate, epsilon

DOCS = Path(__file__).parents[2] / "docs"
DELTA = 1e-5


def event(noise: float, rate: float = 1.0, steps: int = 1) -> SubsampledGaussian:
    return SubsampledGaussian("train", (Block("sum", noise),), sampling_rate=rate, steps=steps)


def pitfalls() -> Iterator[str]:
    (whole,) = calibrate([event(1.0)], Budget(1.0, DELTA))
    group = epsilon([event(whole.noise_multiplier / 20)], DELTA)
    yield f"ε {group:.1f} for a printed 1 at 20 images in one noisy sum"
    together = SubsampledGaussian("step", (Block("a", 0.956), Block("b", 0.956)), sampling_rate=0.02, steps=1000)
    apart = [event(0.956, 0.02, 1000), event(0.956, 0.02, 1000)]
    yield f"ε {epsilon([together], DELTA):.2f} printed as {epsilon(apart, DELTA):.2f}"


def printed_epsilons() -> Iterator[str]:
    yield f"4.5 gives ε = {epsilon([event(4.5, 0.1, 300)], DELTA):.2f} rather than 1"
    spent = [DPLFlow.as_in_the_paper(claimed_epsilon=claimed).plan(Budget(20.0, DELTA)).epsilon for claimed in (10, 1)]
    yield f"accounts for one clip of C: ε = {spent[0]:.2f} and {spent[1]:.2f}"
    ten, three = (PRIVAE.as_in_the_paper(claimed_epsilon=claimed).plan(Budget(20.0, DELTA)) for claimed in (10, 3))
    yield f"{ten.epsilon:.1f} for a claimed 10, and {three.epsilon:.2f} for a claimed 3"
    stored = json.loads((DOCS / "results" / "case-studies.json").read_text(encoding="utf-8"))["case_studies"]
    found = {one["name"]: f"{one['measured']['epsilon']:.2f}" for one in stored}
    clips, shuffled = found["DP-LFlow's script, two clips"], found["DP-LFlow's script, shuffling"]
    yield f"the likelihood ratio finds {clips} for two clips and {shuffled} for shuffling"
    yield f"A claimed ε of 1 is at least {found['DP²-VAE, published']} after a single decoder step"
    yield f"A claimed 1 is at least {found['DPAF, published']} in one step"
    yield f"A claimed 1 is at least {found['DPPM, published']}, found from the released network alone"


def dp_lflow_claims() -> Iterator[str]:
    once = [epsilon([event(noise, 0.1, 300)], DELTA) for noise in (1.25, 4.5)]
    yield f"1.25 gives {once[0]:.1f} and 4.5 gives {once[1]:.2f}"


def dp_lflow_tuning() -> Iterator[str]:
    found = []
    for rate, steps in ((0.1, 300), (0.1, 100), (0.05, 200)):
        plan = replace(DPLFlow(), sampling_rate=rate, steps=steps).plan(Budget(1.0, DELTA))
        noise = plan.event("training").noise_multiplier
        found.append(f"{steps * (rate / noise) ** 2:.3f}".lstrip("0"))
    yield f"{found[0]} for 300 steps at rate .1, {found[1]} for 100 and {found[2]} for 200 at rate .05"


def dpaf_noise() -> Iterator[str]:
    sums: dict[float, list[str]] = {}
    (joint,) = calibrate([event(1.0, 0.02, 1000)], Budget(10.0, DELTA))
    yield f"gives the joint noise multiplier {joint.noise_multiplier:.3f}, whatever the share"
    for budget in (10.0, 1.0):
        for rate, steps in ((1.0, 1), (0.1, 300), (0.02, 1000)):
            (one,) = calibrate([event(1.0, rate, steps)], Budget(budget, DELTA))
            sums.setdefault(budget, []).append(f"{one.noise_multiplier / (rate * steps**0.5):.2f}")
    first, second, third = sums[10.0]
    yield (
        f"At ε = 10 this is {first} for one query to all units, {second} for q = 0.1 and T = 300, and {third} for "
        f"q = 0.02 and T = 1000; at ε = 1 it is {sums[1.0][0]}, {sums[1.0][1]} and {sums[1.0][2]}."
    )


def dppm_networks() -> Iterator[str]:
    model = DPPM().build((1, 28, 28), 10)
    parts = {type(part).__name__: part for part in model.children()}
    count = {name: sum(weight.numel() for weight in part.parameters()) for name, part in parts.items()}
    yield f"{count['ScoreNetwork'] / 1e6:.2f} M parameters at 28×28"
    yield f"{count['LabelFilter']:,} parameters"
    calls = {"heun": 0, "hamiltonian": 0}

    def counted(name: str) -> Callable[[Tensor, Tensor], Tensor]:
        def field(images: Tensor, sigma: Tensor) -> Tensor:
            calls[name] += 1
            return images

        return field

    start = torch.zeros(1, 1, 2, 2)
    heun(counted("heun"), start, [float(level) for level in range(DPPM().sampling_steps, 0, -1)])
    hamiltonian(
        counted("hamiltonian"),
        start,
        [float(level) for level in range(20, 0, -1)],
        leapfrog_steps=DPPM().leapfrog_steps,
        step_size=0.5,
        momentum_distribution="gaussian",
        metropolis=True,
    )
    yield (
        f"{calls['heun']} network evaluations for {DPPM().sampling_steps} levels, where Hamiltonian dynamics with 20 "
        f"levels takes {calls['hamiltonian']}"
    )


def faces() -> Iterator[str]:
    known = datasets()
    gender, large = known["celeba-gender-64"], known["celeba-gender-128"]
    trained, tested = re.findall(r"\d+", gender.split)
    yield f"{gender.records:,} training images of {trained} persons and 2,477 test images of {tested} others"
    yield f"{known['celeba-hair-64'].records:,} of the training images have black, blond or brown hair"
    yield f"{large.records:,} training images of {re.findall('[0-9]+', large.split)[0]} persons"


SENTENCES: dict[str, Callable[[], Iterator[str]]] = {
    "explanation/pitfalls.md": pitfalls,
    "how-to/reproduce.md": faces,
    "explanation/five-printed-epsilons.md": printed_epsilons,
    "reference/methods/dp-lflow.md": dp_lflow_claims,
    "reference/methods/dpaf.md": dpaf_noise,
    "reference/methods/dppm.md": dppm_networks,
    "results/methods/dp-lflow.md": dp_lflow_tuning,
}


@pytest.mark.parametrize("page", SENTENCES)
def test_a_number_in_a_sentence_is_what_is_computed(page: str) -> None:
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    for sentence in SENTENCES[page]():
        assert sentence in text
