"""A Release: the network and the card that may be published, and sampling from them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from sfumato.files import new_folder, write_file, write_json
from sfumato.privacy import Ledger
from sfumato.release.card import Card
from sfumato.release.pages import card_page
from sfumato.release.signature import SigningKey
from sfumato.release.synthetic import SyntheticImages
from sfumato.texts import aligned

WEIGHTS = "model.safetensors"


class Sampler(Protocol):
    """What a release needs of its method: public parameters, the network's architecture, and how to sample from it."""

    def parameters(self) -> dict[str, Any]:
        """The public hyper-parameters."""

    @classmethod
    def configured(cls, settings: Mapping[str, Any]) -> Self:
        """A new object from hyper-parameters."""

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """The network, with fresh weights."""

    def generate(self, model: nn.Module, labels: Tensor) -> Tensor:
        """One image in 0..1 for each label."""


Rebuild = Callable[[Card, Mapping[str, Tensor]], tuple[Sampler, Mapping[str, Tensor]]]
"""From a card and the saved tensors to the method and the tensors that its network lists."""


@runtime_checkable
class Density(Protocol):
    """A method whose network has an exact density."""

    def density(self, model: nn.Module, images: Tensor) -> Tensor:
        """The log-density of each image under each class."""


class DamagedRelease(ValueError):
    """The folder does not hold a release as it was saved."""


