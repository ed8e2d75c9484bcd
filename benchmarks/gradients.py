"""What a private step costs: plain SGD against every way to a sum of clipped gradients, interleaved in one run.

    python benchmarks/gradients.py --threads 2 --case flow:256 --case discriminator:64 --out gradients.json
    python benchmarks/gradients.py --device cuda --tf32 --case flow:6000 --case discriminator:512 --case unet:128x16
    python benchmarks/gradients.py --h200 --out docs/results/engine-h200.json
    python -m venv jax && jax/bin/pip install jax==0.10.2 jax-privacy==2.0.0
    python benchmarks/gradients.py --jax jax/bin/python --threads 1 --cpu-time --case flow:256 --case unet:32x4

``unet:128x16`` are 128 examples with 16 draws each: an example's loss is the average over its draws. ``--h200`` runs
every measurement of the engine on a GPU, one process after another, each with a time limit (``gpu.py``).

Times are medians over the rounds; in every round each contender takes one step in turn. Microbatches have a fixed size;
here they are equal parts of the batch, of at most 256 rows on a CPU, so that nothing is padded. The micro-batch loop
is timed on at most ``--loop-units`` examples and scaled up. Memory is the peak above what model and batch take.
``apart`` is the relative distance of each sum from a plain loop over the examples, in float32 with TF32 off; ``÷ clip``
the largest norm that one example adds, in units of the clip, in the arithmetic of the run: it must not pass 1.

``--jax`` names an interpreter that has JAX and JAX-Privacy, which are no dependencies of this project. After the other
contenders of a case, ``jax_engine.py`` runs there with the same weights and batch, on a CPU. ``ratio`` is to the plain
step in PyTorch, ``jax_ratio`` to the one in JAX.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import torch
from torch import Tensor

import gpu
from gradient_contenders import CONTENDERS, Case, Sums, arguments_of, loss, make, norm_of
from networks import MODELS
from sfumato.cli.main import keep_freed_memory
from sfumato.experiments.results import current_commit
from sfumato.privacy.gradients import Batch, PerClass, clipped_sum

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import plain_loop

CLOCK: list[Callable[[], float]] = [time.perf_counter]
SLOW, SLOW_ROUNDS = 0.5, 3
"""A step of more seconds than this is repeated this often and no more."""


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _seconds(step: Callable[[Batch], Sums], batch: Batch) -> float:
    _wait(batch.images.device)
    start = CLOCK[0]()
    step(batch)
    _wait(batch.images.device)
    return CLOCK[0]() - start


def peak(case: Case, contender: str) -> float:
    """MB above what lies there before the step. On a CPU: call it in a fresh process."""
    device = case.batch.images.device
    step = CONTENDERS[contender](case)
    step(case.batch)
    if device.type == "cuda":
        _wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step(case.batch)
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the first step, which also checks and chooses
    before = _resident("VmRSS")
    step(case.batch)
    return _resident("VmHWM") - before


def _resident(kind: str) -> float:
    """The process's resident memory in MB: VmRSS now, VmHWM at its peak. (``getrusage`` would count the parent's.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(kind))) / 2**10


def _peak_in_process(case: Case, contender: str, threads: int) -> float:
    command = [sys.executable, __file__, "--peak", contender, "--case", f"{case.name}:{case.batch.units}x{case.draws}",
               "--threads", str(threads)]  # fmt: skip
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def agreement(case: Case, contenders: list[str]) -> dict[str, float]:
    """Relative distance of each sum from the engine's own plain loop, on a few examples, TF32 off."""
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    exact = Case(case.name, case.model, case.batch.take(0, min(24, case.batch.units)), case.clip)
    reference = plain_loop.clipped_sum(exact.model, loss, exact.batch, exact.clip)
    size = norm_of(tuple(reference.values()))
    apart = {}
    for contender in contenders:
        if contender != "plain":
            try:
                sums = CONTENDERS[contender](exact)(exact.batch)
            except RuntimeError:
                continue  # ``compare`` reports it
            apart[contender] = norm_of(tuple(sums[name] - reference[name] for name in reference)) / size
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
    # Ghost clipping may leave 1e-4 of the clip norm free for rounding, which shortens clipped vectors by as much.
    if apart.get("ours", 0.0) > 1e-4:
        raise SystemExit(f"the engine is {apart['ours']:.1e} away from the plain loop on {case.name}: do not trust it")
    return apart


