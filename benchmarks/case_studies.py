"""Case studies: published algorithms reduced to the step that is attacked, each with a claimed ε and a measured bound.

They are self-contained simulations, as small as the flaw allows, of what the papers' algorithms do to their data.
Nothing here is a statement about the certified variants of the same methods.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import optimize

from sfumato.audit.bounds import Bound, gaussian_delta, likelihood_ratio, one_run, two_worlds
from sfumato.audit.canary import WHITE_BOX, ledger_losses
from sfumato.privacy import Block, SubsampledGaussian


@dataclass(frozen=True)
class CaseStudy:
    """The claimed ε, the measured lower bound with its threat model, and how it was measured."""

    name: str
    claimed: float
    bound: Bound
    note: str
    seconds: float

    @property
    def broken(self) -> bool:
        return self.bound.epsilon > self.claimed

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "claimed": self.claimed,
            "measured": self.bound.to_json(),
            "note": self.note,
            "above_claim": self.broken,
            "seconds": round(self.seconds, 1),
        }


def dppm(random: np.random.Generator, *, claimed: float = 1.0, canaries: int = 300, steps: int = 3000) -> CaseStudy:
    """Sliced score matching with randomised response on the projections (DPPM, algorithm 1), in one run.

    The network is one layer, s(x) = −A x, so that the gradient of loss (7) has a closed form. Randomised response
    chooses among directions that do not depend on the data, and leaves the expected gradient as it is: A becomes
    small on the span of the records and stays large elsewhere.
    """
    began = time.perf_counter()
    pixels, batch, nearest = (4 * canaries) // 5, 64, 10
    learning_rate = 0.4 * batch / pixels**2
    records = random.normal(size=(canaries, pixels))
    included = random.random(canaries) < 0.5
    members = records[included]
    matrix = np.zeros((pixels, pixels))
    keep = math.exp(claimed) / (math.exp(claimed) + nearest - 1)
    for _ in range(steps):
        rows = members[random.choice(len(members), min(batch, len(members)), replace=False)]
        directions = random.normal(size=(len(rows), pixels))
        unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
        near = np.argsort(-(unit @ unit.T), axis=1)[:, :nearest]  # the row's own direction comes first
        other = near[np.arange(len(rows)), random.integers(1, nearest, len(rows))]
        answered = directions[np.where(random.random(len(rows)) < keep, near[:, 0], other)]
        # loss (7): v_r' (−A) v_r + ½ (v' A x)², differentiated by A
        projected = ((directions @ matrix) * rows).sum(1)
        gradient = -answered.T @ answered + (directions * projected[:, None]).T @ rows
        matrix -= learning_rate * gradient / len(rows)
    scores = -((records @ matrix) * records).sum(1) / np.square(records).sum(1)
    bound = one_run(scores, included, delta=0.0, threat="holds the released network and the candidates")
    note = f"{canaries} canaries, one run of {steps} steps, pure ε as claimed; the canaries are the whole collection"
    return CaseStudy("DPPM, published", claimed, bound, note, time.perf_counter() - began)


def dp2_vae(random: np.random.Generator, *, claimed: float = 1.0, runs: int = 1000, batch: int = 128) -> CaseStudy:
    """An encoder trained on the private shard, then one noisy step of a fresh decoder (DP²-VAE, algorithms 1 and 2).

    One record, M times as bright as the others, makes the encoder keep its codes small. Then the code of every record
    vanishes, and with it every clipped gradient of the batch, not just one.
    """
    began = time.perf_counter()
    delta, pixels, clip, bright, training, learning_rate = 1e-5, 8, 1.0, 200.0, 300, 0.02
    # Theorem 3.1: (α, 2α/σ²)-RDP a step, hence ε = ρ + 2√(ρ log 1/δ) with ρ = 2/σ².
    root = math.sqrt(math.log(1 / delta) + claimed) - math.sqrt(math.log(1 / delta))
    multiplier = math.sqrt(2) / root
    scores = []
    for present in (False, True):
        shard = 0.6 + 0.1 * random.normal(size=(runs, batch, pixels))
        if present:
            shard[:, 0] = bright
        encoder, decoder = 0.3 * random.normal(size=(2, runs, pixels))
        moments = np.zeros((2, 2, runs, pixels))
        for step in range(1, training + 1):
            codes = np.einsum("rbp,rp->rb", shard, encoder) + 0.1 * random.normal(size=(runs, batch))
            error = codes[..., None] * decoder[:, None] - shard
            pull = np.einsum("rbp,rp->rb", error, decoder) + codes  # the codes' own term is the KL to the prior
            gradients = np.stack([np.einsum("rb,rbp->rp", pull, shard), np.einsum("rb,rbp->rp", codes, error)])
            # Algorithm 1 clips the gradient of the whole batch, so the brightest record dominates it.
            gradients /= np.maximum(1.0, np.linalg.norm(gradients, axis=2, keepdims=True) / clip)
            encoder, decoder = _adam(
                np.stack([encoder, decoder]), gradients, moments, step, learning_rate * (1 - step / training)
            )
        fresh = 0.3 * random.normal(size=(runs, pixels))  # stage 2 starts from a fresh decoder
        codes = np.einsum("rbp,rp->rb", shard, encoder)
        each = codes[..., None] * (codes[..., None] * fresh[:, None] - shard)
        each *= np.minimum(1.0, clip / np.maximum(1e-12, np.linalg.norm(each, axis=2)))[..., None]
        released = each.sum(1) + multiplier * clip * random.normal(size=(runs, pixels))
        scores.append(np.abs(released.sum(1)))
    bound = two_worlds(*scores, delta=delta, threat="sees the noisy decoder gradient of one step")[0]
    note = f"one shard of {batch}, one decoder step, σ by the paper's theorem 3.1; {runs} runs of each world"
    return CaseStudy("DP²-VAE, published", claimed, bound, note, time.perf_counter() - began)


def _adam(
    weights: np.ndarray, gradients: np.ndarray, moments: np.ndarray, step: int, learning_rate: float
) -> np.ndarray:
    moments[0] = 0.9 * moments[0] + 0.1 * gradients
    moments[1] = 0.999 * moments[1] + 0.001 * gradients**2
    first, second = moments[0] / (1 - 0.9**step), moments[1] / (1 - 0.999**step)
    moved: np.ndarray = weights - learning_rate * first / (np.sqrt(second) + 1e-8)
    return moved


def dpaf(random: np.random.Generator, *, claimed: float = 1.0, runs: int = 2000, batch: int = 64) -> CaseStudy:
    """One update of conv2 by the loss on the UN-noised aggregate (DPAF, lines 7 to 13), from a state set by hand.

    The layers behind the aggregate are trained by plain SGD, so nothing bounds their weights. Here the slope is so
    steep that one record decides whether the loss is zero; if it is not, every gradient reaches its clip norm.
    """
    began = time.perf_counter()
    delta, features, clip, steep = 1e-5, 8, 1.0, 40.0
    multiplier = _gaussian_multiplier(claimed, delta)
    weights = np.where(np.arange(features) % 2 == 0, 1.0, -1.0)  # of the layer behind the aggregate
    scores = []
    for present in (False, True):
        pattern = 0.1 * random.normal(size=(runs, batch - 1, features))
        images = 1.0 + pattern - (pattern @ weights)[..., None] * weights / features  # orthogonal to the weights
        if present:
            images = np.concatenate([images, np.broadcast_to(1.0 - weights, (runs, 1, features))], axis=1)
        # conv2 is the identity matrix W, its maps W x are normalised (SIN) and summed, without noise.
        spread = np.sqrt(images.var(2, keepdims=True) + 1e-5)
        maps = (images - images.mean(2, keepdims=True)) / spread
        margin = steep * (maps.sum(1) @ weights + 1.0)
        # Binary cross-entropy for "real": its derivative by the aggregate is shared by all records of the batch.
        signal = -steep / (1 + np.exp(np.clip(margin, -500, 500)))[:, None, None] * weights
        through = (signal - signal.mean(2, keepdims=True) - maps * (signal * maps).mean(2, keepdims=True)) / spread
        lengths = np.linalg.norm(through, axis=2) * np.linalg.norm(images, axis=2)  # of the outer product, dL/dW
        share = np.minimum(1.0, clip / np.maximum(1e-300, lengths))[..., None]
        total = np.einsum("rbi,rbj->rij", share * through, images)
        released = total + multiplier * clip * random.normal(size=total.shape)
        scores.append((released.sum(2) @ weights) / features)
    bound = two_worlds(*scores, delta=delta, threat="sees one noisy conv2 gradient; the state is set by hand")[0]
    note = (
        f"STATE SET BY HAND; batch {batch}, one step, σ {multiplier:.2f} for a movement of one clip; {runs} runs each"
    )
    return CaseStudy("DPAF, published", claimed, bound, note, time.perf_counter() - began)


def dp_kernel(random: np.random.Generator, *, claimed: float = 1.0, runs: int = 1000, batch: int = 16) -> CaseStudy:
    """One step of DP-Kernel (Jiang, Sun, Yu 2023): noise on the values of a kernel mean, and a gradient without any.

    The noise is drawn as a sample, which has no gradient. So the generator's gradient is a noisy number times the
    gradient of the clean divergence, in which the records stand. The attacker compares directions.
    """
    began = time.perf_counter()
    torch.manual_seed(int(random.integers(2**62)))
    delta, pixels, latent, bandwidth = 1e-5, 4, 2, 1.0
    multiplier = _gaussian_multiplier(claimed, delta)
    generator = torch.randn(latent, pixels, dtype=torch.float64).requires_grad_()

    def gradient(records: torch.Tensor, latents: torch.Tensor, noise: float) -> torch.Tensor:
        fakes = latents @ generator
        both = torch.cat([records, fakes])
        kernel = (-(both[:, None] - both[None]).square().sum(2) / (2 * bandwidth**2)).exp()
        means = kernel[: len(records)].mean(0)  # of the records, at every record and every fake
        root = torch.linalg.cholesky(kernel.detach() + 1e-9 * torch.eye(len(both), dtype=torch.float64))
        process = root @ torch.randn(len(both), dtype=torch.float64)
        means = means + noise * math.sqrt(2) / len(records) * process
        here, there = means[: len(records)].mean(), means[len(records) :].mean()
        divergence = here - 2 * there + kernel[len(records) :, len(records) :].mean()
        return torch.autograd.grad(divergence**2, generator)[0].flatten()

    def alike(one: torch.Tensor, other: torch.Tensor) -> float:
        return float(torch.nn.functional.cosine_similarity(one, other, dim=0).abs())

    apart, scores = 0.0, []
    for present in (False, True):
        scores.append(np.empty(runs))
        for run in range(runs):
            worlds = [torch.randn(batch, pixels, dtype=torch.float64)]
            worlds.append(torch.cat([worlds[0][1:], torch.ones(1, pixels, dtype=torch.float64)]))
            latents = torch.randn(batch, latent, dtype=torch.float64)
            seen = gradient(worlds[present], latents, multiplier)
            without, with_it = (gradient(world, latents, 0.0) for world in worlds)
            scores[-1][run] = alike(seen, with_it) - alike(seen, without)
            apart = max(apart, 1 - alike(seen, with_it if present else without))
    threat = "sees the generator's gradient of one step; knows the latents and all other records"
    bound = two_worlds(*scores, delta=delta, threat=threat)[0]
    note = f"batch {batch}, {runs} runs of each world; directions with and without noise differ by {apart:.0e}"
    return CaseStudy("DP-Kernel, published", claimed, bound, note, time.perf_counter() - began)


LFLOW_NOISE, LFLOW_RATE, LFLOW_STEPS = 1.126, 0.1, 300
"""σ at which q = .1 and 300 steps of Poisson batches cost ε = 10, δ = 1e-5: what the script accounts for."""


def two_clips(random: np.random.Generator, *, claimed: float = 10.0, draws: int = 400_000) -> CaseStudy:
    """DP-LFlow's script clips autoencoder and flow apart, √2 clips together, under the noise of one."""
    note = "two clips under the noise of one"
    return _coins(random, LFLOW_NOISE / math.sqrt(2), "DP-LFlow's script, two clips", note, claimed, draws)


