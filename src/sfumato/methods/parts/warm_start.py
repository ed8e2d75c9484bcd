"""A start for a diffusion model: samples of a certified latent generator, procedural images, and training on both.

Samples of a released generator are post-processing and procedural images hold no data, so none of it costs privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sfumato.data.procedural import procedural_images
from sfumato.methods.base import Method
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.methods.dp_lflow import DPLFlow
from sfumato.methods.parts.teacher import rejection_sample
from sfumato.networks.edm import Denoiser, use_channels_last
from sfumato.privacy import Curator
from sfumato.training.optimisation import cosine_decay

LATENT_METHODS = ("dp2-vae", "dp-lflow")
Draw = Callable[[Tensor], Tensor]
"""``draw(labels)``: one image in 0..1 for each label."""
_DRAWN_AT_ONCE = 2000


def latent_method(name: str, *, sampling_rate: float, steps: int, width: int, prior_clip: float) -> Method:
    """The latent generator of this name, with public settings. It has no label filter: the teacher does that work."""
    match name:
        case "dp2-vae":
            return DP2VAE(sampling_rate=sampling_rate, steps=steps, width=width, prior_clip_norm=prior_clip)
        case "dp-lflow":
            return DPLFlow(sampling_rate=sampling_rate, steps=steps, filter_steps=0)
    raise ValueError(f"latent must be one of {', '.join(LATENT_METHODS)}, not {name!r}")


def filtered(draw: Draw, teacher: nn.Module | None, *, max_rejections: int) -> Draw:
    """``draw`` with what the teacher assigns to another class drawn again; without a teacher as it is."""
    if teacher is None:
        return draw

    def accepted(labels: Tensor) -> Tensor:
        return rejection_sample(draw, teacher, labels, max_rejections=max_rejections)

    return accepted


def public_images(curator: Curator, draw: Draw | None, *, count: int, procedural_share: float) -> tuple[Tensor, Tensor]:
    """``uint8 [count, *shape]`` and labels: samples with their labels, procedural images with random ones.

    Without ``draw`` all images are procedural.
    """
    classes, device = len(curator.classes), curator.device
    made = round(procedural_share * count) if draw is not None else count
    labels = torch.cat([torch.arange(count - made) % classes, torch.randint(classes, (made,))]).to(device)
    parts: list[Tensor] = []
    if draw is not None and made < count:
        with torch.no_grad():
            parts += [draw(some) for some in labels[: count - made].split(_DRAWN_AT_ONCE)]
    parts.append(procedural_images(made, shape=curator.shape, device=device))
    return torch.cat([(part.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8) for part in parts]), labels


@dataclass(frozen=True)
class PublicTraining:
    """Ordinary training of a denoiser on public images."""

    steps: int
    batch: int
    learning_rate: float

    def train(
        self,
        curator: Curator,
        model: Denoiser,
        images: Tensor,
        labels: Tensor,
        sigma: Callable[[Tensor], Tensor],
    ) -> None:
        """``sigma`` turns uniform numbers into noise levels."""
        half = images.device.type == "cuda"
        if half:
            use_channels_last(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate, fused=True)
        strata = torch.arange(self.batch, device=images.device)
        for index in curator.track(range(self.steps), "warm start", self.steps):
            optimizer.param_groups[0]["lr"] = self.learning_rate * cosine_decay(index / self.steps, final=0.1)
            rows = torch.randint(len(images), (self.batch,), device=images.device)
            clean = images[rows].to(torch.get_default_dtype()) / 127.5 - 1.0
            levels = sigma((strata + torch.rand(self.batch, device=images.device)) / self.batch)
            with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
                loss = model.loss(clean, torch.randn_like(clean), levels, labels[rows]).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
