"""``sfumato ledger``: show, verify or create a collection's ledger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.console import print_json, print_table, say
from sfumato.cli.options import Json, signing_key
from sfumato.options import BudgetOptions

if TYPE_CHECKING:
    from sfumato.privacy import Ledger


def ledger(
    path: Annotated[
        Path,
        typer.Argument(metavar="LEDGER", help="The ledger's file; with --transcript, a run's folder does as well."),
    ],
    *,
    create: Annotated[bool, typer.Option("--create", help="Start a ledger for several runs.")] = False,
    budget: BudgetOptions,
    release: Annotated[
        Path | None, typer.Option(help="Compare this release's card with the ledger, and check its signature.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The public ed25519 key (PEM) that must have signed it.")] = None,
    sign: Annotated[Path | None, typer.Option(help="Sign the release with this ed25519 key (PEM).")] = None,
    transcript: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write what may be published with a release: its run's lines, hashes of all others."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show, verify or create a collection's ledger.

    With --transcript FILE, LEDGER is the run's folder, or the collection's ledger with --release RELEASE.
    Exit status 1 if the release's card states what the ledger does not bear out, or its signature does not hold.
    """
    from sfumato.privacy import Ledger

    if create:
        if path.exists():
            raise FileExistsError(f"{path} exists; a ledger is never started over")
        Ledger(path, budget.budget()).close()
    elif budget != BudgetOptions():
        raise ValueError("--epsilon, --delta and --unit belong to --create; an existing ledger has its own")
    if release is None and (key is not None or sign is not None):
        raise ValueError("--key and --sign belong to --release, which names the release that they are about")
    if transcript is not None:
        return _write_transcript(path, release, transcript)
    facts = _facts(Ledger.read(path), release, key, sign)
    if as_json:
        print_json(facts)
    else:
        _say(facts, release)
    if facts.get("disagreements") or facts.get("signature_error"):
        raise typer.Exit(1)
    return None


def _write_transcript(path: Path, release: Path | None, out: Path) -> None:
    from sfumato.privacy import Ledger
    from sfumato.release.signature import run_of, write_transcript
    from sfumato.training.run import release_folder

    if release is None and not path.is_dir():
        raise ValueError("--release RELEASE says whose transcript it is; or give the run's folder instead of a ledger")
    run = run_of(release_folder(release or path))
    write_transcript(Ledger.read(path / "ledger.jsonl" if path.is_dir() else path), run, out)
    say(f"Written: {out}. It holds no private number; other runs on the ledger are hashes in it, whose count shows.")


def _facts(found: Ledger, release: Path | None, key: Path | None, sign: Path | None) -> dict[str, Any]:
    from sfumato.privacy import Budget
    from sfumato.release.card import rounded_up

    spent, limit = found.spent(), found.limit
    facts: dict[str, Any] = {
        "limit": limit.to_json(),
        "spent": None if spent == math.inf else rounded_up(spent),
        "remaining": max(0.0, limit.epsilon - spent) if isinstance(limit, Budget) else None,
        "runs": found.runs(),
        "events": [event.to_json() for event in found.events()],
        "entries": found.head[0],
        "head": found.head[1],
        "verified": True,
    }
    if release is not None:
        from sfumato.release.card import Card
        from sfumato.release.verification import problems
        from sfumato.training.run import release_folder

        folder = release_folder(release)
        card = Card.read(folder)
        facts["holds_release"] = found.holds(card.ledger_head.length, card.ledger_head.hash)
        facts["disagreements"] = problems(folder, found)
        if sign is not None and not facts["disagreements"]:
            signing_key(sign).sign(folder)  # type: ignore[union-attr]
        facts |= _signature(folder, key)
    return facts


def _signature(folder: Path, key: Path | None) -> dict[str, Any]:
    """Who signed the release, or why its signature does not hold."""
    from sfumato.release.signature import BadSignature, read_public_key, verify

    try:
        signer = verify(folder, public_key=None if key is None else read_public_key(key))
    except BadSignature as error:
        return {"signed_by": None, "signature_error": str(error)}
    return {"signed_by": signer, "signer_checked": key is not None}


def _say(facts: dict[str, Any], release: Path | None) -> None:
    limit = facts["limit"]
    spent = "∞" if facts["spent"] is None else f"{facts['spent']:g}"
    allowed = "no limit" if limit["epsilon"] is None else f"{limit['epsilon']:g} at δ {limit['delta']:g}"
    say(f"spent ε {spent} of {allowed}, per {limit['unit']}; the hash chain is intact")
    print_table(("query", "steps", "sampling rate", "noise multiplier", "blocks"), _rows(facts["events"]))
    for run in facts["runs"]:
        say(f"run {run['run']}: {run['method']} {run['variant']}, {run['time']}")
    if release is not None and not facts["disagreements"]:
        say(f"The spending of {release} is on this ledger, and its card says what the ledger says.")
    for reason in facts.get("disagreements", ()):
        say(f"{release} does NOT fit this ledger: {reason}.")
    if facts.get("signature_error"):
        say(f"The signature does NOT hold: {facts['signature_error']}.")
    elif facts.get("signed_by"):
        unknown = "" if facts["signer_checked"] else "; --key PUBLIC.pem checks whose key that is"
        say(f"Card, weights and ledger head are signed by the key {facts['signed_by']}{unknown}.")


def _rows(events: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The events as ``Event.to_json`` gives them."""
    for event in events:
        if event["kind"] == "raw access":
            yield event["name"], "", "", "", f"RAW RECORDS: {event['reason']}"
            continue
        if event["kind"] == "private selection":
            yield (
                event["name"],
                "1",
                "",
                "",
                f"the best of a random number of trials of {len(event['candidates'])} kinds",
            )
            continue
        blocks = ", ".join(f"{block['name']} {block['noise_multiplier']:.4g}" for block in event["blocks"])
        yield event["name"], str(event["steps"]), f"{event['rate']:g}", f"{event['noise_multiplier']:.4g}", blocks
