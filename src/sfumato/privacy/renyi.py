"""The Rényi divergence of one step at whole-number orders, and the ε that follows from a divergence."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from sfumato.privacy.events import Relation, SubsampledGaussian

ORDERS = range(2, 257)


def converted(divergence: float, order: int, delta: float) -> float:
    """The ε at δ of a mechanism with this Rényi divergence (Canonne, Kamath and Steinke, 2020, proposition 12)."""
    return divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def delta_of(divergence: float, order: int, epsilon: float) -> float:
    """The δ at ε of a mechanism with this Rényi divergence: ``converted``, solved for δ."""
    if not math.isfinite(divergence):
        return 1.0
    exponent = (order - 1) * (divergence + math.log1p(-1 / order) - epsilon) - math.log(order)
    return math.exp(min(0.0, exponent))


def divergence(event: SubsampledGaussian, kind: Relation, order: int) -> float:
    """The Rényi divergence of one step, at a whole-number order, between neighbouring collections.

    Adding or removing: the binomial sum of Mironov, Talwar and Zhang (2019). Replacing: the two mixtures share their
    part of weight 1 − q, and exp((α − 1)·D) is jointly convex, hence log(1 + q·(exp((α − 1)·D') − 1)) / (α − 1) with D'
    the divergence of two Gaussians that are two clip norms apart.
    """
    rate, noise = event.sampling_rate, event.noise_multiplier
    far = event.sensitivity(kind)
    whole = order * (order - 1) * far**2 / (2 * noise**2)
    if rate == 1:
        return whole / (order - 1)
    if kind is Relation.REPLACE:
        return float(logsumexp([math.log1p(-rate), math.log(rate) + whole])) / (order - 1)
    k = np.arange(order + 1)
    binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    weights = binomial + (order - k) * math.log1p(-rate) + k * math.log(rate)
    return max(0.0, float(logsumexp(weights + k * (k - 1) * far**2 / (2 * noise**2))) / (order - 1))
