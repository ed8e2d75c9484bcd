"""The card as one page that a privacy officer can read: no script, no network, everything inside."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from sfumato.privacy.events import RawAccess
from sfumato.release.card import Card
from sfumato.release.image_grid import data_address, grid
from sfumato.release.synthetic import SyntheticImages

STYLE = """
:root { color-scheme: light; --ink: #23211e; --faint: #6d675e; --line: #ddd6ca; --paper: #fbf9f5; --good: #2f6b4f;
  --bad: #a3301f; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 17px/1.55 Georgia, "Times New Roman", serif; }
main { max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .25rem; font-weight: normal; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
.verdict { display: inline-block; font: 600 .8rem/1 system-ui, sans-serif; letter-spacing: .06em; color: #fff;
  padding: .45rem .7rem; border-radius: .25rem; text-transform: uppercase; background: var(--good); }
.verdict.none { background: var(--bad); }
.numbers { font-size: 2.2rem; line-height: 1.25; margin: 1.25rem 0 .25rem; }
.numbers small, .note { color: var(--faint); font-size: .95rem; }
.whole { white-space: nowrap; }
table { border-collapse: collapse; width: 100%; font: .88rem/1.4 system-ui, sans-serif; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; }
.made td { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
img { max-width: 100%; height: auto; image-rendering: pixelated; border: 1px solid var(--line); }
code { font: .85rem/1.5 ui-monospace, Menlo, monospace; overflow-wrap: anywhere; }
@media (max-width: 30rem) { .numbers small { display: block; } }
@media print { body { background: #fff; font-size: 11pt; } main { padding: 0; } h2 { break-after: avoid; } }
"""


# Should anything ever slip into a page that asks for more than the page holds, the browser refuses to fetch it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html_page(title: str, body: str, *, style: str = "") -> str:
    """A page of the house: everything inside, no script, nothing fetched; ``style`` adds to the shared one."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def card_page(card: Card, samples: str, *, meaning: str = "", style: str = "") -> str:
    """The whole page around ``samples``, markup that shows them; ``meaning`` follows the guarantee's sentence."""
    certified = card.guarantee == "certified"
    verdict = f'<span class="verdict{"" if certified else " none"}">{escape(card.guarantee)}</span>'
    numbers = (
        f'<p class="numbers">ε = {card.epsilon:g} <small>at δ = {card.delta:g}, for each {escape(card.unit)}'
        "</small></p>"
        if certified
        else '<p class="numbers">ε = ∞</p>'
    )
    if claim := card.claim:
        numbers += (
            f'<p class="note"><s>ε = {claim.epsilon:g} at δ = {claim.delta:g}</s> is what {escape(claim.by)} '
            "claims for the same noise; the number above is what follows from how the data was touched.</p>"
        )
    shared = ""
    if certified and card.collection_epsilon != card.epsilon:
        shared = (
            f'<p class="note">Other runs have used the same collection. Together, everything on its ledger costs '
            f"ε = {card.collection_epsilon:g}.</p>"
        )
    sections = [
        f"<h1>Synthetic images by {escape(card.method)}</h1><p>{verdict}</p>{numbers}",
        f"<p>{_sentence(card)}</p>{shared}{meaning}",
        f"<h2>Samples</h2>{samples}",
        "<h2>What was asked of the collection</h2>" + _events(card),
        "<h2>What is treated as public</h2>" + _list(card.public),
        "<h2>What is not covered</h2>" + _list(_limits(card)),
        "<h2>How it was audited</h2>" + (_list(card.audits) if card.audits else "<p>No audit has been run.</p>"),
        "<h2>How it was made</h2>" + _made(card),
    ]
    return html_page(f"{card.method}: {card.guarantee}", f"<main>{''.join(sections)}</main>", style=style)


def _sentence(card: Card) -> str:
    """With δ in one piece: a line must not break after the hyphen of 1e-05."""
    delta = f"{card.delta:g}" if card.delta is not None else None
    text = escape(card.sentence)
    return text if delta is None else text.replace(delta, f'<span class="whole">{delta}</span>')


def sample_grid(drawn: SyntheticImages, *, columns: int) -> str:
    """Samples as one picture, a row of ``columns`` for each of the first classes."""
    picture = data_address(grid(drawn.images, columns=columns, scale=max(1, 56 // drawn.images.shape[-1])))
    return (
        f'<img src="{picture}" alt="Synthetic samples, a row for each of the first classes">'
        f'<p class="note">Classes: {escape(", ".join(drawn.classes[:10]))}'
        f"{', …' if len(drawn.classes) > 10 else ''}. Drawn from the release, not from the collection.</p>"
    )


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _events(card: Card) -> str:
    rows = []
    for event in card.events:
        if isinstance(event, RawAccess):
            rows.append(f"<tr><td>{escape(event.name)}</td><td colspan=4>raw records: {escape(event.reason)}</td></tr>")
            continue
        blocks = ", ".join(f"{block.name} (σ {block.noise_multiplier:.4g})" for block in event.blocks)
        rows.append(
            f"<tr><td>{escape(event.name)}</td><td>{event.steps}</td><td>{event.sampling_rate:g}</td>"
            f"<td>{event.noise_multiplier:.4g}</td><td>{escape(blocks)}</td></tr>"
        )
    head = "<tr><th>question</th><th>times</th><th>share asked</th><th>noise σ</th><th>noisy sums</th></tr>"
    note = (
        '<p class="note">Every answer is a sum over the units asked, each clipped, plus Gaussian noise of σ times the '
        "clip. Who is asked is decided by an independent coin for each unit.</p>"
    )
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>{note}'


def _limits(card: Card) -> list[str]:
    unit = card.unit
    return [
        "What is true of the population: a pattern shared by many is meant to be learnt, and anyone it describes is "
        "described by it whether or not they took part.",
        f"More than one {unit} at a time: for a group of k the bound on the factor is e^(k·ε).",
        "Choices made by looking at the collection outside this tool, such as tuning a method on it.",
        "What was treated as public, above; and other releases from the same collection that are on no ledger.",
    ]


def _made(card: Card) -> str:
    parameters = ", ".join(f"{key} = {value}" for key, value in card.parameters.items())
    rows = {
        "method": f"{card.method}, variant {card.variant}: {card.paper}",
        "parameters": parameters,
        "relation": f"{card.relation} ({card.unit})",
        "batches": card.sampler,
        "accountant": card.accountant,
        "randomness": card.randomness,
        "ledger": f"entry {card.ledger_head.length}, {card.ledger_head.hash}",
        "versions": ", ".join(f"{name} {version}" for name, version in card.versions.items()),
        "made": f"{card.made} on {card.device}",
        "command": card.command or "from Python",
    }
    body = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in rows.items())
    return f'<table class="made">{body}</table>'
