"""Write the measured numbers of docs/how-to/scale.md from the result files of the benchmarks.

    python docs/scale_numbers.py

``benchmarks/scale.py``, ``benchmarks/mixture.py`` and ``benchmarks/killed_processes.py`` write the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGE = DOCS / "how-to" / "scale.md"
REGION = re.compile(r"(<!-- measured: (?P<name>\w+) -->\n).*?(<!-- /measured -->)", re.DOTALL)

# Of the computed example: batch, draws, parameters, devices; the speeds of GPU and network are assumed.
BATCH, DRAWS, PARAMETERS, DEVICES = 65_536, 16, 10_000_000, 64
ROWS_A_SECOND = 100_000
BYTES_A_SECOND = 25e9


def result(name: str) -> dict[str, Any] | None:
    """A result file; ``None`` where the benchmark was not run yet."""
    file = DOCS / "results" / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None
    return found


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def killed() -> str:
    """What 20 kills came to."""
    found = result("killed-ranks")
    if found is None:
        return "`python benchmarks/killed_processes.py` measures this; there is no result yet.\n"
    runs = found["runs"]
    seconds = max(run["seconds_to_the_end_of_all"] or float("inf") for run in runs)
    resumed = sum(run["passed"] and not run["finished_before_the_kill"] for run in runs)
    during = sum(0 < run["charged_steps"] < found["steps"] for run in runs)
    rows = [
        ["kills of one of three processes, at random moments", f"{found['kills']}"],
        ["of them before the first charge", f"{sum(run['charged_steps'] == 0 for run in runs)}"],
        ["while steps were being charged", f"{during}"],
        ["after the last charge", f"{sum(run['charged_steps'] == found['steps'] for run in runs)}"],
        ["all processes had ended, at the latest after", f"{seconds:.1f} s"],
        ["whole ledger, resumed with one process fewer, finished at the planned ε", f"{resumed}"],
        ["whole ledger, and the release was there when the kill came", f"{found['passed'] - resumed}"],
    ]
    return table(["`python benchmarks/killed_processes.py`", ""], rows)


def training() -> str:
    """A step of one process and of two."""
    found = result("scale")
    if found is None or "training" not in found:
        return "`python benchmarks/scale.py` measures this; there is no result yet.\n"
    own = found["training"]
    steps = own["seconds_per_step"]
    rows = [
        ["one process", f"{steps['one']:.2f} s", "1"],
        ["two processes", f"{steps['two']:.2f} s", f"{own['speed_up']:.2f}"],
        [
            "two trainings apart from each other: what the machine allows",
            f"{steps['apart']:.2f} s each",
            f"{own['speed_up_of_the_machine']:.2f}",
        ],
    ]
    head = [f"{own['method']}, batches of {own['batch']:,}, one thread each, two cores", "a step", "work a second"]
    return table(head, rows)


def mixture() -> str:
    """DP-Mixture on more and more images, and in two processes."""
    found = result("mixture-scale")
    if found is None:
        return "`python benchmarks/mixture.py` measures this; there is no result yet.\n"
    rows = [
        [
            f"{one['images']:,}",
            str(one["processes"]),
            f"{one['processor_seconds']:.0f} s",
            f"{one['peak_memory'] / 2**20:.0f} MiB",
        ]
        for one in found["trainings"]
    ]
    bits = "the same bits" if found["same_bits"] else "OTHER BITS"
    text = (
        f"\nThe largest training holds {found['memory']:.2f} times the memory of the smallest, and takes "
        f"{found['time_per_image']:.2f} times its processor time for an image. The busier of two processes takes "
        f"1/{found['speed_up_of_two']:.2f} of the time of one; their release has {bits} as that of one.\n"
    )
    return (
        table(
            ["drawn digits", "processes", "processor time, of the busier one", "peak memory, of the larger one"], rows
        )
        + text
    )


def costs() -> str:
    """The constants of the cost model, and what they say for 64 GPUs."""
    found = result("scale")
    if found is None or not {"coins", "noise", "exchange", "training"} <= set(found):
        return "`python benchmarks/scale.py` measures the constants; there is no result yet.\n"
    coins, noise, exchange, own = (found[name] for name in ("coins", "noise", "exchange", "training"))
    rows_a_second = own["batch"] / own["seconds_per_step"]["one"]
    rows = [
        ["gradients", f"{rows_a_second:,.0f} rows a second, {own['method']} on one core"],
        [
            "Poisson sampling",
            f"{1e3 * coins['512 of 10000']:.1f} ms for 512 of 10,000 ids, "
            f"{1e3 * coins['512 of 1000000000']:.1f} ms for 512 of a billion",
        ],
        ["noise", f"{1e3 * noise['seconds'] * 1e6 / noise['parameters']:.0f} ms for a million parameters, one core"],
        [
            "exchange",
            f"{1e3 * exchange['seconds'] * 1e6 / exchange['parameters']:.0f} ms for a million parameters, "
            "gloo, two processes of one machine",
        ],
    ]
    gradients = BATCH * DRAWS / DEVICES / ROWS_A_SECOND
    ring = 2 * 16 * PARAMETERS / BYTES_A_SECOND
    text = f"""
**Computed, not measured**: {DEVICES} GPUs, a billion images of 64 × 64, B = {BATCH:,} with {DRAWS} draws,
P = {PARAMETERS:,}, and assumed {ROWS_A_SECOND:,} rows a second and GPU and a network of {BYTES_A_SECOND / 1e9:.0f} GB
a second:

- gradients: {BATCH:,} × {DRAWS} ÷ {DEVICES} ÷ {ROWS_A_SECOND:,} = {gradients:.2f} s
- exchange: {16 * PARAMETERS / 1e6:.0f} MB; a ring moves twice that through each link, {ring:.3f} s
- Poisson sampling: {coins["65536 of 1000000000"]:.3f} s on one core, measured
- decoded pixels: 4 TB of grey or 12 TB of colour pixels, on a file system that all machines see
"""
    return table(["", "measured constant"], rows) + text


PARTS: dict[str, Callable[[], str]] = {"killed": killed, "training": training, "mixture": mixture, "costs": costs}


def rendered(page: str) -> str:
    """The page with its numbers written again."""
    return REGION.sub(lambda found: found[1] + PARTS[found["name"]]() + found[3], page)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
