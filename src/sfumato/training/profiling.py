"""What a training costs: measured in the process that does it, or found by rehearsing steps on random pictures."""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from sfumato.files import write_json
from sfumato.networks.pixels import Shape
from sfumato.privacy import Curator, NoGuarantee, PrivateRecords, Step, SubsampledGaussian
from sfumato.privacy.curator import Item
from sfumato.release.release import Release


class Cost:
    """Starts its watch when it is made; ``so_far`` is what ``internal/cost.json`` keeps."""

    def __init__(self, device: str | torch.device, *, resumed: bool) -> None:
        self.device = torch.device(device)
        self.resumed = resumed
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._began, self._worked = time.perf_counter(), time.process_time()

    def so_far(self) -> dict[str, Any]:
        on_device = None
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            on_device = torch.cuda.max_memory_allocated(self.device)
        return {
            "seconds": time.perf_counter() - self._began,
            # Of all threads together: on a machine with other work it says more than the time that passed.
            "processor_seconds": time.process_time() - self._worked,
            "peak_memory": peak_memory(),
            "peak_device_memory": on_device,
            "device": self.device.type,
            "threads": torch.get_num_threads(),
            "resumed": self.resumed,
        }

    def keep(self, internal: Path) -> None:
        write_json(internal / "cost.json", self.so_far(), private=True)


def peak_memory() -> int:
    """The most bytes this process has held at a time, libraries included."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike getrusage, this is not inherited from the process that started us.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


_TIMED, _COUNTED = 4, 3  # steps; the first of all is not timed
_UNITS, _UNITS_OF_A_CLASS = 48, 20  # records in a step, at least
_FEWER = 4  # times fewer in the first of two rehearsals


class _OperationCounter(TorchDispatchMode):
    """Counts floating-point operations. Unlike torch's ``FlopCounterMode`` it puts no hooks on modules and tensors.

    Such hooks keep what a step computes alive after the step, and the guard of the private gradients refuses that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if func._overloadpacket is torch.ops.aten.convolution_backward:
            self.operations += _backward_operations(*args)
        elif formula is not None:
            self.operations += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _backward_operations(gradient: Tensor, inputs: Tensor, weight: Tensor, *settings: Any) -> int:
    """Operations of ``convolution_backward``: each gradient that is wanted takes as many as the convolution itself.

    Torch counts the gradient of a grouped weight as if it had one group, and a batched convolution has a group for
    every record.
    """
    transposed, wanted = settings[4], settings[7]
    places = math.prod((inputs if transposed else gradient).shape[2:])
    return 2 * len(inputs) * places * weight.numel() * sum(wanted[:2])


class Trainable(Protocol):
    """What profiling needs of a method."""

    curator_type: ClassVar[type[Curator]]

    def queries(self) -> tuple[SubsampledGaussian, ...]:
        """The planned queries."""

    def fit(self, private: PrivateRecords, budget: NoGuarantee, *, device: str | torch.device | None = None) -> Release:
        """Train."""


@dataclass(frozen=True)
class Part:
    """One part of a training: planned steps, records in a step, and what one step takes."""

    name: str
    steps: int
    records: float
    operations: float
    seconds: float


@dataclass(frozen=True)
class Work:
    """Parameters that are released, and the parts; ``seconds`` are for the device that rehearsed."""

    parameters: int
    device: str
    parts: tuple[Part, ...]

    @property
    def operations(self) -> float:
        return sum(part.steps * part.operations for part in self.parts)

    @property
    def seconds(self) -> float:
        return sum(part.steps * part.seconds for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "device": self.device,
            "operations": self.operations,
            "seconds": self.seconds,
            "parts": [asdict(part) for part in self.parts],
        }


def rehearse(method: Trainable, *, shape: Shape, classes: int, images: int, device: str | torch.device = "cpu") -> Work:
    """Some twenty records of each class go through a step; work and seconds are scaled to ``images``.

    Small steps use a device badly and have more padding, so both are upper estimates.
    """
    rates = [event.sampling_rate for event in method.queries() if event.sampling_rate < 1]
    # Every class should come up in the smaller one too: where each has a model, each that is there takes its time.
    units = max(_UNITS, _UNITS_OF_A_CLASS * classes)
    count = max(classes, min(images, round(units / min(rates, default=1.0))))
    fewer = max(classes, count // _FEWER)
    few, _ = _rehearsed(method, shape=shape, classes=classes, count=fewer, device=device)
    more, parameters = _rehearsed(method, shape=shape, classes=classes, count=count, device=device)
    further = (images - count) / max(1, count - fewer)  # as many times the records by which the two differ

    def scaled(smaller: float, larger: float) -> float:
        """What does not depend on the number of records is not scaled up."""
        return larger + further * min(max(0.0, larger - smaller), larger * (count - fewer) / count)

    parts = [
        replace(
            other,
            records=round(other.records * images / count),
            operations=scaled(one.operations, other.operations),
            seconds=scaled(one.seconds, other.seconds),
        )
        if other.records
        else other
        for one, other in zip(few, more, strict=True)
    ]
    return Work(parameters, str(device), tuple(parts))


def _rehearsed(
    method: Trainable, *, shape: Shape, classes: int, count: int, device: str | torch.device
) -> tuple[list[Part], int]:
    """The parts with ``count`` records as they are, and how many parameters are released."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, *shape), dtype=np.uint8)
    # Microbatches of the usual size would be mostly padding here. On a GPU they are that in a training too.
    declared = count if torch.device(device).type == "cpu" else None
    labels, names = np.arange(count) % classes, tuple(map(str, range(classes)))
    records = PrivateRecords(pixels, labels, classes=names, declared_size=declared)
    parts: list[Part] = []
    in_steps = 0.0

    class Rehearsal(type(method).curator_type):  # type: ignore[misc]
        """Stops each part early and writes down what it took."""

        def steps(self, name: str, *, keep: Mapping[str, Any] | None = None) -> Iterator[Step]:
            event = self.plan.event(name)
            yield from _timed(super().steps(name, keep=keep), name, event.steps, event.sampling_rate * count)

        def track(
            self, items: Iterable[Item], name: str, total: int, *, keep: Mapping[str, Any] | None = None
        ) -> Iterator[Item]:
            yield from _timed(super().track(items, name, total, keep=keep), name, total, 0)

    def _timed(items: Iterable[Any], name: str, steps: int, records: float) -> Iterator[Any]:
        nonlocal in_steps
        times: list[float] = []
        counts: list[int] = []
        try:
            for number, item in enumerate(items):
                counter = _OperationCounter() if number >= min(steps - 1, _TIMED) else None
                begin = time.perf_counter()
                # A question that is asked once leaves the loop here, with its answer.
                try:
                    with counter or nullcontext():
                        yield item
                finally:
                    if "cuda" in str(device):
                        torch.cuda.synchronize()
                    times.append(time.perf_counter() - begin)
                    if counter is not None:
                        counts.append(counter.operations)
                if number + 1 == _TIMED + _COUNTED:
                    return
        finally:
            in_steps += sum(times)
            # A step in which the engine tries out formulas counts and takes more than those that follow.
            operations, seconds = min(counts, default=0), statistics.median(times[1:_TIMED] or times or [0.0])
            parts.append(Part(name, steps, records, operations, seconds))

    rehearsed = copy(method)
    object.__setattr__(rehearsed, "curator_type", Rehearsal)
    begin = time.perf_counter()
    release = rehearsed.fit(records, NoGuarantee(), device=device)
    parts.append(Part("everything else", 1, 0, 0, time.perf_counter() - begin - in_steps))
    return parts, sum(p.numel() for p in release.model.parameters())
