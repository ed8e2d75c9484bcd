"""A Release: what may leave. Its network, its card, and samples drawn from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sfumato.files import new_folder, write_file, write_json
from sfumato.release.card_page import card_page, sample_grid


class Sampler(Protocol):
    """What a release needs of its method: the network's architecture, and how to draw from it."""

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module: ...
    def generate(self, model: nn.Module, labels: Tensor) -> Tensor: ...


@runtime_checkable
class Density(Protocol):
    """A method whose network knows how likely an image is."""

    def density(self, model: nn.Module, images: Tensor) -> Tensor: ...


class DamagedRelease(ValueError):
    """The folder does not hold a release as it was saved."""


class Release:
    """A generator with its card. Drawing from it is post-processing: free, and as often as you like."""

    def __init__(self, method: Sampler, model: nn.Module, card: dict[str, Any]) -> None:
        self.method = method
        self.card = card
        self.shape: tuple[int, int, int] = tuple(card["shape"])
        self.classes: tuple[str, ...] = tuple(card["classes"])
        # A fresh network with the allowed tensors only: hooks, extra attributes and unlisted state stay behind.
        self.model = method.build(self.shape, len(self.classes))
        _load(self.model, {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()})
        self.model.eval().requires_grad_(False)

    def __repr__(self) -> str:
        return f"Release({self.card['method']}, {self.card['variant']}, {self.card['guarantee']})"

    def sample(
        self,
        count: int,
        *,
        labels: np.ndarray | None = None,
        proportions: bool = False,
        seed: int | None = None,
        batch: int = 500,
        device: str | torch.device | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """``count`` images ``uint8 [count, C, H, W]`` and their labels.

        Labels are balanced over the classes; or as given; or, with ``proportions``, drawn by the noisy class counts.
        """
        if count < 1:
            raise ValueError(f"the number of images must be at least 1, not {count}")
        classes = len(self.classes)
        generator = torch.Generator()
        generator.seed() if seed is None else generator.manual_seed(seed)
        if labels is not None:
            wanted = torch.as_tensor(np.asarray(labels, dtype=np.int64))
            if len(wanted) != count or not ((wanted >= 0) & (wanted < classes)).all():
                raise ValueError(f"labels must be {count} numbers from 0 to {classes - 1}")
        elif proportions:
            if self.card["class_counts"] is None:
                raise ValueError("this release has no noisy class counts; draw balanced or give labels")
            weights = torch.tensor(self.card["class_counts"]).clamp(min=0.0) + 1e-9
            wanted = torch.multinomial(weights, count, replacement=True, generator=generator)
        else:
            wanted = torch.arange(count) % classes
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        images = np.empty((count, *self.shape), dtype=np.uint8)
        model = self.model.to(target)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            for start in range(0, count, batch):
                part = self.method.generate(model, wanted[start : start + batch].to(target))
                images[start : start + batch] = (part.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
        return images, wanted.numpy()

    def density(self, images: np.ndarray, *, batch: int = 500, device: str | torch.device | None = None) -> np.ndarray:
        """The log-density of ``uint8 [N, C, H, W]`` images under each class, ``float64 [N, classes]``.

        Only a method with an exact density has one; its numbers compare images under one class, not classes.
        """
        if not isinstance(self.method, Density):
            raise TypeError(f"{self.card['method']} has no density; dp-lflow has one")
        if images.dtype != np.uint8 or images.shape[1:] != self.shape:
            raise ValueError(f"images must be uint8 of shape {self.shape}, not {images.dtype} {images.shape[1:]}")
        target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        model = self.model.to(target)
        parts = []
        with torch.no_grad():
            for start in range(0, len(images), batch):
                pixels = torch.tensor(images[start : start + batch], device=target)
                values = self.method.density(model, pixels.to(torch.get_default_dtype()) / 255.0)
                parts.append(values.double().cpu().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes)))

    def page(self) -> str:
        """The card as HTML. Its samples come from a fixed seed and the CPU, so that anyone can draw them again."""
        labels = np.repeat(np.arange(len(self.classes)), 10)[:100]
        images, _ = self.sample(len(labels), labels=labels, seed=0, device="cpu")
        return card_page(self.card, sample_grid(self.card, images, columns=10))

    def save(self, folder: str | Path) -> Path:
        """``model.safetensors``, ``card.json`` and ``card.html``, all or nothing."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty; a release is never written over another")
        with new_folder(folder) as temporary:
            tensors = {name: tensor.contiguous().cpu() for name, tensor in self.model.state_dict().items()}
            save_file(tensors, temporary / "model.safetensors", metadata={"sentence": self.card["sentence"]})
            write_json(temporary / "card.json", self.card, private=False)
            write_file(temporary / "card.html", self.page(), private=False)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Release:
        """The release that ``save`` wrote; its method is found by name and rebuilt from the card's parameters."""
        from sfumato.methods.first_edition import current_parameters
        from sfumato.methods.registry import find

        folder = Path(folder)
        try:
            card = json.loads((folder / "card.json").read_text())
            tensors = load_file(folder / "model.safetensors")
            method = find(card["method"]).configured(current_parameters(card["method"], card["parameters"]))
            model = method.build(tuple(card["shape"]), len(card["classes"]))
            _load(model, tensors)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{folder} holds no release: {Path(error.filename).name} is missing") from None
        except (SafetensorError, ValueError, KeyError, LookupError, TypeError) as error:
            raise DamagedRelease(f"{folder} does not hold a release as it was saved: {error}") from None
        return cls(method, model, card)


def _load(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Exactly the tensors that the method's network lists."""
    listed = model.state_dict()
    extra, missing = sorted(set(tensors) - set(listed)), sorted(set(listed) - set(tensors))
    if extra or missing:
        raise ValueError(f"tensors that the method does not list: {extra}; tensors that are missing: {missing}")
    for name, tensor in tensors.items():
        if tensor.shape != listed[name].shape:
            raise ValueError(f"tensor {name!r} has shape {tuple(tensor.shape)}, not {tuple(listed[name].shape)}")
    model.load_state_dict(tensors)