def bound(case: Case) -> float:
    """The largest norm one example adds to our sum, relative to a clip that binds for all, in this run's arithmetic."""
    batch = case.batch.take(0, min(24, case.batch.units))
    small = Case(case.name, case.model, batch, case.clip / 20, case.autocast)
    norms = []
    for unit in range(min(8, batch.units)):
        weights = torch.zeros_like(batch.weights)
        weights[unit] = 1.0
        norms.append(norm_of(tuple(CONTENDERS["ours"](small)(replace(batch, weights=weights)).values())))
    return max(norms) / small.clip


def compare(
    case: Case, contenders: list[str], *, rounds: int, loop_units: int, threads: int
) -> list[dict[str, object]]:
    batch, device = case.batch, case.batch.images.device
    apart = agreement(case, contenders)
    steps, failures = {}, {}
    few = batch.take(0, min(loop_units, batch.units))
    for contender in contenders:
        part = few if contender == "micro-batch loop" else batch
        try:
            step = CONTENDERS[contender](case)
            for _ in range(2):
                step(part)
            steps[contender] = (step, part)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            failures[contender] = type(error).__name__
        if device.type == "cuda":
            torch.cuda.empty_cache()
    times: dict[str, list[float]] = {contender: [] for contender in steps}
    for _ in range(rounds):
        for contender, (step, part) in steps.items():
            if len(times[contender]) >= SLOW_ROUNDS and statistics.median(times[contender]) > SLOW:
                continue
            times[contender].append(_seconds(step, part) * batch.units / part.units)
    rows: list[dict[str, object]] = []
    base = statistics.median(times["plain"])
    for contender in contenders:
        row: dict[str, object] = {"case": case.name, "units": batch.units, "draws": case.draws, "contender": contender}
        if contender in failures:
            rows.append({**row, "failed": failures[contender]})
            continue
        seconds = statistics.median(times[contender])
        row |= {"milliseconds": 1e3 * seconds, "ratio": seconds / base,
                "rows_per_second": batch.units * case.draws / seconds}  # fmt: skip
        if contender == "ours":
            row["bound"] = bound(case)
        if contender in apart:
            row["apart"] = apart[contender]
        if contender != "micro-batch loop" and threads:
            row["peak_mb"] = (
                peak(case, contender) if device.type == "cuda" else _peak_in_process(case, contender, threads)
            )
        rows.append(row)
    plain_peak = next((row["peak_mb"] for row in rows if row["contender"] == "plain" and "peak_mb" in row), None)
    for row in rows:
        if isinstance(plain_peak, float) and isinstance(row.get("peak_mb"), float) and plain_peak > 0:
            row["peak_ratio"] = row["peak_mb"] / plain_peak  # type: ignore[operator]
    return rows


