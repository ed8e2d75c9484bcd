"""Settings of a method for a training that keeps to a given time.

What a step takes is measured on random images, so the settings are public: they depend on the device, the shape of the
images and their declared number, never on their content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from sfumato.methods.base import Method, Shape
from sfumato.methods.dp_diffusion import DPDiffusion
from sfumato.texts import duration
from sfumato.training.profiling import Work, rehearse

_SHORTENED = ("steps", "iterations", "filter_steps", "classifier_steps")
"""Parameters that count repetitions of what a training spends its time on."""
_LEAST_SHARE = 0.1  # of the default's repetitions that may be left

_TRAINING, _WARM_START = "training", "warm start"
_MOST_DRAWS, _MOST_STEPS = 32, 2000
_FEWEST_STEPS, _FEWEST_STEPS_ON_CPU = 300, 80
_PLANNED_SHARE = 0.9  # of the time; the rest is for checks, checkpoints and a machine that gets slower
_PUBLIC_SHARE = 0.2  # of the time that teacher and latent generator leave
_MEASURED_STEPS = 8
_MEASURED_RATE = 0.25  # of a small collection, so that few records make a whole step
_FEW_IMAGES = 64  # public images in a measurement, whose making is not timed
_RECORDS_ON_CPU = 1200  # records in a step


@dataclass(frozen=True)
class TimedSettings:
    """The method to train, how long it should take, and what was chosen, in a sentence."""

    method: Method
    seconds: float
    why: str


def settings_for_minutes(
    method: Method,
    *,
    minutes: float,
    shape: Shape,
    classes: int,
    images: int,
    device: str | torch.device = "cpu",
) -> TimedSettings:
    """``method`` with settings that keep its training on ``images`` private images within ``minutes`` on this device.

    A method that takes longer gets fewer steps, in proportion, and at least a tenth of its own; otherwise the time is
    refused. What differs from the method's defaults was chosen by somebody and stays. DP-Diffusion, which longer
    trainings serve best, gets as many steps and draws as fill the time.
    """
    if isinstance(method, DPDiffusion):
        return _diffusion(method, minutes=minutes, shape=shape, classes=classes, images=images, device=device)
    work = rehearse(method, shape=shape, classes=classes, images=images, device=device)
    whole = _seconds(work, method, method)
    if whole <= 60.0 * minutes:
        return TimedSettings(method, whole, f"About {duration(whole)} on this device with the method's own steps.")
    least = _shortened(method, _LEAST_SHARE)
    fixed = (_seconds(work, least, method) - _LEAST_SHARE * whole) / (1.0 - _LEAST_SHARE)
    share = (60.0 * _PLANNED_SHARE * minutes - fixed) / max(1e-9, whole - fixed)
    if share < _LEAST_SHARE:
        needed = _seconds(work, least, method) / _PLANNED_SHARE
        raise ValueError(
            f"{method.name} takes about {duration(whole)} on this device, and {duration(needed)} with the fewest steps "
            f"that make sense; give it more than {needed / 60.0:.1f} minutes, or choose another method: 'sfumato plan' "
            "compares them"
        )
    chosen = _shortened(method, share)
    seconds = _seconds(work, chosen, method)
    now = chosen.parameters()
    fewer = [f"{key} {now[key]} in place of {count}" for key, count in _counts(method).items()]
    return TimedSettings(
        chosen,
        seconds,
        f"About {duration(seconds)} on this device with {' and '.join(fewer)}; the whole takes "
        f"{duration(whole)}. What is expected of the images was measured with the whole.",
    )


def _counts(method: Method) -> dict[str, int]:
    """The repetitions of a method that may be shortened."""
    own, usual = method.parameters(), type(method)(variant=method.variant).parameters()
    return {key: own[key] for key in _SHORTENED if own.get(key, 1) > 1 and own[key] == usual[key]}


def _shortened(method: Method, share: float) -> Method:
    """The method with this share of its repetitions."""
    fewer = {key: max(1, int(share * count)) for key, count in _counts(method).items()}
    return type(method).configured({**method.parameters(), **fewer})


def _seconds(work: Work, method: Method, rehearsed: Method) -> float:
    """How long ``method`` takes, by the steps that were timed of ``rehearsed``, which has other numbers of steps."""
    steps = {query.name: query.steps for query in method.queries()}
    own, before = method.parameters(), rehearsed.parameters()
    # Training on what was released is no query: it has as many steps as one of the parameters says.
    public = {before[key]: own[key] for key in _SHORTENED if key in before}
    return sum(steps.get(part.name, public.get(part.steps, part.steps)) * part.seconds for part in work.parts)


def cpu_settings(method: DPDiffusion, *, images: int) -> DPDiffusion:
    """``method`` at a size for a few cores: narrow networks and steps of about 1,200 records.

    At a given ε a lower sampling rate takes less noise, so that short steps lose less than their size suggests. What
    differs from the method's defaults was chosen by somebody and stays.
    """
    rate = min(1.0, _RECORDS_ON_CPU / images)
    sizes = {
        "width": 16,
        "sampling_rate": rate,
        "teacher_sampling_rate": rate,
        "teacher_steps": 40,
        "latent_sampling_rate": rate,
        "latent_steps": 150,
        "latent_width": 16,
        "public_images": 8000,
        "public_batch_size": 256,
    }
    given, defaults = method.parameters(), type(method)().parameters()
    return type(method).configured({**given, **{key: sizes[key] for key in sizes if given[key] == defaults[key]}})


def _diffusion(
    method: DPDiffusion, *, minutes: float, shape: Shape, classes: int, images: int, device: str | torch.device
) -> TimedSettings:
    """``method`` with steps and draws that fill ``minutes`` on this device, for ``images`` private images.

    Steps that take 90 % of the time are planned, since a machine seldom keeps the speed of a short measurement. On a
    CPU the method first gets the size of ``cpu_settings``. Teacher and latent generator stay as they are. Of the time
    that is left, a fifth goes to the training on public images. Private training takes as many draws as leave it
    at least 300 steps (80 on a CPU), since draws cost no privacy.
    """
    on_cpu = torch.device(device).type == "cpu"
    if on_cpu:
        method = cpu_settings(method, images=images)
    seconds, others = _measured(method, shape=shape, classes=classes, images=images, device=device)
    planned = _PLANNED_SHARE * 60.0 * minutes
    left = planned - others
    if left < 0.25 * planned:
        raise ValueError(
            f"teacher and latent generator alone take about {others / 60.0:.1f} minutes on this device; give more than "
            f"{others / (45.0 * _PLANNED_SHARE):.1f} minutes"
            + ("" if on_cpu else ", or choose fewer teacher_steps or latent_steps")
        )
    batch = method.sampling_rate * images
    rate = method.draws * batch / max(1e-9, seconds[_TRAINING])
    warm = _WARM_START in seconds
    fewest = _FEWEST_STEPS_ON_CPU if on_cpu else _FEWEST_STEPS
    steps, draws = _steps_and_draws((1.0 - _PUBLIC_SHARE * warm) * left * rate / batch, fewest)
    chosen = replace(method, steps=steps, draws=draws)
    if warm:
        chosen = replace(chosen, public_steps=max(1, int(_PUBLIC_SHARE * left / max(1e-9, seconds[_WARM_START]))))
    expected = others + steps * draws * batch / rate + warm * chosen.public_steps * seconds.get(_WARM_START, 0.0)
    rows = chosen.steps * chosen.draws * batch
    return TimedSettings(
        chosen,
        expected,
        f"About {duration(expected)} on this device: {chosen.steps} private steps of about {batch:.0f} images with "
        f"{chosen.draws} draws each, {rows / 1e6:.2g} million rows at {rate:.0f} a second, after "
        f"{chosen.public_steps} steps on public images. The method's page in the documentation shows what trainings "
        "of different lengths reached.",
    )


def _measured(
    method: DPDiffusion, *, shape: Shape, classes: int, images: int, device: str | torch.device
) -> tuple[dict[str, float], float]:
    """Seconds of a step of each part, and of all steps of teacher and latent generator together."""
    measured = replace(method, public_images=_FEW_IMAGES, steps=_MEASURED_STEPS, public_steps=_MEASURED_STEPS)
    fewer = images
    rates = {method.sampling_rate, method.teacher_sampling_rate, method.latent_sampling_rate}
    if len(rates) == 1 and method.sampling_rate < _MEASURED_RATE:
        # As many records in a step, of a smaller collection.
        fewer = max(1, round(images * method.sampling_rate / _MEASURED_RATE))
        same = _MEASURED_RATE
        measured = replace(measured, sampling_rate=same, teacher_sampling_rate=same, latent_sampling_rate=same)
    work = rehearse(measured, shape=shape, classes=classes, images=fewer, device=device)
    whole = {query.name for query in measured.queries() if query.sampling_rate == 1}
    seconds = {part.name: part.seconds * (images / fewer if part.name in whole else 1.0) for part in work.parts}
    others = [part for part in work.parts if part.name not in (_TRAINING, _WARM_START)]
    return seconds, sum(part.steps * seconds[part.name] for part in others)


def _steps_and_draws(rows: float, fewest_steps: int) -> tuple[int, int]:
    """Steps and draws for ``rows`` forward and backward passes of each record of a batch."""
    draws = _MOST_DRAWS
    while draws > 1 and rows / draws < fewest_steps:
        draws //= 2
    return max(1, min(_MOST_STEPS, int(rows / draws))), draws
