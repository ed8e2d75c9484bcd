"""Parameter names of version 0.1.0, so that its cards load and its commands are answered with the present names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        "published_clip": "published_clip_norm",
        "published_rate": "published_learning_rate",
        "pretraining": "pretraining_steps",
        "batch": "batch_size",
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
        "published_batch": "published_batch_size",
        "published_clip": "published_clip_norm",
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
        "batch": "batch_size",
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


def renamed_parameters(method: str) -> dict[str, str]:
    """Old name to present name, for one method."""
    return {**_EVERY_METHOD, **_ONE_METHOD.get(method, {})}


def current_parameters(method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an old card under their present names."""
    names = renamed_parameters(method)
    return {names.get(name, name): value for name, value in parameters.items()}