class Release:
    """A generator with its card. Sampling is post-processing: it costs no privacy, however often it is done.

    The object that was trained is not kept. Its public parameters make a new method, the new method builds a new
    network, and only the tensors that this network lists are copied into it. Whatever else the trained objects
    hold (attributes, hooks, unlisted state) stays behind.

    Args:
        method: The method that was trained, or an equal one.
        tensors: The state of the trained network.
        card: The card of the run.
    """

    def __init__(self, method: Sampler, tensors: Mapping[str, Tensor], card: Card) -> None:
        self.method = type(method).configured(method.parameters())
        self.card = card
        self.model = self.method.build(card.shape, len(card.classes))
        _load(self.model, {name: tensor.detach().cpu() for name, tensor in tensors.items()})
        self.model.eval().requires_grad_(False)
        self._page: str | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.card.shape

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""
        return self.card.classes

    def __repr__(self) -> str:
        return f"Release({self.card.method}, {self.card.variant}, {self.card.guarantee})"

    def __str__(self) -> str:
        card, shape = self.card, "×".join(map(str, self.shape))
        promise = card.guarantee
        if card.certified:
            promise += f": ε {card.epsilon:g} at δ {card.delta:g} for each {card.unit}, {card.relation}"
        names = ", ".join(self.classes[:10]) + (", …" if len(self.classes) > 10 else "")
        rows = [
            ("guarantee", promise),
            ("method", f"{card.method} ({card.variant}), {card.paper}"),
            ("images", f"{shape} (channels × height × width)"),
            ("classes", f"{len(self.classes)}: {names}"),
            ("made", f"{card.made}, run {card.run}"),
        ]
        return f"{aligned(rows)}\n{card.explained}"

    def sample(
        self,
        count: int,
        *,
        labels: np.ndarray | None = None,
        proportions: bool = False,
        seed: int | None = None,
        batch: int = 500,
        device: str | torch.device | None = None,
    ) -> SyntheticImages:
        """Draw synthetic images.

        Args:
            count: The number of images.
            labels: The class number of each image; balanced over the classes by default.
            proportions: Draw the labels by the noisy class counts of the card instead.
            seed: Makes the images repeatable on one machine.
            batch: Images that are drawn at a time.
            device: By default the GPU if there is one.

        Returns:
            The images, their labels and the card; unpacks as ``images, labels``.
        """
        if count < 1:
            raise ValueError(f"the number of images must be at least 1, not {count}")
        generator = torch.Generator()
        generator.seed() if seed is None else generator.manual_seed(seed)
        wanted = self._labels(count, labels, proportions, generator)
        target = chosen_device(device)
        images = np.empty((count, *self.shape), dtype=np.uint8)
        model = self.model.to(target)
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            for start in range(0, count, batch):
                part = self.method.generate(model, wanted[start : start + batch].to(target))
                images[start : start + batch] = (part.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy()
        return SyntheticImages(images, wanted.numpy(), self.card)

    def _labels(self, count: int, labels: np.ndarray | None, proportions: bool, generator: torch.Generator) -> Tensor:
        classes = len(self.classes)
        if labels is not None:
            wanted = torch.as_tensor(np.asarray(labels, dtype=np.int64))
            if len(wanted) != count or not ((wanted >= 0) & (wanted < classes)).all():
                raise ValueError(f"labels must be {count} numbers from 0 to {classes - 1}")
            return wanted
        if proportions:
            if self.card.class_counts is None:
                raise ValueError("this release has no noisy class counts; draw balanced or give labels")
            weights = torch.tensor(self.card.class_counts).clamp(min=0.0) + 1e-9
            return torch.multinomial(weights, count, replacement=True, generator=generator)
        return torch.arange(count) % classes

    def density(self, images: np.ndarray, *, batch: int = 500, device: str | torch.device | None = None) -> np.ndarray:
        """The log-density of ``uint8 [N, C, H, W]`` images under each class, ``float64 [N, classes]``.

        Only a method with an exact density has one. Its values compare images under one class, not classes.
        """
        if not isinstance(self.method, Density):
            raise TypeError(f"{self.card.method} has no density; dp-lflow has one")
        if images.dtype != np.uint8 or images.shape[1:] != self.shape:
            raise ValueError(f"images must be uint8 of shape {self.shape}, not {images.dtype} {images.shape[1:]}")
        target = chosen_device(device)
        model = self.model.to(target)
        parts = []
        with torch.no_grad():
            for start in range(0, len(images), batch):
                pixels = torch.tensor(images[start : start + batch], device=target)
                values = self.method.density(model, pixels.to(torch.get_default_dtype()) / 255.0)
                parts.append(values.double().cpu().numpy())
        return np.concatenate(parts) if parts else np.zeros((0, len(self.classes)))

    def with_parameters(self, changes: Mapping[str, Any]) -> Release:
        """The same network with other sampling parameters, which its card then states.

        A parameter that changes the network is refused, because the tensors no longer fit.
        """
        parameters = {**self.method.parameters(), **changes}
        method = type(self.method).configured(parameters)
        return Release(method, self.model.state_dict(), replace(self.card, parameters=parameters))

    def with_audits(self, lines: Sequence[str]) -> Release:
        """The same release with these audit results on its card."""
        return Release(self.method, self.model.state_dict(), replace(self.card, audits=tuple(lines)))

    def weights(self) -> bytes:
        """``model.safetensors``, with the sentence of the card in its header."""
        tensors = {name: tensor.contiguous().cpu() for name, tensor in self.model.state_dict().items()}
        return save(tensors, metadata={"sentence": self.card.sentence})

    def bound(self) -> Release:
        """The same release with the hash of its weights on the card."""
        digest = hashlib.sha256(self.weights()).hexdigest()
        return Release(self.method, self.model.state_dict(), replace(self.card, weights=digest))

    def hashes(self, ledger: Ledger) -> dict[str, str]:
        """What the ledger keeps of the release when its run ends; no page is drawn for a ledger in memory."""
        found = {"card.json": self.card.sha256, WEIGHTS: self.card.weights}
        if ledger.path is not None:
            found["card.html"] = hashlib.sha256(self.page().encode()).hexdigest()
        return found

    def page(self) -> str:
        """The card as HTML. Its samples use a fixed seed and the CPU, so that anyone can draw them again."""
        if self._page is None:
            labels = np.repeat(np.arange(len(self.classes)), 10)[:100]
            drawn = self.sample(len(labels), labels=labels, seed=0, device="cpu")
            self._page = card_page(drawn, columns=10)
        return self._page

    def save(self, folder: str | Path, *, key: SigningKey | None = None) -> Path:
        """Write ``model.safetensors``, ``card.json`` and ``card.html`` into a new folder, all or nothing.

        With a ``key``, ``signature.json`` is written beside them; ``sfumato ledger --release`` verifies it.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"{folder} is not empty; a release is never written over another")
        with new_folder(folder) as temporary:
            weights = self.weights()
            if self.card.weights and hashlib.sha256(weights).hexdigest() != self.card.weights:
                raise ValueError("the card names other weights: it is the card of another network")
            write_file(temporary / WEIGHTS, weights, private=False)
            write_json(temporary / "card.json", self.card.to_json(), private=False)
            write_file(temporary / "card.html", self.page(), private=False)
            if key is not None:
                key.sign(temporary)
        return folder

    @classmethod
    def read(cls, folder: str | Path, rebuild: Rebuild) -> Release:
        """The release that ``save`` wrote. ``rebuild`` makes its method, and the present names of its tensors."""
        folder = Path(folder)
        try:
            card = Card.read(folder)
            content = (folder / WEIGHTS).read_bytes()
            if card.weights and hashlib.sha256(content).hexdigest() != card.weights:
                raise ValueError(f"{WEIGHTS} is not the file that the card names")
            method, tensors = rebuild(card, load(content))
            return cls(method, tensors, card)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{folder} holds no release: {Path(error.filename).name} is missing") from None
        except (SafetensorError, ValueError, KeyError, LookupError, TypeError) as error:
            raise DamagedRelease(f"{folder} does not hold a release as it was saved: {error}") from None


def chosen_device(device: str | torch.device | None = None) -> torch.device:
    """This device; without one, a GPU where the machine has one."""
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


def _load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy exactly the tensors that the network lists."""
    listed = model.state_dict()
    extra, missing = sorted(set(tensors) - set(listed)), sorted(set(listed) - set(tensors))
    if extra or missing:
        raise ValueError(f"tensors that the method does not list: {extra}; tensors that are missing: {missing}")
    for name, tensor in tensors.items():
        if tensor.shape != listed[name].shape:
            raise ValueError(f"tensor {name!r} has shape {tuple(tensor.shape)}, not {tuple(listed[name].shape)}")
    model.load_state_dict(tensors)
