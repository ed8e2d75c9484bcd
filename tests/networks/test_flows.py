"""The flow against an independent one (zuko), against autograd's Jacobian and against its own inverse."""

from __future__ import annotations

import math

import pytest
import torch
import zuko
from torch import Tensor
from torch.nn import functional as F
from zuko.transforms import ComposedTransform, CouplingTransform, MonotonicAffineTransform

from sfumato.networks.flows import Coupling, RealNVP

LABELS = 3


def make(dimensions: int, labels: int) -> RealNVP:
    torch.manual_seed(dimensions + labels)
    flow = RealNVP(dimensions, couplings=4, hidden=16, labels=labels).double()
    for parameter in flow.parameters():
        parameter.data.mul_(3.0)  # far from the identity, so that a wrong sign shows
    return flow


@pytest.fixture(params=[(5, 0), (6, LABELS)], ids=lambda case: f"{case[0]}-{case[1]}")
def flow(request: pytest.FixtureRequest) -> RealNVP:
    return make(*request.param)


def given(flow: RealNVP, rows: int = 7) -> tuple[Tensor, Tensor | None]:
    code = torch.randn(rows, flow.dimensions, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return code, torch.arange(rows) % LABELS if flow.labels else None


def as_zuko(coupling: Coupling, labels: Tensor | None) -> CouplingTransform:
    """The same coupling in zuko's words: it orders the kept places and bends the logarithm of the scale."""
    mask = torch.ones(len(coupling.back), dtype=torch.bool)
    mask[coupling.changed] = False
    kept_rank, changed_order = coupling.kept.argsort().argsort(), coupling.changed.argsort()

    def meta(kept: Tensor) -> MonotonicAffineTransform:
        inputs = kept[:, kept_rank]
        if labels is not None:
            inputs = torch.cat([inputs, F.one_hot(labels, LABELS).double()], dim=1)
        hidden = F.relu(coupling.second(F.relu(coupling.first(inputs))))
        scale, shift = coupling.last(hidden).chunk(2, dim=1)
        log_scale = torch.tanh(scale)[:, changed_order]
        bent = log_scale / (1 - (log_scale / math.log(1e-3)).abs())
        return zuko.transforms.DependentTransform(
            MonotonicAffineTransform(shift[:, changed_order], bent, slope=1e-3), reinterpreted=1
        )

    return CouplingTransform(meta, mask)


def test_the_density_is_zukos(flow: RealNVP) -> None:
    code, labels = given(flow)
    transform = ComposedTransform(*(as_zuko(coupling, labels) for coupling in flow.couplings))
    base = zuko.distributions.DiagNormal(torch.zeros(flow.dimensions).double(), torch.ones(flow.dimensions).double())
    expected = zuko.distributions.NormalizingFlow(transform, base).log_prob(code)
    assert torch.allclose(flow.log_density(code, labels), expected, atol=1e-10)


def test_the_volume_is_the_jacobians(flow: RealNVP) -> None:
    code, labels = given(flow, rows=3)
    _, volume = flow(code, labels)
    for row in range(3):
        own = None if labels is None else labels[row : row + 1]
        jacobian = torch.autograd.functional.jacobian(lambda x, own=own: flow(x[None], own)[0][0], code[row])
        assert torch.linalg.slogdet(jacobian)[1] == pytest.approx(volume[row].item(), abs=1e-9)


def test_the_inverse_comes_back(flow: RealNVP) -> None:
    code, labels = given(flow)
    normal, _ = flow(code, labels)
    assert not torch.allclose(normal, code, atol=0.1)
    assert torch.allclose(flow.inverse(normal, labels), code, atol=1e-9)


def test_the_density_adds_up_to_one() -> None:
    flow = make(2, 0)
    side = torch.linspace(-30, 30, 1201, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    with torch.no_grad():
        mass = flow.log_density(points).exp().sum() * (side[1] - side[0]) ** 2
    assert float(mass) == pytest.approx(1.0, abs=0.01)


def test_every_place_is_changed_and_models_can_be_stacked() -> None:
    first, second = RealNVP(20, couplings=9, hidden=4), RealNVP(20, couplings=9, hidden=4)
    changed = torch.cat([coupling.changed for coupling in first.couplings])
    assert set(changed.tolist()) == set(range(20))
    for one, other in zip(first.buffers(), second.buffers(), strict=True):
        assert torch.equal(one, other)


def test_labels_matter_and_are_asked_for() -> None:
    flow = make(6, LABELS)
    code, labels = given(flow)
    assert labels is not None
    assert not torch.allclose(flow.log_density(code, labels), flow.log_density(code, (labels + 1) % LABELS))
    with pytest.raises(ValueError, match="label"):
        flow(code)


def test_a_flow_of_one_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 dimensions"):
        RealNVP(1, couplings=2, hidden=4)
