"""The page of one entry: every number, the figure, samples of every setting. NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from sfumato.experiments.papers.rows import Row
from sfumato.experiments.papers.table import HEADINGS, caption, lines
from sfumato.experiments.trial import release_for
from sfumato.report.chart import figure
from sfumato.report.public import sample_rows
from sfumato.report.watermark import not_private_page


def sheet(result: dict[str, Any], rows: Sequence[Row], *, chart: str | None) -> str:
    title = f"{result['paper']} {result['entry']}"
    body = [f"<h1>{escape(title)}</h1><p>{escape(result['title'])}.</p>"]
    body += [f"<p>{escape(text)}</p>" for text in caption(result)]
    if chart is not None:
        body.append(figure(result["title"], chart))
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
    cells = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in lines(result))
    table = f'<table class="wide"><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in cells)}</table>'
    body.append(f'<h2>Every number</h2><div class="scroll">{table}</div>')
    pictures = "".join(_samples(row) for row in rows)
    if pictures:
        body.append(f'<h2>Samples</h2><div class="gallery">{pictures}</div>')
    return not_private_page(title, "".join(body))


def _samples(row: Row) -> str:
    """A row for each class, ten images of the first training."""
    if row.terms is None or not row.cells:
        return ""
    folder = row.cells[0].folder(row.terms.out)
    if not (folder / "release").exists():
        return ""
    name = f"{row.setting.name}, {row.terms.out.name}, ε {row.case.epsilon:g}"
    picture = sample_rows(release_for(folder, row.look), each=10)
    return (
        f'<figure><figcaption>{escape(name)}</figcaption><img src="{picture}" alt="Samples of {escape(name)}"></figure>'
    )
