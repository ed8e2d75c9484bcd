"""The divergence guard rolls back to the best weights and halves the learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sfumato.data import PrivateImages
from sfumato.methods.dpaf import DPAF
from sfumato.networks.generators import Generator
from sfumato.privacy import Budget
from sfumato.training.checkpoint import FolderCheckpoint
from sfumato.training.optimisation import DivergenceGuard
from squares import squares


def test_it_restores_the_best_weights_and_halves_the_learning_rate() -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = DivergenceGuard(model, optimizer)
    best = model.weight.detach().clone()

    def looks(value: float) -> bool:
        """Whether the next check rolls back; the nineteen calls after it read nothing."""
        answers = [guard.rolled_back(torch.tensor(value)) for _ in range(20)]
        assert not any(answers[1:])
        return answers[0]

    assert not looks(10.0) and not looks(0.0)
    with torch.no_grad():
        model.weight.add_(5.0)
    assert not looks(4.9)  # half is not lost
    assert looks(5.1) and guard.learning_rate_factor == 0.5
    assert torch.equal(model.weight, best)
    assert looks(float("nan")) and guard.learning_rate_factor == 0.25


def test_a_resumed_training_has_the_best_weights_of_before(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    guard = DivergenceGuard(model, optimizer)
    for value in (10.0, 0.0):
        for _ in range(20):
            guard.rolled_back(torch.tensor(value))
    best = model.weight.detach().clone()
    checkpoint = FolderCheckpoint(tmp_path, seconds=0.0)
    checkpoint.save("generator", 40, {"guard": guard}, (), last=True)
    with torch.no_grad():
        model.weight.add_(5.0)
    resumed = DivergenceGuard(model, optimizer)
    assert checkpoint.restore("generator", {"guard": resumed}, ()) == 40
    assert resumed.rolled_back(torch.tensor(9.0)) and resumed.learning_rate_factor == 0.5
    assert torch.equal(model.weight, best)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_saturated_generator_recovers(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its pixels turn white on the way; without the guard they stay white."""
    pixels, labels = squares(200)
    method = DPAF(
        width=4,
        feature_maps=8,
        feature_layers=1,
        thumbnail_size=4,
        second_moment_size=0,
        latent_dim=4,
        generator_width=4,
        iterations=120,
        fakes_per_class=8,
        learning_rate=0.01,
    )
    calls = 0
    rolled_back = DivergenceGuard.rolled_back

    def breaking(self: DivergenceGuard, loss: Tensor) -> bool:
        nonlocal calls
        calls += 1
        if calls == 70 and isinstance(self.model, Generator):
            with torch.no_grad():
                self.model.convolutions[-1].bias.fill_(1e4)
            return True  # the gradient is that of the weights before
        return rolled_back(self, loss) if guarded else False

    monkeypatch.setattr(DivergenceGuard, "rolled_back", breaking)
    release = method.fit(PrivateImages(pixels, labels, classes=("0", "1")), Budget(100.0, 1e-3), device="cpu", seed=3)
    drawn, given = release.sample(100, seed=0, device="cpu")
    apart = [abs(drawn[given == label].mean(0) - pixels[labels == label].mean(0)).mean() for label in range(2)]
    assert calls >= 120
    assert max(apart) < 30 if guarded else min(apart) > 60
