"""Whether a release says what its ledger bears out, and whether its parts belong together."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sfumato.files import json_text, parsed_json
from sfumato.privacy import Ledger
from sfumato.privacy.accounting import ACCOUNTANT, FILTER, relation
from sfumato.privacy.events import PrivateSelection
from sfumato.release.card import (
    CERTIFIED,
    Card,
    beyond,
    gaussian_mu,
    no_guarantee_sentence,
    public_inputs,
    recognised_of,
    rounded_up,
    sampler_of,
    sentence_of,
)
from sfumato.release.plain_numbers import best_guess, guess_by_definition
from sfumato.release.public_input import follows
from sfumato.release.release import WEIGHTS

_UNSEEN = re.compile(r"<(style|script|template)\b.*?</\1>|<!--.*?-->|<[^>]+>", re.DOTALL)
_OTHER_ACCOUNTANT = 1e-3  # between versions of the accountant, as a share of a stated probability


def problems(folder: Path, ledger: Ledger | None = None) -> list[str]:
    """What does not fit in a release's folder, a sentence each: card, weights and page, and the ledger if given."""
    card = Card.read(folder)
    written = parsed_json((folder / "card.json").read_text(encoding="utf-8"))
    weights = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    found = [*inconsistencies(card), *_page(folder / "card.html", card)]
    if card.weights and weights != card.weights:
        found.append(f"{WEIGHTS} is not the file that the card names")
    if ledger is None:
        return found
    found += disagreements(card, ledger)
    if not (bound := ledger.released_files(card.run)):
        return found
    page = folder / "card.html"
    hashes = {
        WEIGHTS: weights,
        "card.json": hashlib.sha256(json_text({**written, "audits": []}).encode()).hexdigest(),
        # A page that says what audits have found was written later.
        **({"card.html": hashlib.sha256(page.read_bytes()).hexdigest()} if page.exists() and not card.audits else {}),
    }
    return found + [
        f"{name} is not the file that the ledger names" for name in hashes if hashes[name] != bound.get(name)
    ]


def inconsistencies(card: Card) -> list[str]:
    """What the card says that does not follow from other entries of the card."""
    found = []
    if card.relation != relation(card.accounted):
        found.append(f"the card says {card.relation!r}, and the ε of its events holds for {relation(card.accounted)!s}")
    if card.sampler != sampler_of(card.events):
        found.append("how batches were drawn is not what the events say")
    if not card.certified:
        if card.sentence != no_guarantee_sentence(card.reasons):
            found.append("the sentence is not that of a release without a guarantee and its reasons")
        return found
    if card.reasons:
        found.append("the card says certified, and gives reasons why it is not")
    if card.epsilon is None or card.delta is None or not follows(card):
        found.append(f"ε {card.epsilon} does not follow from the events on the card")
    elif card.sentence != sentence_of(card.epsilon, card.delta, card.unit, card.best_guess):
        found.append("the sentence does not say the card's ε, δ, unit and best guess")
    if card.collection_epsilon is not None and card.epsilon is not None and card.collection_epsilon < card.epsilon:
        found.append("the ε of the whole collection is below that of this release")
    if "FIXED SEED" in card.randomness:
        found.append("the card says certified, and the noise came from a fixed seed")
    if card.gaussian_mu is not None and card.gaussian_mu != gaussian_mu(card.accounted):
        found.append("the card states another μ than its events have")
    return found


def _page(page: Path, card: Card) -> list[str]:
    """What the card's page says."""
    if not page.exists():
        return []
    text = html.unescape(_UNSEEN.sub("", page.read_text(encoding="utf-8")))
    found = [] if card.sentence in text else ["card.html does not say the card's sentence"]
    numbers = f"\u03b5 = {card.epsilon:g} at \u03b4 = {card.delta:g}" if card.certified else "NO GUARANTEE"
    return found if numbers in text else [*found, f"card.html does not say {numbers!r}"]


def disagreements(card: Card, ledger: Ledger) -> list[str]:
    """What the card states and the ledger does not bear out, a sentence each; empty if everything fits."""
    head, run = card.ledger_head, card.run
    if head.length < 1 or not ledger.holds(head.length, head.hash) or not ledger.knows(run):
        return ["its spending is not on this ledger"]
    entry, events = ledger.run_entry(run), ledger.release_events(run)
    found = [*_unbound(card, ledger), *_answers(ledger, run)]
    # A selection is one run of several methods, of which the best is released.
    if not any(isinstance(event, PrivateSelection) for event in events):
        method, variant, parameters = _released_method(entry)
        if (card.method, card.variant) != (method, variant):
            found.append(f"the run on the ledger is of {method} {variant}, not {card.method} {card.variant}")
        # A ledger of version 0.1.0 does not have them.
        elif parameters is not None and json.loads(json.dumps(dict(card.parameters))) != parameters:
            found.append("the parameters on the card are not those that the run was started with")
    if card.events != tuple(events):
        found.append("the events on the card are not those that the ledger charges to its run")
    planned = ledger.committed_events(run)
    if set(card.planned) != set(beyond(events, planned)):
        found.append("the plan on the card is not the one that the run was started with")
    if card.ledger and card.lineage != ledger.lineage(run):
        found.append("the card names other earlier releases than the ledger")
    if card.composition is not None and (card.composition["rule"] == "renyi filter") != ledger.adaptive(run):
        found.append("the card joins its events by another rule than the ledger's runs need")
    spent = rounded_up(ledger.until(head.length).spent())
    stated = card.collection_epsilon if card.collection_epsilon is not None else float("inf")
    if stated < spent * (1 - _OTHER_ACCOUNTANT):
        found.append(f"the card states ε {stated:g} for the whole collection, and the ledger has charged {spent:g}")
    if card.certified:
        found += _disagreements_of_a_promise(card, ledger, planned)
    return found