def certified(random: np.random.Generator, *, claimed: float = 10.0, draws: int = 400_000) -> CaseStudy:
    """The control: the same noise with one clip and independent coins stays below what it claims."""
    return _coins(random, LFLOW_NOISE, "DP-LFlow as certified", "control: one clip", claimed, draws)


def _coins(
    random: np.random.Generator, multiplier: float, name: str, note: str, claimed: float, draws: int
) -> CaseStudy:
    began = time.perf_counter()
    event = SubsampledGaussian("train", (Block("gradient", multiplier),), sampling_rate=LFLOW_RATE, steps=LFLOW_STEPS)
    losses = ledger_losses((event,), draws, random)
    bound = likelihood_ratio(losses, delta=1e-5, threat=WHITE_BOX)
    facts = (
        f"σ {LFLOW_NOISE}, rate {LFLOW_RATE}, {LFLOW_STEPS} Poisson steps, add one record; {draws} draws of the loss"
    )
    return CaseStudy(name, claimed, bound, f"{note}; {facts}", time.perf_counter() - began)


def shuffling(random: np.random.Generator, *, claimed: float = 10.0, draws: int = 400_000) -> CaseStudy:
    """DP-LFlow's script cuts shuffled epochs into batches and accounts for independent coins.

    All other gradients are equal, so the sum of a batch tells whether it holds the record. In one world the record's
    gradient is opposite (its batch lies two clip norms lower), in the other it is zero (one clip norm lower).
    """
    began = time.perf_counter()
    batches = round(1 / LFLOW_RATE)
    far = 1 / LFLOW_NOISE
    losses = np.zeros(draws)
    for _ in range(LFLOW_STEPS // batches):
        seen = random.standard_normal((batches, draws))
        seen[0] += 2 * far  # which of the batches it is does not matter, by symmetry
        losses += _log_mean(2 * far * seen - 2 * far**2) - _log_mean(far * seen - far**2 / 2)
    bound = likelihood_ratio(
        losses, delta=1e-5, threat="sees every noisy gradient; knows all other records, not their batches"
    )
    note = f"σ {LFLOW_NOISE}, {LFLOW_STEPS // batches} epochs of {batches} batches, record → zero; {draws} draws"
    return CaseStudy("DP-LFlow's script, shuffling", claimed, bound, note, time.perf_counter() - began)


def _log_mean(exponents: np.ndarray) -> np.ndarray:
    top = exponents.max(0)
    mean: np.ndarray = top + np.log(np.exp(exponents - top).mean(0))
    return mean


def _gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The least σ at which one Gaussian release costs at most ε."""
    return float(optimize.brentq(lambda sigma: gaussian_delta(1 / sigma, epsilon) - delta, 0.05, 100.0))


CASE_STUDIES: dict[str, Callable[[np.random.Generator], CaseStudy]] = {
    "dppm": dppm,
    "dp2-vae": dp2_vae,
    "dpaf": dpaf,
    "dp-kernel": dp_kernel,
    "dp-lflow-two-clips": two_clips,
    "dp-lflow-shuffling": shuffling,
    "dp-lflow-certified": certified,
}
