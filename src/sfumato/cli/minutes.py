"""``sfumato train --minutes``: settings for a training that takes a given time on this device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.cli.console import ProgressBar, duration, remark

if TYPE_CHECKING:
    from sfumato.data import Images
    from sfumato.methods import Method
    from sfumato.training.run_folder import Run


def for_minutes(
    method: Method, minutes: float, images: Images, *, declared_size: int | None, device: str, run: Run, resume: bool
) -> Method:
    """The method with settings that fill ``minutes``, and a remark on how long it takes and on how much it sees.

    A step is timed on random images, and the number of images has to be declared: nothing private decides. A run that
    goes on has the settings that it began with.
    """
    from sfumato.methods.dp_diffusion import DPDiffusion
    from sfumato.methods.parts.time_budget import settings_for_minutes

    if not isinstance(method, DPDiffusion):
        raise ValueError(
            f"--minutes plans a training of dp-diffusion; {method.name} has fixed steps, and 'sfumato plan "
            f"{method.name} --size …' measures how long they take"
        )
    if declared_size is None:
        raise ValueError("--minutes needs --declared-size: how long a step takes depends on the number of images")
    if resume:
        return type(method).configured(run.facts()["parameters"])
    with ProgressBar() as progress:
        progress.report("timing steps on random images", 0, 0)
        found = settings_for_minutes(
            method,
            minutes=minutes,
            shape=images.pixels.shape[1:],
            classes=len(images.classes),
            images=declared_size,
            device=device,
        )
    chosen = found.method
    rows = chosen.steps * chosen.draws * chosen.sampling_rate * declared_size
    remark(
        f"About {duration(found.seconds)} on this device: {chosen.steps} private steps of about "
        f"{chosen.sampling_rate * declared_size:.0f} images with {chosen.draws} draws each, {rows / 1e6:.2g} million "
        f"rows at {found.rows_per_second:.0f} a second, after {chosen.public_steps} steps on public images. "
        "The method's page in the documentation shows what trainings of different lengths reached."
    )
    return chosen
