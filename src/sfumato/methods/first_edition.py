"""Names of version 0.1.0: its cards load, and its commands are answered with the present names.

Version 0.1.0 had three published algorithms as variants of the certified classes. They are classes of their own now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_EVERY_METHOD: Mapping[str, str] = {
    "rate": "sampling_rate",
    "averaging": "ema_decay",
    "average": "ema_decay",
    "clip": "clip_norm",
    "code": "latent_dim",
    "final_learning_rate": "final_learning_rate_factor",
    "judge_steps": "filter_steps",
    "judge_noise": "filter_noise",
    "judge_learning_rate": "filter_learning_rate",
    "redraws": "max_rejections",
}
_ONE_METHOD: Mapping[str, Mapping[str, str]] = {
    "dp-lflow": {
        "reconstruction": "reconstruction_weight",
        "clip_autoencoder": "autoencoder_clip_norm",
        "clip_flow": "flow_clip_norm",
        "learning_rate_autoencoder": "autoencoder_learning_rate",
        "learning_rate_flow": "flow_learning_rate",
    },
    "dp-merf": {"batch": "batch_size"},
    "dp2-vae": {
        "inner_rate": "inner_learning_rate",
        "divergence": "kl_weight",
        "start": "posterior_init",
        "condition": "conditioning",
        "encoder_clip": "encoder_clip_norm",
        "prior_bound": "prior_clip_norm",
    },
    "dpaf": {
        "maps": "feature_maps",
        "taps": "feature_layers",
        "coarse": "thumbnail_size",
        "pairs": "second_moment_size",
        "pair_share": "second_moment_share",
        "classifier_rate": "classifier_sampling_rate",
        "matching": "matching_weight",
        "adversarial": "adversarial_weight",
        "critic": "discriminator_steps",
        "decay": "aggregate_decay",
        "fakes": "fakes_per_class",
    },
    "dppm": {
        "coarsest": "coarsest_size",
        "patch": "patch_size",
        "mean_size": "mean_clip_rms",
        "level_mean": "log_sigma_mean",
        "level_deviation": "log_sigma_std",
        "spread": "sigma_data",
        "response": "response_epsilon",
        "half_precision": "bfloat16",
        "levels": "sampling_steps",
        "largest_level": "sigma_max",
        "smallest_level": "sigma_min",
        "decay": "rho",
        "leapfrog": "leapfrog_steps",
        "kinetic": "momentum_distribution",
    },
    "gs-wgan": {
        "critic_rate": "critic_learning_rate",
        "penalty": "gradient_penalty",
        "warm_start": "warm_start_rounds",
    },
    "privae": {"batch": "batch_size", "group_clip": "group_clip_norm", "deviation": "pixel_std"},
}


_SAMPLING = (
    "levels",
    "largest_level",
    "smallest_level",
    "decay",
    "leapfrog",
    "kinetic",
    "level_mean",
    "level_deviation",
)
_PUBLISHED: Mapping[str, Mapping[str, str]] = {
    "dp2-vae-published": {
        "published_width": "width",
        "published_clip": "clip_norm",
        "published_rate": "learning_rate",
        "pretraining": "pretraining_steps",
        "batch": "batch_size",
    },
    "dpaf-published": {
        "maps": "feature_maps",
        "critic": "discriminator_steps",
        "published_iterations": "iterations",
        "published_batch": "batch_size",
        "published_clip": "clip_norm",
    },
    "dppm-published": {
        "response": "response_epsilon",
        "batch": "batch_size",
        **{name: _ONE_METHOD["dppm"][name] for name in _SAMPLING},
    },
}
_CERTIFIED_ONLY: Mapping[str, frozenset[str]] = {
    "dp2-vae-published": frozenset({"width", "clip", "learning_rate"}),
    "dpaf-published": frozenset({"clip", "iterations", "learning_rate", "classifier_learning_rate"}),
    "dppm-published": frozenset({"clip"}),
}
"""Old parameters that the published algorithm did not use, though one of its own has their name now."""

_PUBLISHED_ONLY: Mapping[str, frozenset[str]] = {
    "dp2-vae": frozenset(
        {*_PUBLISHED["dp2-vae-published"], "encoders", "train_encoders", "iterations", "claimed_epsilon"}
    ),
    "dpaf": frozenset({"published_iterations", "published_batch", "published_clip", "claimed_epsilon"}),
    "dppm": frozenset({"iterations", "batch"}),
}
"""Old parameters that only the published algorithm used."""

_TENSORS: Mapping[str, str] = {"judge.": "label_filter.", "encode_spread.": "encode_log_std."}


def published_class(method: str, variant: str) -> str | None:
    """The present name of a published algorithm that was a variant of ``method``."""
    name = f"{method}-published"
    return name if variant == "published" and name in _PUBLISHED else None


def renamed_parameters(method: str) -> dict[str, str]:
    """Old parameter names of one method and the present ones."""
    return {**_EVERY_METHOD, **_ONE_METHOD.get(method, {}), **_PUBLISHED.get(method, {})}


def current_parameters(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an old card under their present names."""
    published = published_class(method, parameters.get("variant", ""))
    names = renamed_parameters(published or method)
    dropped = set(_CERTIFIED_ONLY[published] if published else _PUBLISHED_ONLY.get(method, ()))
    if parameters.get("response", 1.0) <= 0 and published == "dppm-published":
        dropped.add("response")  # 0 stood for the default there
    return {names.get(name, name): value for name, value in parameters.items() if name not in dropped}


def moved_parameter(method: str, name: str) -> str | None:
    """The method that has this old parameter of ``method`` now, and what it is called there."""
    if name not in _PUBLISHED_ONLY.get(method, ()):
        return None
    other = f"{method}-published"
    return f"{other} has it as {renamed_parameters(other).get(name, name)!r} now"


def current_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of an old release under their present names."""
    return {_present_name(name): tensor for name, tensor in tensors.items()}


def _present_name(tensor: str) -> str:
    for old, new in _TENSORS.items():
        if tensor.startswith(old):
            return new + tensor.removeprefix(old)
    return tensor