def with_jax(case: Case, plain: dict[str, object], python: str, options: list[str]) -> list[dict[str, object]]:
    """The contenders of ``jax_engine.py``; ``plain`` is the row of the plain step in PyTorch."""
    batch = case.batch
    few = batch.take(0, min(24, batch.units))
    found = {
        "weights": {name: value.detach() for name, value in case.parameters.items()},
        "constants": dict(case.model.named_buffers()),
        "reference": plain_loop.clipped_sum(case.model, loss, few, case.clip),
    }
    arrays = {f"{kind}/{name}": value.numpy() for kind, values in found.items() for name, value in values.items()}

    def by_unit(rows: Tensor) -> numpy.ndarray:
        return rows.view(batch.units, case.draws, *rows.shape[1:]).numpy()

    images, _, _, noise = arguments_of(batch)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "case.npz"
        numpy.savez(file, images=by_unit(images), noise=by_unit(noise), clip=case.clip, **arrays)
        command = [python, str(Path(__file__).with_name("jax_engine.py")), case.name, str(file), *options]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    rows: list[dict[str, object]] = []
    for measured in map(json.loads, lines):
        seconds = measured["milliseconds"] / 1e3
        row = {"case": case.name, "units": batch.units, "draws": case.draws, **measured,
               "ratio": measured["milliseconds"] / plain["milliseconds"],
               "rows_per_second": batch.units * case.draws / seconds}  # fmt: skip
        if "peak_mb" in plain:
            row["peak_ratio"] = measured["peak_mb"] / plain["peak_mb"]
        rows.append(row)
    return rows


def profile(case: Case) -> list[dict[str, object]]:
    """Milliseconds of the operations that take most of a step, of a plain one and of our own."""
    found: list[dict[str, object]] = []
    for contender in ("plain", "ours"):
        step = CONTENDERS[contender](case)
        for _ in range(3):
            step(case.batch)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if case.batch.images.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as seen:
            step(case.batch)
            _wait(case.batch.images.device)
        order = "self_cuda_time_total" if len(activities) > 1 else "self_cpu_time_total"
        print(f"\n{case.name} {case.batch.units}: {contender}")
        most = sorted(seen.key_averages(), key=lambda e: -_self_time(e, order))[:18]
        for event in most:
            print(f"  {_self_time(event, order) / 1e3:9.2f} ms  {event.count:5d}  {event.key[:90]}")
        operations = {event.key: round(_self_time(event, order) / 1e3, 2) for event in most}
        found.append({"case": case.name, "units": case.batch.units, "contender": contender, "operations": operations})
    return found


def _self_time(event: object, order: str) -> float:
    name = "self_device_time_total" if order.startswith("self_cuda") else order
    return float(getattr(event, name))


def classes(units: int, device: torch.device, rounds: int) -> list[dict[str, object]]:
    """Ten class models: one plain step each in turn, ours class after class, ours in one stacked pass."""
    case = make("flow", units, device)
    models = [MODELS["flow"]().to(device) for _ in range(10)]
    stack = PerClass(models)
    batch = case.batch
    batch = Batch(batch.images, torch.arange(units, device=device) % 10, batch.random, batch.weights, batch.state)
    slices = [batch.select(torch.arange(label, units, 10, device=device)) for label in range(10)]

    def in_turn(_: Batch) -> Sums:
        sums = [
            CONTENDERS["plain"](Case("flow", model, part, 1.0))(part)
            for model, part in zip(models, slices, strict=True)
        ]
        return sums[-1]

    steps = {
        "plain, ten in turn": in_turn,
        "ours, ten in turn": lambda b: clipped_sum(stack, loss, b, case.clip),
        "ours, stacked": lambda b: clipped_sum(stack, loss, b, case.clip),
    }
    for step in steps.values():
        step(batch), step(batch)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(_seconds(step, batch))
    base = statistics.median(times["plain, ten in turn"])
    return [
        {"case": "ten flows", "units": units, "contender": name, "milliseconds": 1e3 * statistics.median(values),
         "ratio": statistics.median(values) / base, "rows_per_second": units / statistics.median(values)}
        for name, values in times.items()
    ]  # fmt: skip


def _shown(row: dict[str, object], key: str, form: str) -> str:
    return format(row[key], form) if key in row else "–"


