"""The engine's questions to a loss, asked of every block of a method: does a row see another, does the sum agree?"""

from __future__ import annotations

from sfumato.audit.instrument import instrumented
from sfumato.methods.base import Method
from sfumato.privacy import AnyBudget, Ledger, NoisyGradient, PrivateRecords, PrivateState, Step
from sfumato.privacy.gradients import Clip, Loss, Refused, check
from sfumato.privacy.gradients.refusal import Unseen


class _Probing(Step):
    def noisy_gradient(
        self,
        block: str,
        model: object,
        loss: Loss,
        *,
        clip: Clip,
        draws: int = 1,
        state: PrivateState | None = None,
    ) -> NoisyGradient:
        if self.index == 0:
            for batch in self._batches(block, draws, state, 64):
                # Rows that are not finite compare equal to anything, so the probe would see less with them.
                finite = batch.images.flatten(1).isfinite().all(1).view(batch.units, -1).all(1)
                check(model, loss, batch.select(finite.nonzero()[:, 0]), clip)  # type: ignore[arg-type]
                break
        return super().noisy_gradient(block, model, loss, clip=clip, draws=draws, state=state)  # type: ignore[arg-type]


def probe(method: Method, private: PrivateRecords, *, budget: AnyBudget, seed: int = 0) -> str | None:
    """Why the engine or the Curator refuses this method, or None if neither does."""
    try:
        with Ledger(None, budget) as ledger:
            instrumented(method, step=_Probing).fit(private, budget, ledger, seed=seed, device="cpu")
    except (Refused, Unseen, LookupError, RuntimeError, PermissionError) as error:
        return f"{type(error).__name__}: {error}"
    return None
