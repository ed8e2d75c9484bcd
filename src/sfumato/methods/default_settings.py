"""Where the default settings of the methods come from: what the card says about settings that were not changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CHOSEN_ON: Mapping[str, str] = {
    "dp-diffusion": "drawn digits",
    "dp-lflow": "MNIST and Fashion-MNIST",
    "dp-merf": "MNIST and Fashion-MNIST",
    "dp-mixture": "a part of the training images of MNIST and Fashion-MNIST",
    "dp2-vae": "MNIST",
    "dppm": "MNIST and Fashion-MNIST",
    "gs-wgan": "MNIST",
}


def settings_remark(name: str, parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """One sentence: defaults, and the public data they were chosen on, or which settings were given.

    >>> settings_remark("dp2-vae", {"steps": 3}, {"steps": 3})
    'All settings are defaults, which were chosen on MNIST, a public data set.'
    """
    given = [key for key, value in parameters.items() if value != defaults.get(key)]
    if given:
        return (
            f"These settings were given by the custodian: {', '.join(given)}. Choosing them by looking at the "
            "collection, other than by 'sfumato tune', is not covered by the guarantee."
        )
    sets = _CHOSEN_ON.get(name)
    if sets is None:
        return "All settings are defaults; they were not chosen on this collection."
    kind = "public data sets" if " and " in sets else "a public data set"
    return f"All settings are defaults, which were chosen on {sets}, {kind}."


def tuned_remark(candidates: int) -> str:
    """What the card says about settings that were chosen by private selection."""
    return (
        f"The settings were chosen on this collection among {candidates} candidates by private selection; the choice "
        "is part of the spending."
    )
