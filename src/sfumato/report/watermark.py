"""Pages that were computed from real data: NOT PRIVATE stands on every screen and every printed page."""

from __future__ import annotations

from sfumato.release.card_page import html_page
from sfumato.report import chart

WATERMARK = "NOT PRIVATE"

# A fixed box is painted again on every printed page, and stays in sight on a screen.
_STYLE = """
.watermark { position: fixed; inset: 0; z-index: 1; pointer-events: none; display: flex; align-items: center;
  justify-content: center; overflow: hidden; }
.watermark b { transform: rotate(-32deg); font: 800 min(15vw, 8rem)/1 system-ui, sans-serif; letter-spacing: .04em;
  white-space: nowrap; color: rgb(163 48 31 / 9%); print-color-adjust: exact; }
.banner { position: sticky; top: 0; z-index: 2; background: var(--bad); color: #fff; text-align: center;
  font: 600 .82rem/1.35 system-ui, sans-serif; padding: .5rem 1rem; print-color-adjust: exact; }
.banner b { letter-spacing: .08em; }
main { max-width: 54rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
table.wide { min-width: 36rem; }
table.wide th { font-weight: 600; vertical-align: bottom; }
table.wide th:first-child { font-weight: normal; position: sticky; left: 0; background: var(--paper);
  min-width: 6.5rem; }
table.wide :last-child { padding-right: 0; }
table.short { max-width: 36rem; }
td.own { font-weight: 600; }
h2.run { margin-top: 3rem; font-size: 1.35rem; border-bottom: 2px solid var(--ink); font-weight: normal; }
h3 { font-size: 1.02rem; margin: 1.75rem 0 .4rem; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .25rem 1.5rem; }
.gallery figure { margin: .5rem 0; }
.gallery img { width: 100%; }
@media print { .banner { position: static; } table.wide { min-width: 0; font-size: 8pt; }
  table.wide th:first-child { background: none; } .watermark b { font-size: 24mm; }
  main { padding-top: 8mm; } tr, table.short { break-inside: avoid; } h2 + table { break-before: avoid; } }
@media (max-width: 30rem) { th, td { padding-right: .5rem; } .banner span { display: block; } }
"""


def not_private_page(title: str, body: str) -> str:
    """``body`` under the watermark."""
    return html_page(
        f"{WATERMARK}: {title}",
        f'<div class="watermark" aria-hidden="true"><b>{WATERMARK}</b></div>'
        f'<div class="banner"><b>{WATERMARK}</b> <span>Computed from real data. For internal use; may not leave.</span>'
        f"</div><main>{body}</main>",
        style=f"{chart.STYLE}{_STYLE}",
    )
