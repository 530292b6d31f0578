"""One self-contained HTML page: no network, light and dark, readable on a phone, by keyboard and by ear.

Every picture has its numbers beneath it in a table; a column's heading is a button that sorts by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from edgepeft.bench.report.pictures import Cell, Section, inline_svg
from edgepeft.common.resources import package_data

__all__ = ["page"]

# Nothing is loaded, nothing is sent: a browser refuses what a name in a result might smuggle in.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)


def page(title: str, sections: Sequence[Section], sources: Sequence[str]) -> str:
    """The whole document."""
    style, script = (package_data(f"report/{name}").read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    contents = "".join(f'<li><a href="#{one.key}">{escape(one.title)}</a></li>' for one in sections)
    body = "\n".join(_section(one) for one in sections)
    files = "".join(f"<li>{escape(source)}</li>" for source in sources)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header><h1>{escape(title)}</h1></header>
<nav aria-label="Contents"><ul>{contents}</ul></nav>
<main id="main">
{body}
</main>
<footer><p>Made by <code>edgepeft report</code> from</p><ul>{files}</ul></footer>
<script>
{script}</script>
</body>
</html>
"""


def _section(section: Section) -> str:
    picture = ""
    if section.draw is not None:
        picture = f'<div class="picture">{inline_svg(section)}</div>'
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    warned = f'<ul class="notes">{notes}</ul>' if notes else ""
    return f"""<section id="{section.key}" aria-labelledby="{section.key}-title">
<h2 id="{section.key}-title">{escape(section.title)}</h2>
<p>{escape(section.text)}</p>
{picture}
{warned}
{_table(section)}
</section>"""


def _table(section: Section) -> str:
    numeric = [all(not isinstance(row[i], str) for row in section.rows) for i in range(len(section.header))]
    head = "".join(
        f'<th scope="col"{_right(numeric[i])}><button type="button">{escape(name)}</button></th>'
        for i, name in enumerate(section.header)
    )
    rows = "".join(f"<tr>{_cells(row, numeric)}</tr>\n" for row in section.rows)
    return (
        f'<div class="table" role="region" aria-label="{escape(section.title)}: numbers" tabindex="0"><table>'
        f"<caption>{escape(section.title)}: numbers. A heading sorts by its column.</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>"
    )


def _cells(row: Sequence[Cell], numeric: Sequence[bool]) -> str:
    first, *others = row
    cells = [f'<th scope="row"{_value(first)}>{escape(_shown(first))}</th>']
    cells += [
        f"<td{_right(right)}{_value(cell)}>{escape(_shown(cell))}</td>"
        for cell, right in zip(others, numeric[1:], strict=True)
    ]
    return "".join(cells)


def _right(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _value(cell: Cell) -> str:
    """What it is sorted by, where its text is not."""
    return f' data-value="{cell}"' if isinstance(cell, (int, float)) else ""


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.3f}".rstrip("0").rstrip(".")
    return f"{cell:,}" if isinstance(cell, int) else cell
