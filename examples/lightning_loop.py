"""The same loop in PyTorch Lightning: the private steps are the training data loader.

pip install lightning
python examples/lightning_loop.py
"""

from __future__ import annotations

import lightning
from own_loop import BUDGET, RATE, STEPS, accuracy, digits, loss, network
from torch import optim

import sfumato as sf
from sfumato.training.own_loop import OwnStep


class PrivateClassifier(lightning.LightningModule):
    """Manual optimisation: ``step.backward`` takes the place of ``manual_backward``."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network = network()

    def training_step(self, step: OwnStep, index: int) -> None:
        """What a batch is elsewhere is a step here; it cannot be looked into."""
        step.backward(self.network, loss, clip_norm=1.0)
        self.optimizers().step()

    def configure_optimizers(self) -> optim.Optimizer:
        """Any optimiser."""
        return optim.Adam(self.network.parameters(), lr=2e-3)


def main() -> None:
    """Train for one epoch, which is all the steps that were planned."""
    train, test = digits(4000, seed=0), digits(1000, seed=1)
    private = sf.PrivateImages.from_dataset(train, classes=10, declared_size=len(train))
    steps = sf.DPSGD(private, BUDGET, sampling_rate=RATE, steps=STEPS, device="cpu")
    model = PrivateClassifier()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, train_dataloaders=steps)
    print(f"Lightning: accuracy {accuracy(model.network, test):.0%}, {steps.plan}")


if __name__ == "__main__":
    main()
