"""One training of a classifier's network on images that stay on the device, and the weights that it picks."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sfumato.evaluation.classifier_networks import Shape
from sfumato.evaluation.image_sets import last_of_each_class_first
from sfumato.training.ema import ema_update

if TYPE_CHECKING:
    from sfumato.evaluation.classifiers import ClassifierSpec, Progress


@dataclass(frozen=True)
class Pick:
    """The weights of one epoch; 1 is the first epoch."""

    epoch: int
    state: dict[str, Tensor]


class NetworkTraining:
    """One training of a network on images that stay on the device."""

    def __init__(
        self,
        spec: ClassifierSpec,
        pixels: np.ndarray,
        labels: np.ndarray,
        classes: int,
        seed: int,
        device: torch.device,
        *,
        bfloat16: bool = False,
    ) -> None:
        self.spec, self.classes, self.seed, self.device, self.bfloat16 = spec, classes, seed, device, bfloat16
        self.shape: Shape = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        self.order = torch.Generator().manual_seed(seed)
        rows = (
            last_of_each_class_first(labels)
            if spec.held_out_last
            else torch.randperm(len(pixels), generator=self.order)
        )
        aside = round(spec.held_out * len(pixels))
        self.held_out, self.rows = rows[:aside].to(device), rows[aside:]
        self.images = torch.tensor(pixels, device=device)
        self.targets = torch.tensor(labels, dtype=torch.int64, device=device)

    def run(self, validation: tuple[np.ndarray, np.ndarray] | None, progress: Progress) -> list[Pick]:
        """The epoch that is best on the held-out images, and the one that is best on validation images if given."""
        spec, device = self.spec, self.device
        picks = [_BestEpoch(spec, self.images[self.held_out], self.targets[self.held_out])]
        if validation is not None:
            given = torch.tensor(validation[0], device=device), torch.tensor(validation[1], device=device)
            picks.append(_BestEpoch(spec, *given))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            model = _on_device(_network(spec, self.shape, self.classes), device)
            scored = model if spec.ema_decay is None else copy.deepcopy(model)
            optimizer = spec.optimizer.build(model)
            updates = 0
            for epoch in range(1, spec.epochs + 1):
                updates = self._epoch(model, scored, optimizer, epoch, updates)
                for pick in picks:
                    pick.consider(epoch, scored)
                progress(spec.name, epoch, spec.epochs)
        return [pick.found(scored, spec.epochs) for pick in picks]

    def _epoch(
        self, model: nn.Module, scored: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, updates: int
    ) -> int:
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = self.spec.optimizer.rate(epoch - 1)
        turn = self.rows[torch.randperm(len(self.rows), generator=self.order)].to(self.device)
        for part in turn.split(self.spec.batch):
            optimizer.zero_grad(set_to_none=True)
            values = _network_input(self.images[part], self.spec.centred)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                outputs = model(values)
            F.cross_entropy(outputs.float(), self.targets[part]).backward()
            optimizer.step()
            updates += 1
            if self.spec.ema_decay is not None:
                ema_update(scored, model, index=updates, decay=self.spec.ema_decay)
        if scored is not model:
            # Only weights are averaged; batch normalisation keeps the statistics of the training.
            for average, current in zip(scored.buffers(), model.buffers(), strict=True):
                average.copy_(current)
        return updates


class _BestEpoch:
    """Keeps the weights of the epoch with the best accuracy on some images; without images, of the last epoch."""

    def __init__(self, spec: ClassifierSpec, images: Tensor, targets: Tensor) -> None:
        self.spec, self.images, self.targets = spec, images, targets
        self.accuracy = -1.0
        self.pick: Pick | None = None

    def consider(self, epoch: int, model: nn.Module) -> None:
        if not len(self.images):
            return
        found = float((predictions(model, self.images, self.spec.centred) == self.targets).double().mean())
        if found > self.accuracy or (found == self.accuracy and self.spec.ties == "last"):
            self.accuracy, self.pick = found, Pick(epoch, _state(model))

    def found(self, model: nn.Module, epochs: int) -> Pick:
        return self.pick or Pick(epochs, _state(model))


def picked_network(spec: ClassifierSpec, shape: Shape, classes: int, pick: Pick, device: torch.device) -> nn.Module:
    """The network with the weights of the picked epoch."""
    with torch.random.fork_rng(devices=[]):  # the first weights are replaced, and no caller's numbers are used for them
        network = _network(spec, shape, classes)
    network.load_state_dict(pick.state)
    return _on_device(network, device)


@torch.inference_mode()
def predictions(model: nn.Module, images: Tensor, centred: bool) -> Tensor:
    """The numbers of the predicted classes, always in float32."""
    model.eval()
    return torch.cat([model(_network_input(part, centred)).argmax(dim=1) for part in images.split(2048)])


def _network(spec: ClassifierSpec, shape: Shape, classes: int) -> nn.Module:
    if spec.network is None:
        raise ValueError(f"{spec.name!r} has no network to train")
    return spec.network(shape, classes)


def _on_device(model: nn.Module, device: torch.device) -> nn.Module:
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _network_input(images: Tensor, centred: bool) -> Tensor:
    values = images.float().div_(255.0)
    return (values * 2.0 - 1.0 if centred else values).contiguous(memory_format=torch.channels_last)
