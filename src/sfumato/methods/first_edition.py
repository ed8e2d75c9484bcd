"""Parameter names of version 0.1.0, so that its cards load and its commands are answered with the new names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED_PARAMETERS: Mapping[str, str] = {
    "judge_steps": "filter_steps",
    "judge_noise": "filter_noise",
    "judge_learning_rate": "filter_learning_rate",
    "redraws": "max_rejections",
}


def current_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an old card under their present names."""
    return {RENAMED_PARAMETERS.get(name, name): value for name, value in parameters.items()}
