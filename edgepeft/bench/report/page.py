"""One self-contained HTML page: no network, light and dark, readable on a phone, by keyboard and by ear.

Every picture has its numbers beneath it in a table; a column's heading is a button that sorts by it.

In its sections pictures are SVG: a file, or part of the page in whose colours.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from edgepeft.common.resources import package_data

# Nothing is loaded, nothing is sent: a browser refuses what a name in a result might smuggle in.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_INK = "#000000"
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#888888"  # of Okabe and Ito's palette
Cell = str | float | int | None


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
    picture = "" if section.draw is None else f'<div class="picture">{inline_svg(section)}</div>'
    notes = "".join(f"<li>{escape(note)}</li>" for note in section.notes)
    warned = f'<ul class="notes">{notes}</ul>' if notes else ""
    numeric = [all(not isinstance(row[i], str) for row in section.rows) for i in range(len(section.header))]
    right = [' class="number"' * each for each in numeric]
    head = "".join(
        f'<th scope="col"{own}><button type="button">{escape(name)}</button></th>'
        for name, own in zip(section.header, right, strict=True)
    )
    rows = "".join(f"<tr>{_cells(row, right)}</tr>\n" for row in section.rows)
    title = escape(section.title)
    return f"""<section id="{section.key}" aria-labelledby="{section.key}-title">
<h2 id="{section.key}-title">{title}</h2>
<p>{escape(section.text)}</p>
{picture}
{warned}
<div class="table" role="region" aria-label="{title}: numbers" tabindex="0"><table>\
<caption>{title}: numbers. A heading sorts by its column.</caption><thead><tr>{head}</tr></thead>
<tbody>
{rows}</tbody></table></div>
</section>"""


def _cells(row: Sequence[Cell], right: Sequence[str]) -> str:
    cells = []
    for place, (cell, own) in enumerate(zip(row, right, strict=True)):
        name, end = (f"td{own}", "td") if place else ('th scope="row"', "th")
        value, shown = "", "-" if cell is None else str(cell)
        if isinstance(cell, (int, float)):  # what it is sorted by is not its text
            value = f' data-value="{cell}"'
            shown = f"{cell:,.3f}".rstrip("0").rstrip(".") if isinstance(cell, float) else f"{cell:,}"
        cells.append(f"<{name}{value}>{escape(shown)}</{end}>")
    return "".join(cells)


@dataclass(frozen=True)
class Section:
    """``draw`` draws on the axes of a matplotlib figure of ``inches``; None where there is only a table."""

    key: str
    title: str
    text: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    draw: Callable[[Any], None] | None = None
    inches: tuple[float, float] = (7.0, 4.0)
    notes: Sequence[str] = field(default_factory=tuple)


def inline_svg(section: Section) -> str:
    """A picture within a page: of any width, in the page's ink, with ids that no other picture has."""
    text = plain_svg(section, transparent=True).decode("utf-8")
    text = text[text.index("<svg") :]
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    named = f'{opening} role="img" aria-labelledby="{section.key}-title" focusable="false">{rest}'
    named = re.sub(r"<metadata>.*?</metadata>", "", named, flags=re.S)
    named = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\1{section.key}-", named)
    return named.replace(_INK, "currentColor").replace("fill: black", "fill: currentColor")


def plain_svg(section: Section, *, transparent: bool = False) -> bytes:
    """A file: dark, on white unless it is ``transparent``, its bytes depending on the content alone."""
    import matplotlib
    from matplotlib.figure import Figure

    from edgepeft.common import plotting

    if section.draw is None:
        raise ValueError(f"section {section.key} has no picture")
    # Words are in ink that the page may change; text without any colour follows the page's own style.
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    style: dict[Any, Any] = dict.fromkeys(inks, _INK)
    style |= {"svg.hashsalt": section.key, "font.family": "sans-serif"}
    with plotting.plot_style(), matplotlib.rc_context(style):
        figure = Figure(figsize=section.inches, layout="constrained")
        section.draw(figure.add_subplot())
        written = io.BytesIO()
        figure.savefig(written, format="svg", transparent=transparent, metadata={"Date": None, "Creator": None})
    return written.getvalue()
