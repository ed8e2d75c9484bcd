"""Write the tables of docs/results/checks.md and docs/results/audits.md from the JSON files beside them.

    python docs/results/checks.py

Each file is written by the command that its page names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEPS = ("engine-cpu", "engine-cpu-sizes", "engine-cpu-2048")
"""Measurements of private steps; the first has the peers that take too much memory or time for large batches."""
PAGES = (HERE / "checks.md", HERE / "audits.md")
REGION = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- /table -->)", re.DOTALL)
SHOWN = 8


def load(name: str) -> Any:
    """A result file of this folder."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def lines(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    head = list(head)
    found = [head, ["---"] * len(head), *(list(map(str, row)) for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in found)


def exactness() -> str:
    """The largest movement of a sum over identical, opposite and random records and all batch sizes."""
    rows = []
    for name in ("engine-exactness-cpu", "engine-exactness-cpu-wide"):
        found = load(name)
        for row in found["rows"]:
            kinds = [row[kind] for kind in ("identical", "opposite", "random")]
            sizes = kinds[0]["sizes"]
            rows.append(
                (
                    row["case"] + (", narrow" if row.get("small") else ""),
                    found["device"],
                    row["arithmetic"] + _compiled(row),
                    f"{len(sizes)} from {min(sizes)} to {max(sizes):,}",
                    f"{max(kind['largest'] for kind in kinds):.6f}",
                    {True: "yes", False: "no", None: "not measured"}[row.get("same bits in every order")],
                )
            )
    head = (
        "network",
        "device",
        "arithmetic",
        "batch sizes",
        "largest movement ÷ clip norm",
        "same bits in every order",
    )
    return lines(head, rows)


def _compiled(row: dict[str, Any]) -> str:
    """Compiled sums that differ from the eager ones on random images are not used."""
    if not row["compiled"]:
        return ""
    return ", compiled" if row.get("is compiled", True) else ", compiled code refused"


def kills() -> str:
    """What became of the resumptions."""
    found = load("kills")
    outcomes = sorted({outcome for row in found["outcomes"].values() for outcome in row})
    names = {
        "same": "its own",
        "another": "another one",
        "copy": "a copy from earlier in the run",
        "none": "none",
    }
    rows = [(names[which], *(row.get(outcome, 0) for outcome in outcomes)) for which, row in found["outcomes"].items()]
    words = {"finished": "finished", "RunRefused": "refused", "AnswerLost": "refused, a step counts as spent"}
    table = lines(("resumed with the ledger", *(words.get(outcome, outcome) for outcome in outcomes)), rows)
    drawn = found["killed after noise was drawn"]
    counts = f"{found['kills']} kills of {found['variants']} variants, {drawn} of them after noise had been drawn"
    return f"{counts}; {found['unsound']} were unsound.\n\n{table}"


def replay() -> str:
    """Every certified variant at its real schedule."""
    rows = []
    for row in load("replay")["rows"]:
        moved = [f"{where} {value:.6f}" for where, value in row.get("movement", {}).items()]
        found = row.get("failed") or ("FLAGGED" if row["flagged"] else "nothing")
        if row.get("vacuous"):
            found += f"; vacuous for {', '.join(row['vacuous'])}"
        rows.append((row["method"], row["variant"], row.get("pairs", 0), found, "; ".join(moved)))
    return lines(("method", "variant", "pairs", "flagged", "largest movement ÷ accounted sensitivity"), rows)


def chosen_defects() -> str:
    """How many of the defects that were chosen by hand are caught by the test that the list names, by package."""
    found = load("mutants-chosen")
    chosen = Counter(one["file"].split("/")[0] for one in found["mutants"])
    missed = [one for one in found["mutants"] if one["result"] != "caught"]
    left = Counter(one["file"].split("/")[0] for one in missed)
    rows = [(name, count, count - left[name]) for name, count in sorted(chosen.items())]
    counts = f"{found['caught']} of {found['chosen']} defects are caught by the named test (commit `{found['commit']}`)."
    others = "".join(f"\n\nNot caught: `{one['file']}`: {one['defect']}: {one['result']}." for one in missed)
    return f"{counts}{others}\n\n{lines(('package', 'defects', 'caught'), rows)}"


def random_defects() -> str:
    """How many of the drawn defects are caught, and the others by the reason why no test sees them."""
    found = load("mutants-random")
    survivors: dict[str, list[str]] = {}
    for one in found["mutants"]:
        if not one["caught"]:
            new = one["new"].replace("|", "\\|")
            survivors.setdefault(one["why"], []).append(f"`{one['file']}` {one['line']}: `{new}`")
    counts = f"{found['caught']} of {found['run']} defects are caught"
    ways = Counter(one["how"] for one in found["mutants"] if one["caught"])
    detail = ", ".join(f"{way}: {count}" for way, count in ways.most_common())
    added = sum("test" in one for one in found["mutants"])
    rows = [(reason, len(defects), "<br>".join(defects)) for reason, defects in sorted(survivors.items())]
    table = lines(("why no test sees it", "defects", "line with the defect"), rows)
    return f"{counts}, {added} of them by a test that was added for them.\n\nHow they were caught: {detail}.\n\n{table}"


def filter_cost() -> str:
    """What plans cost by the accountant of one run and by the filter for several."""
    rows = [
        (row["method"], f"{row['limit']:g}", row["order"])
        + tuple(f"{row[name]:.2f}" for name in ("one", "one_filtered", "two", "two_filtered"))
        for row in load("filter")["rows"]
    ]
    whole, halves = "one run with the whole limit", "two runs with half of it each"
    head = ("method", "limit ε", "order α", f"{whole}: PLD", "filter", f"{halves}: PLD", "filter")
    return lines(head, rows)


def gradients(names: Iterable[str] = STEPS) -> str:
    """Every contender of a benchmark."""
    measured = [row for name in names for row in load(name)["rows"]]
    rows = [
        (
            row["case"],
            row["units"],
            row["draws"],
            row["contender"],
            f"{row['milliseconds']:.0f}" if "milliseconds" in row else _not_measured(row),
            f"{row['ratio']:.2f}" + _in_jax(row) if "ratio" in row else "",
            f"{row['peak_ratio']:.2f}" if "peak_ratio" in row else "",
        )
        for row in sorted(measured, key=lambda row: (row["case"], row["draws"], row["units"]))
    ]
    return lines(("network", "batch", "draws", "engine", "ms", "time ÷ plain", "memory ÷ plain"), rows)


def _not_measured(row: dict[str, Any]) -> str:
    """The benchmark itself leaves ghost clipping of averaged draws out; other failures are those of the engine."""
    return "not applicable" if row["contender"] == "opacus ghost" and row["draws"] > 1 else str(row.get("failed", ""))


def _in_jax(row: dict[str, Any]) -> str:
    """A private step in JAX is also compared with the plain step in JAX."""
    return f" ({row['jax_ratio']:.2f} × jax plain)" if row.get("jax_ratio", 1.0) != 1.0 else ""


def profiles() -> str:
    """The operations that take most of a step."""
    found = load("engine-cpu")["profiles"]
    rows = []
    for plain, ours in zip(found[::2], found[1::2], strict=True):
        names = list(dict.fromkeys([*list(ours["operations"])[:SHOWN], *list(plain["operations"])[:3]]))
        for name in names:
            times = [f"{one['operations'].get(name, 0):.0f}" for one in (plain, ours)]
            rows.append((f"{ours['case']} {ours['units']}", f"`{name}`", *times))
    return lines(("step", "operation", "plain, ms", "private, ms"), rows)


def reruns() -> str:
    """How many values of each file that was run again lie outside of the spread of the trainings."""
    found = load("reruns")
    rows = [
        (
            f"`{one['result']}`",
            one["runs"],
            one["values"],
            len(one["outside"]),
            one["allowed_outside"],
            "yes" if one["agrees"] else "no",
        )
        for one in found["drawn"]
    ]
    head = ("result file", "runs", "values", "outside of the spread", "allowed outside", "agrees")
    drawn = f"Drawn at commit `{found['commit']}`; the same seed draws others from other files.\n\n"
    return drawn + lines(head, rows)


def web_load() -> str:
    """A training beside a busy local page."""
    found = load("web")["load"]
    rows = {
        "time of a training step beside the busy page, relative to the quiet one (median)": f"{found['ratio']:.3f}",
        "the same in each round": ", ".join(f"{one:.3f}" for one in found["ratios"]),
        "events a second of the slowest stream": f"{found['events_per_stream_and_second']:.2f}",
        "page loads, and how many a second": f"{found['page_loads']}, {found['page_loads_per_second']:.2f}",
        "seconds of a page load, median": f"{found['page_load_median_seconds']:.3f}",
        "seconds of a page load, 95th percentile": f"{found['page_load_p95_seconds']:.3f}",
    }
    return lines(("measured", "value"), rows.items())


def web_way() -> str:
    """From a file of images to exported ones in a browser."""
    return lines(("part", "seconds"), ((name, f"{seconds:.1f}") for name, seconds in load("web")["way"].items()))


STATUS = {0: "agrees", 1: "DISAGREES", 2: "cannot prove"}


def verified_releases() -> str:
    """What the verifier says about honest releases, and how far their ε is from its own."""
    found, rows = load("verification-releases"), []
    for row in found["rows"]:
        bound = f"{row['proved']:.4g} (proved)"
        if "numeric delta" in row:
            bound = f"{row['proved']:.4g} (proved); δ at the card's ε is {row['numeric delta']:.4g} by inversion"
        ways = ("with ledger", "with transcript", "with nothing")
        card = f"{row['epsilon']:g} at {row['delta']:g}"
        rows.append((row["release"], card, bound, *(STATUS[row[way]] for way in ways), f"{row['seconds']:.2f}"))
    head = ("release", "ε at δ on the card", "ε of the verifier", "with the ledger", "with the transcript")
    return _measured(found) + lines((*head, "with neither", "seconds"), rows)


def _measured(found: dict[str, Any]) -> str:
    return f"Measured at commit `{found['commit']}` by `{found['command']}`.\n\n"


def tampering() -> str:
    """Who sees which change."""
    found = load("verification-tampering")
    ways = ("ledger --release", "audit release", "verifier, ledger", "verifier, transcript")
    words = {True: "seen", False: "not seen", None: "not given"}
    rows = []
    for row in found["rows"]:
        told = [words[row.get(way)] for way in ways]
        if row["change"] == "ledger: an edited line":
            told[3] = "not given"
        rows.append((row["change"], *told))
    head = ("change", "`sfumato ledger --release`", "`sfumato audit release`", "verifier, ledger", "verifier, transcript")
    return _measured(found) + lines(head, rows)


def accountants() -> str:
    """δ of the second accountant ÷ δ that was asked for, at the ε of the first."""
    found = load("verification-accountants")
    settings: dict[str, dict[float, dict[str, Any]]] = {}
    for row in found["rows"]:
        settings.setdefault("; ".join(map(_event, row["events"])), {})[row["delta"]] = row
    deltas = sorted({row["delta"] for row in found["rows"]}, reverse=True)
    rows = [
        (name, *(f"{of[delta]['epsilon']:.4g}: {of[delta]['ratio']:.4f}" for delta in deltas))
        for name, of in settings.items()
    ]
    count, wrong = len(found["rows"]), sum(row["understated"] for row in found["rows"])
    told = f"{len(settings)} settings at {len(deltas)} values of δ: {wrong} of {count} are understated.\n\n"
    return _measured(found) + told + lines(("events", *(f"δ = {delta:g}" for delta in deltas)), rows)


def _event(event: dict[str, Any]) -> str:
    noise = " and ".join(f"{one:g}" for one in event["noise"])
    shards = f", {event['shards']} shards" if event["shards"] else ""
    return f"q {event['rate']:g}, σ {noise}, T {event['steps']}{shards}"


def recomputed() -> str:
    """Trainings that were computed again from data and key."""
    found = load("verification-recomputed")
    rows = [
        (row["method"], row["answers"], row["compared"] - row["different"], "same bits" if row["weights"] == 0 else "differ")
        for row in found["rows"]
    ]
    head = ("method", "answers on the ledger", "computed again with the same hash", "weights")
    return _measured(found) + lines(head, rows)


TABLES: dict[str, Callable[[], str]] = {
    "exactness": exactness,
    "kills": kills,
    "replay": replay,
    "chosen-defects": chosen_defects,
    "random-defects": random_defects,
    "filter": filter_cost,
    "gradients": gradients,
    "contenders": lambda: gradients(["engine-cpu-contenders"]),
    "profiles": profiles,
    "reruns": reruns,
    "web-load": web_load,
    "web-way": web_way,
    "verified-releases": verified_releases,
    "tampering": tampering,
    "accountants": accountants,
    "recomputed": recomputed,
}


def rendered(page: str) -> str:
    """The page with its tables written again."""
    return REGION.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(rendered(path.read_text(encoding="utf-8")), encoding="utf-8")
