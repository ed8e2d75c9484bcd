"""The same loop with Hugging Face Accelerate: model and optimiser are prepared, the private steps are not.

pip install accelerate
python examples/accelerate_loop.py
"""

from __future__ import annotations

from accelerate import Accelerator
from own_loop import BUDGET, RATE, STEPS, accuracy, digits, loss, network
from torch import optim

import sfumato as sf


def main() -> None:
    """Train on the device that Accelerate chooses."""
    train, test = digits(4000, seed=0), digits(1000, seed=1)
    accelerator, model = Accelerator(), network()
    model, optimizer = accelerator.prepare(model, optim.Adam(model.parameters(), lr=2e-3))
    private = sf.PrivateImages.from_dataset(train, classes=10, declared_size=len(train))
    steps = sf.DPSGD(private, BUDGET, sampling_rate=RATE, steps=STEPS, device=accelerator.device)
    for step in steps:
        step.backward(accelerator.unwrap_model(model), loss, clip_norm=1.0)
        optimizer.step()
    print(f"Accelerate: accuracy {accuracy(accelerator.unwrap_model(model).cpu(), test):.0%}, {steps.plan}")


if __name__ == "__main__":
    main()
