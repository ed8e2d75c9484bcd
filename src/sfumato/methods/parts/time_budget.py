"""Settings of DP-Diffusion for a training that takes a given time.

What a step takes is measured on random images, so the settings are public: they depend on the device, the shape of the
images and their declared number, never on their content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sfumato.methods.base import Shape
from sfumato.methods.dp_diffusion import DPDiffusion
from sfumato.training.profiling import rehearse

_TRAINING, _WARM_START = "training", "warm start"
_MOST_DRAWS, _MOST_STEPS, _FEWEST_STEPS = 32, 2000, 300
_PUBLIC_SHARE = 0.2  # of the time that teacher and latent generator leave
_MEASURED_STEPS = 8
_FEW_IMAGES = 64  # public images in a measurement, whose making is not timed


@dataclass(frozen=True)
class TimedSettings:
    """The method to train, how long it should take, and the speed that says so."""

    method: DPDiffusion
    seconds: float
    rows_per_second: float


def settings_for_minutes(
    method: DPDiffusion,
    *,
    minutes: float,
    shape: Shape,
    classes: int,
    images: int,
    device: str | torch.device = "cpu",
) -> TimedSettings:
    """``method`` with steps and draws that fill ``minutes`` on this device, for ``images`` private images.

    Teacher and latent generator stay as they are. Of the time that is left, a fifth goes to the training on public
    images. Private training takes as many draws as leave it at least 300 steps, since draws cost no privacy.
    """
    measured = replace(method, public_images=_FEW_IMAGES, steps=_MEASURED_STEPS, public_steps=_MEASURED_STEPS)
    work = rehearse(measured, shape=shape, classes=classes, images=images, device=device)
    seconds = {part.name: part.seconds for part in work.parts}
    others = sum(part.steps * part.seconds for part in work.parts if part.name not in (_TRAINING, _WARM_START))
    left = 60.0 * minutes - others
    if left < 0.25 * 60.0 * minutes:
        raise ValueError(
            f"teacher and latent generator alone take about {others / 60.0:.1f} minutes on this device; give more than "
            f"{others / 45.0:.1f} minutes, or choose fewer teacher_steps or latent_steps"
        )
    batch = method.sampling_rate * images
    rate = method.draws * batch / max(1e-9, seconds[_TRAINING])
    warm = _WARM_START in seconds
    steps, draws = _steps_and_draws((1.0 - _PUBLIC_SHARE * warm) * left * rate / batch)
    chosen = replace(method, steps=steps, draws=draws)
    if warm:
        chosen = replace(chosen, public_steps=max(1, int(_PUBLIC_SHARE * left / max(1e-9, seconds[_WARM_START]))))
    expected = others + steps * draws * batch / rate + warm * chosen.public_steps * seconds.get(_WARM_START, 0.0)
    return TimedSettings(chosen, expected, rate)


def _steps_and_draws(rows: float) -> tuple[int, int]:
    """Steps and draws for ``rows`` forward and backward passes of each record of a batch."""
    draws = _MOST_DRAWS
    while draws > 1 and rows / draws < _FEWEST_STEPS:
        draws //= 2
    return max(1, min(_MOST_STEPS, int(rows / draws))), draws
