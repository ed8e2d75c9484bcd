"""DP-SGD in a training loop of one's own: batches, clip, noise and ledger from here, everything else from the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import nn

from sfumato.privacy import AnyBudget, Block, Ledger, PrivateRecords, Progress, Step, SubsampledGaussian
from sfumato.privacy.accounting import Plan
from sfumato.privacy.gradients.batch import Loss
from sfumato.privacy.session import session

_NAME, _BLOCK = "train", "gradient"


class OwnStep:
    """One step of an own loop; it can be used once."""

    def __init__(self, step: Step, divisor: float) -> None:
        self._step, self._divisor = step, divisor

    def backward(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        clip_norm: float | Mapping[str, float] = 1.0,
        draws: int = 1,
    ) -> None:
        """Set ``.grad`` of the trainable parameters to the noisy mean gradient of a batch, for any optimiser.

        Args:
            model: What is trained; a model that mixes the rows of a batch is refused.
            loss: ``loss(model, images, labels, random)``, one number for each row.
            clip_norm: The largest norm of one unit's gradient; or one for each group of parameters.
            draws: A unit's loss is averaged over this many draws of ``random`` before the clip.
        """
        found = self._step.noisy_gradient(_BLOCK, model, loss, clip_norm=clip_norm, draws=draws)
        own = dict(model.named_parameters())
        for name, part in (found / self._divisor).parts.items():
            own[name].grad = part.to(own[name].dtype)


class DPSGD:
    """The steps of a private training, to be iterated over once.

    The noise is calibrated so that all steps together spend the budget and no more. Each step is written to the ledger
    before its gradient is given. What the loop makes of the gradients (weights, curves of the noisy gradient) is
    covered; what it computes from the records in another way is not.

    Args:
        private: The private images.
        budget: The ε and δ to spend.
        sampling_rate: The probability of each unit to be in a step's batch.
        steps: The number of steps.
        ledger: Where the spending is recorded; without one it is kept in memory.
        divisor: By what sums are divided, a public number; by default the sampling rate × the declared size.
        device: By default a GPU where there is one.
        progress: Receives the progress and ε so far.

    >>> import numpy as np
    >>> from sfumato.data import PrivateImages
    >>> from sfumato.privacy import Budget
    >>> private = PrivateImages.from_arrays(np.zeros((9, 4, 4), np.uint8), np.zeros(9, np.int64), classes=1)
    >>> loop = DPSGD(private, Budget(epsilon=1, delta=1e-5), sampling_rate=0.5, steps=2, divisor=4)
    >>> model = nn.Linear(16, 1)
    >>> for step in loop:
    ...     step.backward(model, lambda model, images, labels, random: model(images.flatten(1)).flatten())
    >>> model.weight.grad.shape
    torch.Size([1, 16])
    """

    def __init__(
        self,
        private: PrivateRecords,
        budget: AnyBudget,
        *,
        sampling_rate: float,
        steps: int,
        ledger: Ledger | str | Path | None = None,
        divisor: float | None = None,
        device: str | torch.device | None = None,
        progress: Progress | None = None,
    ) -> None:
        if divisor is None:
            if private.declared_size is None:
                raise ValueError(
                    "give divisor=..., a public number near the size of a batch, or declared_size=... to "
                    "PrivateImages: the size of the collection is private"
                )
            divisor = max(1.0, sampling_rate * private.declared_size)
        event = SubsampledGaussian(_NAME, (Block(_BLOCK),), sampling_rate=sampling_rate, steps=steps)
        self.plan = Plan.calibrated([event], budget)
        self._private, self._ledger, self._divisor = private, ledger, divisor
        self._device, self._progress, self._begun = device, progress, False

    def __len__(self) -> int:
        return self.plan.events[0].steps

    def __iter__(self) -> Iterator[OwnStep]:
        if self._begun:
            raise RuntimeError("these steps were taken: going through them again would spend the budget twice")
        self._begun = True
        running = session(
            self._private,
            self.plan,
            self._ledger,
            method="own loop",
            parameters={"divisor": self._divisor},
            device=self._device,
            progress=self._progress,
        )
        with running as run:
            for step in run.curator.steps(_NAME):
                yield OwnStep(step, self._divisor)
            run.learnt({}, None)
            run.ledger.end_run(run.run, answered=run.curator.unwritten_answers())
