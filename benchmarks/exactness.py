"""How far one record moves the sum of clipped gradients, and what a step costs.

    python benchmarks/exactness.py --all --device cuda --out docs/results/engine-exactness-h200.json
    python benchmarks/exactness.py --all --small --out docs/results/engine-exactness-cpu.json
    python benchmarks/exactness.py --device cuda --speed 32:16:512 --out docs/results/engine-speed.json

Exactness: for identical, opposite and random records, the sum over n + 1 records minus the sum over n, in clip norms,
at sizes from 1 to ``--most``; whether a microbatch gives the same bits in every order; and sizes of microbatch that had
to be divided for that. ``--all`` takes every network in every arithmetic, eager and compiled; ``--small`` takes narrow
networks on small images, for a CPU. Rows are written as they are measured, and ``--seconds`` ends the run between two
rows. Speed: rows a second of a plain and of a private step with several draws a record, in one run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from networks import MODELS, SMALL_MODELS
from sfumato.experiments.results import current_commit
from sfumato.methods.dp2_vae import DP2VAE
from sfumato.methods.dppm import DPPM
from sfumato.privacy.gradients import Batch, Performance, clipped_sum, engine
from sfumato.privacy.randomness import Draws, Randomness

SIZES = (1, 2, 3, 5, 8, 13, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 2048,
         3000, 4095, 4096, 6000, 8000)  # fmt: skip


def of_network(model: nn.Module, images: Tensor, labels: Tensor, random: Draws, sign: Tensor) -> Tensor:
    noise = random.normal("noise", images.shape[2] * images.shape[3] + 1)
    rows: Tensor = model(images, labels, noise)
    return rows * sign[:, 0]


def of_score(model: nn.Module, images: Tensor, labels: Tensor, random: Draws, sign: Tensor) -> Tensor:
    return DPPM().loss(model, images, labels, random) * sign[:, 0]  # type: ignore[arg-type]


def of_decoder(model: nn.Module, images: Tensor, labels: Tensor, random: Draws, sign: Tensor) -> Tensor:
    logits = model(random.normal("code", DP2VAE().latent_dim), labels)
    return (torch.sigmoid(logits).view_as(images) - images).square().flatten(1).sum(1) * sign[:, 0]


CASES = ("flow", "dp2-vae", "dppm", "discriminator")
ARITHMETICS = {"float32": (torch.float32, False), "TF32": (torch.float32, True), "bfloat16": (torch.bfloat16, True)}
Case = tuple[nn.Module, tuple[int, int, int], Callable[..., Tensor]]


def make(name: str, device: torch.device, width: int = 32, *, small: bool = False) -> Case:
    torch.manual_seed(0)
    shape: tuple[int, int, int] = (1, 12, 12) if small else (1, 28, 28)
    if name == "dppm":
        built = DPPM(width=8 if small else width).build(shape, 10)
        return getattr(built, "generator", built).to(device), shape, of_score
    if name == "dp2-vae":
        decoder = DP2VAE(width=8).build(shape, 10).decoder if small else DP2VAE().build(shape, 10).decoder
        return decoder.to(device), shape, of_decoder
    model = (SMALL_MODELS if small else MODELS)[name]().to(device)
    own: tuple[int, int, int] = model.shape  # type: ignore[assignment]
    return model, own, of_network


def records(shape: tuple[int, int, int], units: int, kind: str, device: torch.device, draws: int = 1) -> Batch:
    torch.manual_seed(1)
    ids = torch.arange(units, device=device)
    images, labels = torch.rand(units, *shape, device=device), ids % 10
    sign = torch.ones(units, 1, device=device)
    if kind != "random":
        images, labels, ids = images[:1].expand_as(images).contiguous(), 0 * labels, 0 * ids
    if kind == "opposite":
        sign[::2] = -1.0
    images, labels, ids, sign = (t.repeat_interleave(draws, 0) for t in (images, labels, ids, sign))
    draw = torch.arange(draws, device=device).repeat(units)
    weights = torch.full((units, draws), 1.0 / draws, device=device)
    return Batch(images, labels, Randomness(0).draws(ids, draw, "benchmark"), weights, sign)


def vector(sums: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in sums.values()])


def movement(case: Case, most: int, performance: Performance, device: torch.device) -> dict[str, Any]:
    model, shape, loss = case
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    clip_norm = 1e-3  # binds for every record
    options: dict[str, Any] = {"performance": performance, "microbatch_size": 256}
    if performance.compile:  # a loss is compiled the second time it comes
        clipped_sum(model, loss, records(shape, 2, "random", device), clip_norm, **options)
    for kind in ("identical", "opposite", "random"):
        batch = records(shape, most + 1, kind, device)
        sizes = [size for size in SIZES if size <= most]
        moved = []
        for size in sizes:
            with_it, without = (
                vector(clipped_sum(model, loss, batch.take(0, n), clip_norm, **options)) for n in (size + 1, size)
            )
            moved.append(float(torch.linalg.vector_norm(with_it - without)) / clip_norm)
        found[kind] = {"largest": max(moved), "smallest": min(moved), "sizes": sizes}
    batch = records(shape, options["microbatch_size"], "random", device)
    whole = vector(clipped_sum(model, loss, batch, clip_norm, **options))
    orders = [torch.randperm(batch.units, generator=torch.Generator().manual_seed(s)).to(device) for s in range(4)]
    found["same bits in every order"] = all(
        torch.equal(whole, vector(clipped_sum(model, loss, batch.select(order), clip_norm, **options)))
        for order in orders
    )
    known = list(engine._known[model].values())
    found["divided microbatches"] = [text for one in known for text in one.row_order.fallbacks]
    found["not traced"] = [one.untraced for one in known if one.untraced]
    if performance.compile:
        found["is compiled"] = any(one.compiled is not None for one in known)
    return found


def seconds(step: Callable[[], object], device: torch.device, rounds: int) -> float:
    for _ in range(2):
        step()
    times = []
    for _ in range(rounds):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


def speed(width: int, draws: int, units: int, performance: Performance, device: torch.device) -> dict[str, Any]:
    model, shape, loss = make("dppm", device, width)
    batch = records(shape, units, "random", device, draws)
    parameters = list(model.parameters())

    def losses(images: Tensor, labels: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=performance.dtype is torch.bfloat16):
            clean = 2.0 * images - 1.0
            noisy = clean + level[:, None, None, None] * noise
            residual, linear, size = model.residual(noisy, level, labels)  # type: ignore[operator]
        value: Tensor = (residual.float() - (clean - linear) / size).square().flatten(1).mean(1).sum()
        return value

    plain_losses = torch.compile(losses, dynamic=False) if performance.compile else losses

    def plain() -> object:
        noise = batch.random.normal("noise", *shape)
        level = torch.exp(-0.7 + 1.2 * batch.random.normal("level", 1)[:, 0])
        return torch.autograd.grad(plain_losses(batch.images, batch.labels, noise, level), parameters)

    def private() -> object:
        return clipped_sum(model, loss, batch, 0.1, microbatch_size=units, performance=performance)

    found: dict[str, Any] = {"width": width, "parameters": sum(p.numel() for p in parameters), "draws": draws,
                             "units": units}  # fmt: skip
    for name, step in (("private", private), ("plain", plain)):
        begun = time.perf_counter()
        step(), step()
        found[f"{name} start seconds"] = time.perf_counter() - begun
        rate = units * draws / seconds(step, device, 7)
        found[f"{name} rows per second"] = rate
        print(found, flush=True)
    found["private / plain"] = found["plain rows per second"] / found["private rows per second"]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        private()
        found["private peak MB"] = torch.cuda.max_memory_allocated() / 2**20
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=8000)
    parser.add_argument("--all", action="store_true", help="every network and arithmetic, eager and compiled")
    parser.add_argument("--small", action="store_true", help="narrow networks on small images")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further row after this time")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--speed", action="append", help="width:draws:units, for example 32:16:512")
    parser.add_argument("--float32", action="store_true", help="float32 in place of bfloat16 for --speed")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = torch.device(given.device)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    result: dict[str, Any] = {"command": "benchmarks/exactness.py", "device": machine, "torch": torch.__version__,
                              "commit": current_commit(), "rows": []}  # fmt: skip

    def note(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        result["rows"].append(row)
        if given.out:
            given.out.write_text(json.dumps(result, indent=1) + "\n")

    for text in given.speed or []:
        width, draws, units = (int(part) for part in text.split(":"))
        dtype = torch.float32 if given.float32 or device.type == "cpu" else torch.bfloat16
        performance = Performance(dtype=dtype, compile=given.compile)
        try:
            note(speed(width, draws, units, performance, device))
        except Exception as error:  # a benchmark goes on with its next row
            note({"speed": text, "failed": f"{type(error).__name__}: {error}"[:500]})
    begun = time.perf_counter()
    cases = given.case or ([] if given.speed else list(CASES))
    compiled = (False, True) if given.all else (given.compile,)
    for compiling, (label, (dtype, tf32)), name in itertools.product(compiled, ARITHMETICS.items(), cases):
        if (device.type == "cpu" and label == "TF32") or time.perf_counter() - begun > given.seconds:
            continue
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        performance = Performance(dtype=dtype, compile=compiling)
        start = time.perf_counter()
        try:
            found = movement(make(name, device, small=given.small), given.most, performance, device)
        except Exception as error:  # a benchmark goes on with its next row
            found = {"failed": f"{type(error).__name__}: {error}"[:500]}
        note({"case": name, "small": given.small, "arithmetic": label, "compiled": compiling, **found,
              "seconds": time.perf_counter() - start})  # fmt: skip


if __name__ == "__main__":
    main()
