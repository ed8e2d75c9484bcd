"""A classifier in a training loop of your own, with a guarantee: by Sfumato, and beside it by Opacus.

    python examples/own_loop.py

Sfumato takes the data set instead of the loader: each step draws its batch by independent coins, clips, adds exactly,
adds noise, and writes the step to the ledger before it gives the gradient.
"""

from __future__ import annotations

from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import sfumato as sf
from sfumato.data.digits import draw_digits

RATE, STEPS, BUDGET = 0.05, 100, sf.Budget(epsilon=3, delta=1e-5)


def digits(count: int, seed: int) -> TensorDataset:
    """Drawn digits, as a data set of images in 0..1 and labels."""
    import torch

    drawn = draw_digits(count, seed=seed)
    return TensorDataset(torch.tensor(drawn.pixels[:]).float() / 255, torch.tensor(drawn.labels))


def network() -> nn.Module:
    """A small convolutional classifier; GroupNorm, because batch normalisation mixes the records of a batch."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def loss(model: nn.Module, images: Tensor, labels: Tensor, random: object) -> Tensor:
    """One number for each record."""
    return cross_entropy(model(images), labels, reduction="none")


def by_sfumato(dataset: TensorDataset) -> nn.Module:
    """The loop; ``steps.plan`` says beforehand what it spends."""
    model = network()
    optimizer = optim.Adam(model.parameters(), lr=2e-3)
    private = sf.PrivateImages.from_dataset(dataset, classes=10, declared_size=len(dataset))
    steps = sf.DPSGD(private, BUDGET, sampling_rate=RATE, steps=STEPS)
    for step in steps:
        step.backward(model, loss, clip_norm=1.0)
        optimizer.step()
    print(steps.plan)
    return model


def by_opacus(dataset: TensorDataset) -> nn.Module:
    """The same training by ``make_private_with_epsilon``, whose ε is that of its accountant."""
    from opacus import PrivacyEngine

    model = network()
    optimizer, loader = optim.Adam(model.parameters(), lr=2e-3), DataLoader(dataset, round(RATE * len(dataset)))
    engine = PrivacyEngine()
    private_model, private_optimizer, private_loader = engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=loader, epochs=round(STEPS * RATE), max_grad_norm=1.0,
        target_epsilon=BUDGET.epsilon, target_delta=BUDGET.delta,
    )  # fmt: skip
    for _ in range(round(STEPS * RATE)):
        for images, labels in private_loader:
            private_optimizer.zero_grad()
            cross_entropy(private_model(images), labels).backward()
            private_optimizer.step()
    print(f"Opacus: ε {engine.get_epsilon(BUDGET.delta):.3g} at δ {BUDGET.delta:g}")
    return model


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """The share of the test digits that are recognised."""
    images, labels = test.tensors
    return (model.eval()(images).argmax(1) == labels).float().mean().item()


def main() -> None:
    """Train both on the same drawn digits."""
    train, test = digits(4000, seed=0), digits(1000, seed=1)
    for name, trained in (("Sfumato", by_sfumato), ("Opacus", by_opacus)):
        print(f"{name}: accuracy {accuracy(trained(train), test):.0%}")


if __name__ == "__main__":
    main()