def table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| case | B | draws | way | ms | × plain | rows/s | peak MB | × plain | apart | ÷ clip |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name = f"{row['contender']}" + (f" ({row['failed']})" if "failed" in row else "")
        numbers = [
            _shown(row, key, form)
            for key, form in (("milliseconds", ".1f"), ("ratio", ".2f"), ("rows_per_second", ".0f"),
                              ("peak_mb", ".0f"), ("peak_ratio", ".2f"), ("apart", ".1e"), ("bound", ".6f"))
        ]  # fmt: skip
        lines.append(f"| {row['case']} | {row['units']} | {row.get('draws', 1)} | {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def _parsed(text: str) -> tuple[str, int, int]:
    name, _, size = text.partition(":")
    units, _, draws = size.partition("x")
    return name, int(units), int(draws or 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="a network, a batch size and draws: flow:256, unet:64x16")
    parser.add_argument("--h200", action="store_true", help="every measurement on a GPU, into --out")
    parser.add_argument("--rehearse", action="store_true", help="the same at tiny size on the CPU")
    parser.add_argument("--classes", type=int, help="also ten flow models, one for each class, at this batch size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--loop-units", type=int, default=32)
    parser.add_argument("--only", action="append", choices=list(CONTENDERS))
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument(
        "--profile", action="store_true", help="also show where plain and our own steps spend their time"
    )
    parser.add_argument("--cpu-time", action="store_true", help="processor seconds, for a machine that others use too")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out: it needs a process of its own")
    parser.add_argument("--jax", metavar="PYTHON", help="also JAX-Privacy, by this interpreter, on a CPU in float32")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peak", choices=list(CONTENDERS), help="print one contender's peak memory in MB")
    given = parser.parse_args()
    if given.jax and (given.device != "cpu" or given.bf16 or "plain" not in (given.only or CONTENDERS)):
        parser.error("--jax is for a CPU and float32, and is compared with the plain step")
    if given.h200 or given.rehearse:
        gpu.run(given.out, rehearse=given.rehearse)
        return
    # Opacus' hooks meet a first layer whose input needs no gradient, and torch says so at every step.
    warnings.filterwarnings("ignore", message="Full backward hook")
    torch.set_num_threads(given.threads)
    if not given.peak:
        keep_freed_memory()  # as the command does, for every contender
    CLOCK[0] = time.process_time if given.cpu_time else time.perf_counter
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = given.tf32
    device = torch.device(given.device)
    cases = [_parsed(text) for text in given.case or ["flow:256"]]
    if given.peak:
        name, units, draws = cases[0]
        print(peak(make(name, units, device, draws=draws, autocast=given.bf16), given.peak))
        return
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {given.threads} threads"
    arithmetic = "bf16 autocast" if given.bf16 else "TF32" if given.tf32 and device.type == "cuda" else "float32"
    print(f"{machine}, {arithmetic}, torch {torch.__version__}, Python {platform.python_version()}\n", flush=True)
    rows: list[dict[str, object]] = []
    profiles: list[dict[str, object]] = []
    for name, units, draws in cases:
        case = make(name, units, device, draws=draws, autocast=given.bf16)
        if given.profile:
            profiles += profile(case)
        rows += compare(case, given.only or list(CONTENDERS), rounds=given.rounds, loop_units=given.loop_units,
                        threads=0 if given.no_memory else given.threads)  # fmt: skip
        if given.jax:
            plain = next(row for row in rows[::-1] if row["contender"] == "plain")
            options = ["--threads", str(given.threads), "--rounds", str(given.rounds)]
            rows += with_jax(case, plain, given.jax, options + ["--cpu-time"] * given.cpu_time)
    if given.classes:
        rows += classes(given.classes, device, given.rounds)
    if rows:
        print(table(rows))
    if given.out:
        arguments = ["jax/bin/python" if text == given.jax else text for text in sys.argv[1:]]
        found = {"command": " ".join(["benchmarks/gradients.py", *arguments]), "machine": machine,
                 "commit": current_commit(), "arithmetic": arithmetic,
                 "clock": "processor" if given.cpu_time else "wall",
                 "torch": torch.__version__, "rows": rows, "profiles": profiles}  # fmt: skip
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