def _unbound(card: Card, ledger: Ledger) -> list[str]:
    """What does not belong to this ledger; those of version 0.2.0 have no hash of the card."""
    found = []
    if card.ledger not in ("", ledger.id):
        found.append("the card names another ledger")
    bound = ledger.released_files(card.run)
    if card.weights and not bound:
        found.append("the end of its run is not on this ledger")
    if bound and (card.sha256 != bound["card.json"] or card.weights != bound[WEIGHTS]):
        found.append("the card is not the one whose hash is on the ledger")
    kinds = Counter(entry["kind"] for entry in ledger.entries() if entry.get("run") == card.run)
    if kinds["run"] != 1 or kinds["end"] > 1:
        found.append("its run begins or ends twice on the ledger")
    if bound and any(line not in card.public for line in public_inputs(ledger, card.run)):
        found.append("the card does not name a collection that the run treated as public")
    return found


def _answers(ledger: Ledger, run: str) -> list[str]:
    """Answers that were not charged before, or had less noise than was charged."""
    groups: dict[tuple[str, str, str], Any] = {}
    noise: dict[tuple[str, str, str], float] = {}
    left: Counter[tuple[str, str, str]] = Counter()
    for entry in ledger.entries():
        if entry.get("run") not in (run, *ledger.lineage(run)):
            continue
        for answer in entry.get("answers", ()):
            left[place := (entry["run"], answer["event"], answer["block"])] -= 1
            if left[place] < 0:
                return [f"the ledger has an answer to {answer['event']!r} that was not charged"]
            parts = groups[place] = answer["groups"] if "groups" in answer else groups[place]
            wanted = math.sqrt(len(parts)) * noise[place] * (1 - 1e-9)
            if not parts or not all(0 < wanted * one["clip_norm"] <= one["standard_deviation"] for one in parts):
                return [f"an answer to {answer['event']!r} had less noise than was charged"]
        if entry["kind"] == "charge" and "from" not in entry:
            for block in entry["event"].get("blocks", ()):
                left[place := (entry["run"], entry["event"]["name"], block["name"])] += entry["event"]["steps"]
                noise[place] = max(block["noise_multiplier"], noise.get(place, 0.0))
    return []


def _disagreements_of_a_promise(card: Card, ledger: Ledger, planned: Any) -> list[str]:
    run = card.run
    runs = (run, *ledger.lineage(run))
    found = [
        f"the card says {CERTIFIED}, but {reason}"
        for reason, holds in {
            "the run, or one that it builds on, drew its noise from a fixed seed": any(map(ledger.seeded, runs)),
            "code outside of the trusted base answered queries": any(map(ledger.own_code, runs)),
            "the collection's unit is another": card.unit != ledger.limit.unit,
            "the ledger counts at another δ": card.delta != ledger.limit.delta,
        }.items()
        if holds
    ]
    spent = rounded_up(ledger.release_epsilon(run, card.delta)) if card.delta else float("inf")
    room = 0.0 if card.accountant in (ACCOUNTANT, FILTER) else _OTHER_ACCOUNTANT
    if card.epsilon is None or card.epsilon < spent * (1 - room):
        found.append(f"the card states ε {card.epsilon}, and what the ledger charges to its run costs {spent:g}")
    elif card.epsilon > spent * (1 + 10 * _OTHER_ACCOUNTANT):
        found.append(f"the card states ε {card.epsilon}, more than the {spent:g} that follows from the ledger")
    if card.relation != relation(planned):
        found.append(f"the card says {card.relation!r}, and the ε of the run holds for {str(relation(planned))!r}")
    adaptive = ledger.adaptive(run)
    guess = guess_by_definition(spent, card.delta or 0.0) if adaptive else best_guess(planned)
    if card.best_guess < guess * (1 - _OTHER_ACCOUNTANT):
        found.append(f"the card states that {card.best_guess:g} of guesses are right at most, and it is {guess:g}")
    for often, share in (card.recognised or {}).items():
        if adaptive or share < recognised_of(planned).get(often, 1.0) * (1 - 10 * _OTHER_ACCOUNTANT):
            found.append(f"the card states that {share:g} can be recognised at one false alarm in {often}; it is more")
    if card.sentence != sentence_of(card.epsilon or 0.0, card.delta or 1.0, card.unit, card.best_guess):
        found.append("the sentence does not say the card's ε, δ, unit and best guess")
    return found


def _released_method(entry: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Name, variant and parameters of the method whose generator a run releases."""
    parameters = entry.get("parameters")
    if entry["method"] == "measured" and parameters:
        # ``methods/scored.py``: the count is on the card, and the generator is that of the measured method.
        inner = json.loads(parameters["settings"])
        return parameters["base"], inner["variant"], inner
    return entry["method"], entry["variant"], parameters
