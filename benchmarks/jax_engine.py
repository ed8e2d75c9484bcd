"""A plain and a private step in JAX, the latter by ``jax_privacy.clipped_grad``, of one case of ``gradients.py``.

    python -m venv jax && jax/bin/pip install jax==0.10.2 jax-privacy==2.0.0
    python benchmarks/gradients.py --jax jax/bin/python --threads 1 --cpu-time --case flow:256

``gradients.py --jax`` runs this file with an interpreter that has JAX and JAX-Privacy and need not have anything else;
the project depends on neither. The file that it is given holds the weights, the batch and the clip of the other
contenders, and the sum of clipped gradients of a few examples by a plain loop. Each line of output is one measurement.

The networks are those of ``networks.py``, with channels last. An example's loss is the average over its draws, as
JAX-Privacy does it for a user with several examples (``keep_batch_dim=False``). Steps are compiled, and the seconds
which that takes are counted apart. Memory is what the compiler plans for results and temporary values.

JAX-Privacy is measured with its defaults, and without its treatment of infinite and undefined values
(``nan_safe=False``). Its documentation leaves ``microbatch_size`` to the user, from 1 (least memory) to the whole batch
(the default, most parallel). Both ends are tried, as are two ways to write a transposed convolution (the second, which
is slow in a loop, with the whole batch only), and for each contender the fastest is measured; ``tried`` has the
milliseconds of all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jax_privacy
import numpy
from jax import Array, lax

Weights = dict[str, Array]
LAYOUT = ("NHWC", "HWIO", "NHWC")
TRANSPOSED = ("decoder.3.", "decoder.5.", "up.")
"""The names of transposed convolutions begin like this."""
SLOW, SLOW_ROUNDS = 0.5, 3
"""A step of more seconds than this is repeated this often and no more."""


@dataclass
class Layers:
    """Layers by their names in ``networks.py``. ``spread``: a transposed convolution is one of an input with gaps."""

    weights: Weights
    constants: Weights
    spread: bool

    def pair(self, name: str) -> tuple[Array, Array]:
        return self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias", jnp.zeros(()))

    def linear(self, name: str, x: Array) -> Array:
        kernel, bias = self.pair(name)
        return x @ kernel + bias

    def convolution(self, name: str, x: Array, stride: int = 1, padding: int = 1) -> Array:
        kernel, bias = self.pair(name)
        return lax.conv_general_dilated(x, kernel, (stride,) * 2, [(padding,) * 2] * 2, dimension_numbers=LAYOUT) + bias

    def transposed(self, name: str, x: Array, more: int = 0) -> Array:
        """Of stride 2 and padding 1; ``more`` is PyTorch's ``output_padding``."""
        kernel, bias = self.pair(name)
        left = kernel.shape[0] - 2
        if not self.spread:
            return lax.conv_transpose(x, kernel, (2, 2), [(left, left + more)] * 2, dimension_numbers=LAYOUT) + bias
        x = lax.pad(x, 0.0, [(0, 0, 0), (left, left + more, 1), (left, left + more, 1), (0, 0, 0)])
        return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=LAYOUT) + bias

    def group_norm(self, name: str, x: Array, groups: int = 8) -> Array:
        scale, shift = self.pair(name)
        parts = x.reshape(*x.shape[:3], groups, -1)
        mean, variance = parts.mean((1, 2, 4), keepdims=True), parts.var((1, 2, 4), keepdims=True)
        return ((parts - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + shift


def flow(layers: Layers, images: Array, noise: Array) -> Array:
    x = jax.nn.relu(layers.convolution("encoder.0", images, 2))
    x = jax.nn.relu(layers.convolution("encoder.2", x, 2))
    rows, side, _, channels = x.shape
    code = layers.linear("encoder.5", x.transpose(0, 3, 1, 2).reshape(rows, -1))
    x = jax.nn.relu(layers.linear("decoder.0", code)).reshape(rows, channels, side, side).transpose(0, 2, 3, 1)
    x = layers.transposed("decoder.5", jax.nn.relu(layers.transposed("decoder.3", x, 1)), 1)
    entropy = jax.nn.softplus(x) - x * images
    volume = jnp.zeros(rows)
    for i in range(9):
        mask, order = layers.constants[f"flow.{i}.mask"], layers.constants[f"flow.{i}.order"]
        x = jax.nn.relu(layers.linear(f"flow.{i}.network.0", code * mask))
        x = jax.nn.relu(layers.linear(f"flow.{i}.network.2", x))
        scale, shift = jnp.split(layers.linear(f"flow.{i}.network.4", x), 2, 1)
        scale = jnp.tanh(scale) * (1 - mask)
        code = (code * jnp.exp(scale) + shift * (1 - mask))[:, order]
        volume += scale.sum(1)
    return 1e5 * entropy.mean((1, 2, 3)) + 0.5 * jnp.square(code).sum(1) - volume


def discriminator(layers: Layers, images: Array, noise: Array) -> Array:
    for i in (0, 2, 4, 6):
        images = jax.nn.leaky_relu(layers.convolution(f"layers.{i}", images, 2), 0.2)
    return jax.nn.relu(1.0 - layers.convolution("layers.8", images, padding=0).reshape(-1))


def unet(layers: Layers, images: Array, noise: Array) -> Array:
    def block(name: str, x: Array) -> Array:
        x = jax.nn.silu(layers.group_norm(f"{name}.normal", layers.convolution(f"{name}.first", x)))
        x = x + layers.linear(f"{name}.level", level)[:, None, None, :]
        return jax.nn.silu(layers.group_norm(f"{name}.again", layers.convolution(f"{name}.second", x)))

    noise, place = noise[:, :-1].reshape(images.shape), noise[:, -1:]
    level = jnp.sin(place * jnp.arange(1.0, 33.0))
    high = block("blocks.0", images + jnp.exp(place)[:, :, None, None] * noise)
    middle = block("blocks.1", layers.convolution("down.0", high, 2))
    low = block("blocks.2", layers.convolution("down.1", middle, 2))
    middle = block("blocks.3", jnp.concatenate([middle, layers.transposed("up.0", low)], 3))
    high = block("blocks.4", jnp.concatenate([high, layers.transposed("up.1", middle)], 3))
    return jnp.square(layers.convolution("last", high) - noise).mean((1, 2, 3))


NETWORKS = {"flow": flow, "discriminator": discriminator, "unet": unet}


@dataclass
class Case:
    """Images and noise are (units, draws, …); ``reference`` is the sum of clipped gradients of the first units."""

    network: Callable[[Layers, Array, Array], Array]
    weights: Weights
    constants: Weights
    reference: Weights
    images: Array
    noise: Array
    clip: float

    def one(self, spread: bool, weights: Weights, images: Array, noise: Array) -> Array:
        """The loss of one example, with its draws."""
        return self.network(Layers(weights, self.constants, spread), images, noise).mean()

    def total(self, spread: bool, weights: Weights, images: Array, noise: Array) -> Array:
        """The sum of the examples' losses."""
        rows = [value.reshape(-1, *value.shape[2:]) for value in (images, noise)]
        return self.one(spread, weights, *rows) * len(images)

    def private(self, spread: bool, microbatch: int | None, **settings: bool) -> Callable[..., Weights]:
        return jax_privacy.clipped_grad(partial(self.one, spread), l2_clip_norm=self.clip, batch_argnums=(1, 2),
                                        keep_batch_dim=False, microbatch_size=microbatch, **settings)  # fmt: skip

    def steps(self) -> dict[str, dict[str, Callable[..., Weights]]]:
        """The contenders, and the ways to write each."""
        spreads = {"": False}
        if any(name.startswith(TRANSPOSED) for name in self.weights):
            spreads = {"lax.conv_transpose ": False, "lax.pad ": True}
        found = {
            "jax plain": {
                way.strip() or "only": jax.grad(partial(self.total, spread)) for way, spread in spreads.items()
            }
        }
        for name, settings in (("jax_privacy", {}), ("jax_privacy, nan_safe=False", {"nan_safe": False})):
            found[name] = {
                f"{way}microbatch_size={size}": self.private(spread, size, **settings)
                for way, spread in spreads.items()
                for size in ((None,) if spread else (None, 1))
            }
        return found

    def compiled(self, function: Callable[..., Weights], units: int | None = None) -> jax.stages.Compiled:
        return jax.jit(function).lower(self.weights, self.images[:units], self.noise[:units]).compile()

    def apart(self, function: Callable[..., Weights]) -> float:
        """The relative distance of a private sum over the first units from the reference."""
        units = min(24, len(self.images))
        step = self.compiled(function, units)
        sums = step(self.weights, self.images[:units], self.noise[:units])
        distance = norm_of({name: sums[name] - value for name, value in self.reference.items()})
        return distance / norm_of(self.reference)


def converted(name: str, weight: numpy.ndarray) -> Array:
    """A weight of PyTorch in the layout of JAX: inputs before outputs, positions first."""
    if weight.ndim == 4 and name.startswith(TRANSPOSED):
        return jnp.asarray(weight[:, :, ::-1, ::-1].transpose(2, 3, 0, 1))
    return jnp.asarray(weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight.T)


def read(network: str, path: Path) -> Case:
    found: dict[str, Weights] = {"weights": {}, "constants": {}, "reference": {}}
    with numpy.load(path) as file:
        for key in file:
            kind, _, name = key.partition("/")
            if name:
                found[kind][name] = jnp.asarray(file[key]) if kind == "constants" else converted(name, file[key])
        images, noise = jnp.asarray(numpy.moveaxis(file["images"], 2, -1)), jnp.asarray(file["noise"])
        return Case(NETWORKS[network], **found, images=images, noise=noise, clip=float(file["clip"]))


def norm_of(values: Weights) -> float:
    return sum(float(numpy.square(numpy.asarray(value, float)).sum()) for value in values.values()) ** 0.5


def measure(case: Case, rounds: int, clock: Callable[[], float]) -> list[dict[str, object]]:
    def seconds(step: jax.stages.Compiled) -> float:
        start = clock()
        jax.block_until_ready(step(case.weights, case.images, case.noise))
        return clock() - start

    rows: dict[str, dict[str, object]] = {}
    best: dict[str, jax.stages.Compiled] = {}
    for contender, ways in case.steps().items():
        tried: dict[str, float] = {}
        for way, function in ways.items():
            start = clock()
            step = case.compiled(function)
            compiling = clock() - start
            tried[way] = seconds(step)
            if tried[way] < SLOW:
                tried[way] = seconds(step)  # the first step also prepares memory
            if tried[way] == min(tried.values()):
                best[contender] = step
                memory = step.memory_analysis()
                peak = memory.temp_size_in_bytes + memory.output_size_in_bytes
                rows[contender] = {"contender": contender, "way": way, "compile_seconds": compiling,
                                   "peak_mb": peak / 2**20}  # fmt: skip
        if contender != "jax plain":
            rows[contender]["apart"] = case.apart(ways[str(rows[contender]["way"])])
        rows[contender]["tried"] = {way: 1e3 * value for way, value in tried.items()}
    times: dict[str, list[float]] = {contender: [] for contender in best}
    for _ in range(rounds):
        for contender, step in best.items():
            if len(times[contender]) < SLOW_ROUNDS or statistics.median(times[contender]) <= SLOW:
                times[contender].append(seconds(step))
    plain = statistics.median(times["jax plain"])
    for contender, row in rows.items():
        middle = statistics.median(times[contender])
        row |= {"milliseconds": 1e3 * middle, "jax_ratio": middle / plain}
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=list(NETWORKS))
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu-time", action="store_true")
    given = parser.parse_args()
    # XLA starts as many threads as there are cores that it may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-given.threads :])
    case = read(given.network, given.file)
    versions = {"jax": jax.__version__, "jax_privacy": jax_privacy.__version__, "python": platform.python_version()}
    for row in measure(case, given.rounds, time.process_time if given.cpu_time else time.perf_counter):
        parameters = sum(value.size for value in case.weights.values())
        print(json.dumps({**row, "parameters": parameters, "versions": versions}))


if __name__ == "__main__":
    main()
