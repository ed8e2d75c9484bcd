"""Long vectors in place of many tensors: the same training, step by step."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from sfumato.privacy.gradients import PerClass, groups_of
from sfumato.privacy.gradients.batch import NoisyGradient
from sfumato.training.optimisation import FlatParameters

CLIP = {"first": 1.0, "second": 2.0}


def model() -> PerClass:
    inner = {"first": nn.Linear(3, 4), "second": nn.Linear(4, 2)}
    return PerClass([deepcopy(nn.ModuleDict(inner)) for _ in range(3)])


def random_gradient(of: nn.Module) -> NoisyGradient:
    own = dict(of.named_parameters())
    names = [name for _, members in groups_of(of, CLIP).values() for name in members]
    return NoisyGradient.of(of, {name: torch.randn_like(own[name]) for name in names})


def test_steps_on_the_vectors_are_steps_of_the_model() -> None:
    plain = model()
    flat = deepcopy(plain)
    weights = FlatParameters(flat, CLIP)
    of_groups = [
        [p for name, p in plain.named_parameters() if name.split(".")[2] == group] for group in ("first", "second")
    ]
    one = torch.optim.Adam([{"params": of_groups[0], "lr": 0.1}, {"params": of_groups[1], "lr": 0.01}])
    two = torch.optim.Adam(
        [{"params": [weights.groups["first"]], "lr": 0.1}, {"params": [weights.groups["second"]], "lr": 0.01}]
    )
    for _ in range(3):
        gradient = random_gradient(plain)
        gradient.apply(one)
        weights.apply_gradient(gradient, two)
    for expected, found in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_vectors_that_are_put_back_are_the_models_weights() -> None:
    trained = model()
    before = deepcopy(trained.state_dict())
    weights = FlatParameters(trained, CLIP)
    kept, saved = deepcopy(weights), deepcopy(weights.state_dict())
    with torch.no_grad():
        for vector in weights.parameters():
            vector += 1.0
    assert all(torch.equal(value, before[name] + 1.0) for name, value in trained.state_dict().items())
    weights.copy_from(kept)
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    with torch.no_grad():
        kept.groups["first"].zero_()
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())
    weights.copy_from(kept)
    weights.load_state_dict(saved)
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())


def test_gradients_of_other_parameters_do_not_add_up() -> None:
    whole = random_gradient(model())
    with pytest.raises(ValueError, match="same parameters"):
        whole + NoisyGradient(whole.model, whole.names[::-1], whole.vector)
