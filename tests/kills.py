"""Kill trainings at random moments, resume each with several ledgers, and compare what was drawn with what is charged.

``python tests/kills.py --kills 100 --seed 0 --out docs/results/kills.json`` kills the small form of every certified
variant in turn (SIGKILL), at a random time or at a random entry of the ledger. Copies of what is left are then resumed
with the same ledger, with another, with a copy that was made earlier during the run, and with none. Every process
writes down which noise it is about to draw. A trial is sound if

- the ledger never has fewer charges of an event than steps whose noise was drawn under it, and
- a certified card never states fewer steps, or a smaller ε, than were drawn by the processes that led to it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from sfumato.experiments.results import current_commit
from sfumato.methods import METHODS, Method, find
from sfumato.privacy import Budget, BudgetExceeded, Event, Ledger, Randomness, RunRefused, SubsampledGaussian
from sfumato.privacy.accounting import epsilon
from sfumato.privacy.curator import AnswerLost
from sfumato.privacy.ledger import LedgerDamaged
from sfumato.release.card import Card
from sfumato.training.checkpoint import FolderCheckpoint
from sfumato.training.run import Run
from worst_case import worst_case_images

LEDGERS = ("same", "another", "copy", "none")
# The last: killed before the run's folder was complete, so that there is nothing to resume in it.
REFUSALS = {10: RunRefused, 11: AnswerLost, 12: LedgerDamaged, 13: FileExistsError}
CERTIFIED = [(name, variant) for name in METHODS for variant in find(name).certified_variants()]


@dataclass
class Trial:
    """One kill, and what became of the resumptions."""

    method: str
    variant: str
    drawn: int = 0
    charged: int = 0
    outcomes: dict[str, str] = field(default_factory=dict)
    unsound: list[str] = field(default_factory=list)


def budget_for(method: Method) -> Budget:
    """The smallest of three budgets that pays for the method."""
    for limit in (3.0, 30.0, 300.0):
        with contextlib.suppress(BudgetExceeded):
            method.plan(Budget(limit, 1e-5))
            return Budget(limit, 1e-5)
    raise ValueError(f"no budget pays for {method.name}")


def train(method: Method, folder: Path, drawn: Path) -> None:
    """Begin or resume a run as ``sfumato train`` does, and write down each noise before it is drawn."""
    file = os.open(drawn, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    gaussian = Randomness.gaussian

    def watched(self: Randomness, count: int, device: torch.device, *label: str | int) -> torch.Tensor:
        os.write(file, (json.dumps([os.getpid(), label[0], label[1]]) + "\n").encode())
        return gaussian(self, count, device, *label)

    Randomness.gaussian = watched  # type: ignore[method-assign]
    run = Run(folder)
    run.begin({"method": method.name}, resume=(folder / "internal" / "run.json").exists())
    checkpoint = FolderCheckpoint(run.checkpoint.folder, seconds=0.05)
    release = method.fit(worst_case_images(12), budget_for(method), run.ledger, checkpoint=checkpoint, device="cpu")
    run.finish(release)


def forked(work: Callable[[], None]) -> int:
    """The process id of a child that does the work and exits 0, or with the code of its refusal."""
    if (child := os.fork()) != 0:
        return child
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        work()
        status = 0
    except tuple(REFUSALS.values()) as error:
        status = next(code for code, kind in REFUSALS.items() if isinstance(error, kind))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def entries(ledger: Path) -> int:
    """The number of whole lines of a ledger that may be being written."""
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def copy_ledger(ledger: Path, place: Path) -> None:
    """The head first: a ledger may be ahead of its head, as after a crash, and never behind it."""
    for suffix in (".head", ""):
        if (source := Path(f"{ledger}{suffix}")).exists():
            shutil.copy(source, f"{place}{suffix}")


def killed(method: Method, folder: Path, seconds: float, length: int, moments: random.Random) -> bool:
    """Start a training, copy its ledger at one random moment and kill it at a later one; False if it ended before."""
    ledger, copy = folder / "run" / "ledger.jsonl", folder / "earlier"
    end = time.monotonic() + moments.random() * 1.1 * seconds
    # Most kills come at an entry of the ledger: most of a training's time passes before the first one.
    goal = moments.randrange(1, length + 1) if moments.random() < 0.8 else None
    copied_at = moments.randrange(goal + 1 if goal is not None else length)
    child = forked(lambda: train(method, folder / "run", folder / "drawn"))
    while True:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        now = entries(ledger)
        if now > copied_at and not copy.exists():
            copy_ledger(ledger, copy)
        if now >= goal if goal is not None else time.monotonic() > end:
            time.sleep(moments.random() * 0.005)
            os.kill(child, 9)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            # A run with a release has ended, even if its process had not: there is nothing to resume.
            return status == -9 and not (folder / "run" / "release").exists()
        time.sleep(0.001)


def drawn_steps(path: Path) -> Counter[str]:
    """How many steps of each event had noise drawn; the same step of another process counts again."""
    if not path.exists():
        return Counter()
    steps = {tuple(json.loads(line)) for line in path.read_text().splitlines()}
    return Counter(event for _, event, _ in steps)


def charged_steps(events: tuple[Event, ...]) -> Counter[str]:
    """The charges of each event."""
    found: Counter[str] = Counter()
    for event in events:
        if isinstance(event, SubsampledGaussian):
            found[event.name] += event.steps
    return found


def drawn_epsilon(method: Method, steps: Counter[str]) -> float:
    """The ε of what was drawn."""
    planned = method.plan(budget_for(method)).events
    return epsilon([replace(event, steps=steps[event.name]) for event in planned if steps[event.name]], 1e-5)


def resumed(method: Method, folder: Path, which: str, trial: Trial) -> None:
    """Resume a copy of what the kill has left with one of the ledgers, and check what comes of it."""
    here = folder / which
    shutil.copytree(folder / "run", here / "run") if (folder / "run").exists() else here.mkdir()
    if (folder / "drawn").exists():
        shutil.copy(folder / "drawn", here / "drawn")
    ledger = here / "run" / "ledger.jsonl"
    if which != "same" and ledger.parent.exists():
        for path in ledger.parent.glob("ledger.jsonl*"):
            path.unlink()
        if which == "copy":
            copy_ledger(folder / "earlier", ledger)
        elif which == "another":
            with Ledger(ledger, budget_for(method)) as other:
                other.start_run(method="other", variant="other", seeded=False)
    child = forked(lambda: train(method, here / "run", here / "drawn"))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    trial.outcomes[which] = "finished" if status == 0 else REFUSALS[status].__name__ if status in REFUSALS else "error"
    if trial.outcomes[which] == "error":
        trial.unsound.append(f"{which}: exit status {status}")
    drawn = drawn_steps(here / "drawn")
    if status == 0:
        card = Card.from_json(json.loads((here / "run" / "release" / "card.json").read_text()))
        stated, held = charged_steps(card.events), charged_steps(Ledger.read(ledger).events(card.run))
        if drawn - stated or drawn - held:
            trial.unsound.append(f"{which}: drawn {dict(drawn)}, card {dict(stated)}, ledger {dict(held)}")
        if not card.certified or (card.epsilon or 0.0) < drawn_epsilon(method, drawn):
            trial.unsound.append(
                f"{which}: certified at ε {card.epsilon} for what costs {drawn_epsilon(method, drawn)}"
            )


def trials(kills: int, seed: int, cases: Sequence[tuple[str, str]] = CERTIFIED) -> Iterator[Trial]:
    """Kill and resume, over the variants in turn."""
    moments = random.Random(seed)
    measured: dict[tuple[str, str], tuple[float, int]] = {}
    done = 0
    while done < kills:
        case = cases[done % len(cases)]
        method = find(case[0]).small(case[1])
        method.plan(budget_for(method))  # the children inherit the calibration
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            if case not in measured:
                start = time.monotonic()
                os.waitpid(forked(lambda m=method, f=folder: train(m, f / "first", f / "unused")), 0)  # type: ignore[misc]
                measured[case] = time.monotonic() - start, entries(folder / "first" / "ledger.jsonl")
            if not killed(method, folder, *measured[case], moments):
                continue
            done += 1
            trial = Trial(*case)
            drawn, ledger = drawn_steps(folder / "drawn"), folder / "run" / "ledger.jsonl"
            charged = charged_steps(Ledger.read(ledger).events()) if entries(ledger) else Counter()
            trial.drawn, trial.charged = drawn.total(), charged.total()
            if drawn - charged:
                trial.unsound.append(f"killed: drawn {dict(drawn)}, ledger {dict(charged)}")
            for which in LEDGERS:
                resumed(method, folder, which, trial)
            yield trial


def summary(found: list[Trial]) -> dict[str, Any]:
    """The result file."""
    outcomes = {which: dict(Counter(trial.outcomes[which] for trial in found)) for which in LEDGERS}
    return {
        "command": " ".join(["python tests/kills.py", *sys.argv[1:]]),
        "commit": current_commit(),
        "kills": len(found),
        "killed after noise was drawn": sum(trial.drawn > 0 for trial in found),
        "variants": len({(trial.method, trial.variant) for trial in found}),
        "unsound": sum(bool(trial.unsound) for trial in found),
        "outcomes": outcomes,
        "trials": [asdict(trial) for trial in found],
    }


def main() -> int:
    """Run the trials and write the result after each of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("kills.json"))
    options = parser.parse_args()
    found: list[Trial] = []
    for trial in trials(options.kills, options.seed):
        found.append(trial)
        print(f"{len(found)} {trial.method} {trial.variant}: {trial.outcomes} {trial.unsound or ''}", flush=True)
        options.out.write_text(json.dumps(summary(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(any(trial.unsound for trial in found))


if __name__ == "__main__":
    sys.exit(main())
