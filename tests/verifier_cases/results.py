"""What the verifier says about honest and about changed releases, and its accountant about the program's.

python tests/verifier_cases/results.py [releases] [tampering] [accountants] [recomputed]

writes ``docs/results/verification-PART.json`` for each of the parts, by default for all; ``docs/results/checks.py``
renders them.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "docs" / "results"
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "verifier")]

import verify_release  # type: ignore[import-not-found]  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from sfumato.audit.recompute import recompute  # noqa: E402
from sfumato.cli.main import app  # noqa: E402
from sfumato.experiments.results import current_commit  # noqa: E402
from sfumato.files import json_text  # noqa: E402
from sfumato.methods import Method, find  # noqa: E402
from sfumato.privacy import Block, Budget, BudgetExceeded, Plan, SubsampledGaussian  # noqa: E402
from sfumato.privacy.accounting import epsilon  # noqa: E402
from sfumato.training.run import RunOptions, train_run  # noqa: E402
from verifier_cases.changes import SEEN, TRANSCRIPT, UNSEEN, made_runs  # noqa: E402
from verifier_cases.releases import DELTAS, METHOD_CASES, OTHER_CASES, made  # noqa: E402
from worst_case import worst_case_images  # noqa: E402


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def releases() -> Iterator[dict[str, Any]]:
    """The verdict on a release of every kind, with its ledger and with its transcript."""
    for case in [*METHOD_CASES, *OTHER_CASES]:
        with folder() as place:
            run = made(case, place / "run")
            card = json.loads((run / "release" / "card.json").read_text())
            start = time.process_time()
            found = verify_release.verify(run, ledger=run / "ledger.jsonl")
            seconds = time.process_time() - start
            transcript = verify_release.verify(run, transcript=run / "transcript.jsonl")
            yield {
                "release": case,
                "epsilon": card["epsilon"],
                "delta": card["delta"],
                "unit": card["unit"],
                "events": len(card["events"]),
                "steps": sum(event.get("steps", 1) for event in card["events"]),
                "relation": card["relation"],
                "with ledger": found["status"],
                "with transcript": transcript["status"],
                "with nothing": verify_release.verify(run)["status"],
                "verdict": found["verdict"],
                **{key: found[key] for key in ("by", "proved") if key in found},
                **{f"numeric {key}": found[key] for key in ("delta", "error") if key in found},
                "seconds": round(seconds, 2),
            }


def _status(*words: object) -> int:
    return CliRunner().invoke(app, [str(word) for word in words]).exit_code


def tampering() -> Iterator[dict[str, Any]]:
    """Who sees which change: the two commands, and the verifier with the ledger and with the transcript."""
    with folder() as place:
        honest = made_runs(place / "runs")
        for kind, changes in {"none": {"nothing": lambda run: None}, "seen": SEEN, "unseen": UNSEEN}.items():
            for name, change in changes.items():
                yield {"change": name, "kind": kind, **_seen(honest, change)}
        for name, change in TRANSCRIPT.items():
            found = _seen(honest, change)
            yield {"change": name, "kind": "transcript", "verifier, transcript": found["verifier, transcript"]}


def _seen(honest: Path, change: Callable[[Path], None]) -> dict[str, bool]:
    with folder() as place:
        shutil.copytree(honest.parent, place / "copy")
        run = place / "copy" / honest.name
        change(run)
        quick = ("--pairs", 1, "--canaries", 10, "--no-card", "--json")
        return {
            "ledger --release": _status("ledger", run / "ledger.jsonl", "--release", run, "--json") != 0,
            "audit release": _status("audit", "release", run, *quick) != 0,
            "verifier, ledger": verify_release.verify(run, ledger=run / "ledger.jsonl")["status"] == 1,
            "verifier, transcript": verify_release.verify(run, transcript=run / "transcript.jsonl")["status"] == 1,
        }


EVENTS: list[list[tuple[float, tuple[float, ...], int, int | None]]] = [
    *([(1.0, (noise,), 1, None)] for noise in (0.7, 1.0, 2.0, 5.0, 20.0)),
    *([(1.0, (noise,), steps, None)] for noise, steps in ((6.0, 3), (10.0, 50), (40.0, 400))),
    *([(rate, (noise,), 1, None)] for rate, noise in ((0.1, 1.0), (0.5, 2.0), (0.1, 6.585), (0.01, 1.0))),
    *([(0.1, (noise,), 300, None)] for noise in (0.8, 1.126, 1.25, 2.0, 4.5, 6.585)),
    *([(0.02, (noise,), 1000, None)] for noise in (0.7, 0.956, 1.2, 2.51)),
    *([(0.01, (noise,), 2000, None)] for noise in (0.7, 1.0, 1.5, 3.0)),
    *([(0.004, (noise,), 1500, None)] for noise in (0.6, 0.8, 1.1)),
    *([(0.5, (noise,), 20, None)] for noise in (1.5, 3.0, 6.0)),
    [(0.02, (1.5, 3.0), 500, None)],
    [(0.05, (3.0, 4.0), 200, None)],
    [(1.0, (20.0,), 1, None), (0.05, (1.0,), 500, None)],
    [(1.0, (50.0,), 1, None), (0.1, (3.0,), 300, None)],
    [(1.0, (5.0,), 2, None), (0.02, (1.2,), 400, None)],
    [(0.1, (3.0,), 100, 50)],
    [(0.05, (2.0,), 200, 100)],
    [(1.0, (40.0,), 1, None), (0.2, (5.0,), 60, 20)],
]
"""Forty compositions of (sampling rate, noise of each block, steps, shards)."""


def accountants() -> Iterator[dict[str, Any]]:
    """δ by the verifier at the ε that the program states, for every composition and δ."""
    for parts in EVENTS:
        events = [
            SubsampledGaussian(
                f"event {number}",
                tuple(Block(f"block {place}", noise) for place, noise in enumerate(noises)),
                sampling_rate=rate,
                steps=steps,
                shards=shards,
            )
            for number, (rate, noises, steps, shards) in enumerate(parts)
        ]
        plain = [event.to_json() for event in events]
        relation = verify_release.REPLACE if any(part[3] for part in parts) else verify_release.REMOVE
        mu = verify_release.gaussian_mu(plain, relation)
        for delta in DELTAS:
            stated = epsilon(events, delta)
            if mu is None:
                found, error = verify_release.numeric_delta(plain, relation, stated)
            else:
                found, error = verify_release.gaussian_delta(stated, mu), 0.0
            yield {
                "events": [dict(zip(("rate", "noise", "steps", "shards"), part, strict=True)) for part in parts],
                "delta": delta,
                "epsilon": stated,
                "second delta": found,
                "error": error,
                "ratio": found / delta,
                "understated": found - error > delta * (1 + 1e-6),
                "proved epsilon": verify_release.proved_epsilon(plain, relation, delta),
            }


def recomputed() -> Iterator[dict[str, Any]]:
    """A training of every certified method, computed again from its key."""
    for case in METHOD_CASES:
        name, variant = case.split()
        method, images = find(name).small(variant), worst_case_images()
        method = replace(method, steps=5) if getattr(method, "steps", 5) < 5 else method
        with folder() as place:
            train_run(place / "run", method, images, _plan(method), RunOptions(device="cpu", keep_key=True))
            found = recompute(place / "run", images)
            yield {"method": case, **found.to_json()}


def _plan(method: Method) -> Plan:
    for larger in (3.0, 30.0, 300.0):
        try:
            return method.plan(Budget(larger, 1e-5))
        except BudgetExceeded:
            continue
    raise ValueError(f"no budget pays for {method.name}")


PARTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "releases": releases,
    "tampering": tampering,
    "accountants": accountants,
    "recomputed": recomputed,
}


def main(parts: list[str]) -> None:
    for part in parts or PARTS:
        rows = []
        for row in PARTS[part]():
            rows.append(row)
            print(json.dumps(row), flush=True)
        made_by = {
            "command": f"python tests/verifier_cases/results.py {part}",
            "commit": current_commit(),
            "machine": platform.machine(),
        }
        (RESULTS / f"verification-{part}.json").write_text(json_text({**made_by, "rows": rows}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
