"""Broken methods that carry values of one batch or row into another past torch: text, exceptions, finalisers, frames.

The first form of each does so at every step, the second at steps where no timetable of tests looks.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from broken_methods.controls import squared_error
from broken_methods.kept_batches import mean_image
from broken_methods.mixed_rows import clean
from broken_methods.unprobed_steps import Schedule, Scheduled, last_digit, shifted
from sfumato.privacy.gradients import Loss
from sfumato.privacy.randomness import Draws

Value = Tensor | float
Channel = Callable[[nn.Module, Tensor], Value]
"""Model and images → what the channel lets through of this batch, or of the one before."""


@dataclass(frozen=True)
class Leaking(Scheduled):
    """The images of a batch are centred by what a channel lets through."""

    make: ClassVar[Callable[[], Channel]]
    always: ClassVar[bool] = True

    def schedule(self) -> Schedule:
        channel = type(self).make()

        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                return shifted(model, images, labels, channel(model, images) if late or self.always else 0.5)

            return loss

        return at


def _numbers(text: str) -> float:
    found = [float(number) for number in re.findall(r"-?\d+\.\d+(?:e[+-]?\d+)?", text)]
    return min(1.0, max(0.0, sum(found) / max(1, len(found))))


class Representation(Leaking):
    """values read from repr"""

    @staticmethod
    def make() -> Channel:
        return lambda model, images: _numbers(repr(clean(images.detach()).mean()))


class RepresentationInHelper(Representation):
    """values read from repr"""

    always = False


class Formatted(Leaking):
    """values read from an f-string"""

    @staticmethod
    def make() -> Channel:
        return lambda model, images: _numbers(f"{clean(images.detach()).mean()}")


class FormattedInHelper(Formatted):
    """values read from an f-string"""

    always = False


class RaisedValues(Leaking):
    """a tensor that an exception carries out"""

    @staticmethod
    def make() -> Channel:
        caught: list[BaseException] = []

        def channel(model: nn.Module, images: Tensor) -> Value:
            before: Value = caught[-1].args[0] if caught else 0.5
            try:
                raise ValueError(mean_image(images))
            except ValueError as error:
                caught.append(error)
            return before

        return channel


class RaisedValuesInHelper(RaisedValues):
    """a tensor that an exception carries out"""

    always = False


class WeakReference(Leaking):
    """a weak reference to a tensor that the graph keeps alive"""

    @staticmethod
    def make() -> Channel:
        seen: list[Any] = []

        def channel(model: nn.Module, images: Tensor) -> Value:
            before = seen[-1]() if seen else None
            mean = mean_image(images)
            model.__dict__["statistics"] = mean
            seen.append(weakref.ref(mean))
            return 0.5 if before is None else before

        return channel


class WeakReferenceInHelper(WeakReference):
    """a weak reference to a tensor that the graph keeps alive"""

    always = False


class _LastWords:
    """Hands on what it holds when it is collected."""

    def __init__(self, images: Tensor, heirs: list[Tensor]) -> None:
        self.mean, self.heirs = mean_image(images), heirs

    def __del__(self) -> None:
        self.heirs[:] = [self.mean]


class Finaliser(Leaking):
    """a __del__ that hands a tensor on"""

    @staticmethod
    def make() -> Channel:
        heirs: list[Tensor] = []

        def channel(model: nn.Module, images: Tensor) -> Value:
            before: Value = heirs[0] if heirs else 0.5
            _LastWords(images, heirs)
            return before

        return channel


class FinaliserInHelper(Finaliser):
    """a __del__ that hands a tensor on"""

    always = False


class ForwardHook(Leaking):
    """the inputs of a layer collected by a module hook"""

    @staticmethod
    def make() -> Channel:
        seen: list[Tensor] = []
        layer = nn.Flatten()
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))

        def channel(model: nn.Module, images: Tensor) -> Value:
            layer(images)
            return clean(seen[max(0, len(seen) - 2)]).mean(0).view(images.shape[1:])

        return channel


class ForwardHookInHelper(ForwardHook):
    """the inputs of a layer collected by a module hook"""

    always = False


def _running_mean() -> Generator[Value, Tensor | None, None]:
    mean: Value = 0.5
    while True:
        images = yield mean
        mean = 0.5 if images is None else mean_image(images)


class SuspendedFrame(Leaking):
    """a mean kept in the frame of a generator"""

    @staticmethod
    def make() -> Channel:
        running = _running_mean()
        next(running)
        before: list[Value] = [0.5]

        def channel(model: nn.Module, images: Tensor) -> Value:
            last = running.send(None)
            next(running)
            running.send(images)
            return last if isinstance(last, Tensor) else before[0]

        return channel


class SuspendedFrameInHelper(SuspendedFrame):
    """a mean kept in the frame of a generator"""

    always = False

    @staticmethod
    def make() -> Channel:
        def frames() -> Generator[Value, Tensor, None]:
            mean: Value = 0.5
            while True:
                images = yield mean
                mean = mean_image(images)

        running = frames()
        next(running)
        return lambda model, images: running.send(images)


class ThreadLocal(Leaking):
    """a mean kept in the storage of a thread"""

    @staticmethod
    def make() -> Channel:
        own = threading.local()

        def channel(model: nn.Module, images: Tensor) -> Value:
            before: Value = getattr(own, "mean", 0.5)
            own.mean = mean_image(images)
            return before

        return channel


class ThreadLocalInHelper(ThreadLocal):
    """a mean kept in the storage of a thread"""

    always = False


class ParameterHook(Scheduled):
    """gradients collected by a hook on a parameter"""

    def schedule(self) -> Schedule:
        collected: list[Tensor] = []

        def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
            base = model.get_parameter("base")
            if base.requires_grad and torch.is_grad_enabled():
                base.register_hook(collected.append)
            return squared_error(model, images, labels) * (1.0 + 0.1 * len(collected))

        return lambda late: loss


class ParameterHookInHelper(Scheduled):
    """gradients collected by a hook on a parameter"""

    def schedule(self) -> Schedule:
        collected: list[Tensor] = []

        def at(late: bool) -> Loss:
            def loss(model: nn.Module, images: Tensor, labels: Tensor, random: Draws) -> Tensor:
                difference = (images - model(labels)).flatten(1)
                if late and difference.requires_grad:
                    difference.register_hook(collected.append)
                shift = last_digit(collected[-1].clamp(-1, 1)) if late and collected else 0.0
                return 10 * (difference + shift).square().sum(1)

            return loss

        return at


MISTAKES = (
    (Representation, RepresentationInHelper),
    (Formatted, FormattedInHelper),
    (RaisedValues, RaisedValuesInHelper),
    (WeakReference, WeakReferenceInHelper),
    (Finaliser, FinaliserInHelper),
    (ForwardHook, ForwardHookInHelper),
    (SuspendedFrame, SuspendedFrameInHelper),
    (ThreadLocal, ThreadLocalInHelper),
    (ParameterHook, ParameterHookInHelper),
)
