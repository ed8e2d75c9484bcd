"""Control methods that look like broken ones and are sound: no audit may refuse or flag them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from broken_methods.controls import ControlMethod, MeanImages, squared_error
from broken_methods.mixed_rows import clean, on_images, on_losses
from sfumato.methods.base import Shape
from sfumato.privacy import Counts, Curator
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws


class OwnStatistics(ControlMethod):
    """each image standardised by its own mean"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squared_error(model, images - clean(images).mean((1, 2, 3), keepdim=True), labels)


class OwnWeights(ControlMethod):
    """each row weighted by its own loss"""

    def make_loss(self) -> Loss:
        return on_losses(lambda rows: torch.where(rows.detach() > 50.0, rows, 0.0))


class KeyedAugmentation(ControlMethod):
    """draws from the record's own generator"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        return squared_error(model, images + 0.1 * random.normal("jitter", *images.shape[1:]), labels)


class PublicConstants(ControlMethod):
    """public constants read as Python numbers"""

    def make_loss(self) -> Loss:
        levels = torch.linspace(0.1, 1.0, 5)

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            return squared_error(model, images * float(levels[-1]), labels)

        return loss


class _Constant(nn.Module):
    """Computes its table at the first call and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        if self.table is None or self.table.shape != images.shape[1:]:
            self.table = torch.linspace(0, 1, images[0:0].shape[-1]).expand(images.shape[1:]).to(images.dtype)
        return images - self.table


class CachedConstant(ControlMethod):
    """a public table computed at the first call"""

    def make_loss(self) -> Loss:
        return on_images(_Constant())


class LocalWrites(ControlMethod):
    """writes into tensors of its own"""

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
        padded = torch.zeros_like(images)
        padded[..., 1:] = images[..., 1:]
        padded.clamp_(-1, 1)
        return squared_error(model, padded, labels)


class NoisySchedule(ControlMethod):
    """a schedule from noisy answers"""

    def fit_networks(self, curator: Curator) -> tuple[nn.Module, Counts | None]:
        model = self.build(curator.shape, len(curator.classes)).to(curator.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=self.learning_rate)
        longest = 1.0
        for step in curator.steps("train"):
            gradient = self.gradient(step, model, self.loss)
            longest = max(longest, float(gradient.parts["base"].norm()))
            (gradient / longest).apply(optimizer)
        return model, None


class _BufferedImages(MeanImages):
    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes)
        self.register_buffer("average", torch.zeros(self.base.shape))


class AveragedWeights(ControlMethod):
    """an exponential average of released weights"""

    def build(self, shape: Shape, classes: int) -> MeanImages:
        return _BufferedImages(shape, classes)

    def stop(self, curator: Curator, model: MeanImages, losses: list[float]) -> bool:
        with torch.no_grad():
            model.get_buffer("average").lerp_(model.base, 0.1)
        return False


CONTROLS: tuple[type[ControlMethod], ...] = (
    OwnStatistics,
    OwnWeights,
    KeyedAugmentation,
    PublicConstants,
    CachedConstant,
    LocalWrites,
    NoisySchedule,
    AveragedWeights,
)
