"""A part of a report, a picture and its numbers; the picture as SVG: a file, or part of a page in whose colours."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cell", "Section", "inline_svg", "plain_svg"]

_INK = "#000000"
Cell = str | float | int | None


@dataclass(frozen=True)
class Section:
    """``draw`` draws on a matplotlib figure of ``inches``; None where there is only a table."""

    key: str
    title: str
    text: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    draw: Callable[[Any], None] | None = None
    inches: tuple[float, float] = (7.0, 4.0)
    notes: Sequence[str] = field(default_factory=tuple)


def plain_svg(section: Section) -> bytes:
    """A file: dark on white, its bytes depending on the content alone."""
    return _drawn(section, transparent=False)


def inline_svg(section: Section) -> str:
    """For a page: as wide as it may be, ink and ground from the page, ids that no other picture has.

    Raises:
        ValueError: the section has no picture.
    """
    text = _drawn(section, transparent=True).decode("utf-8")
    text = text[text.index("<svg") :]
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    named = f'{opening} role="img" aria-labelledby="{section.key}-title" focusable="false">{rest}'
    named = re.sub(r"<metadata>.*?</metadata>", "", named, flags=re.S)
    named = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\1{section.key}-", named)
    return named.replace(_INK, "currentColor").replace("fill: black", "fill: currentColor")


def _drawn(section: Section, *, transparent: bool) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    from edgepeft.common import plotting as drawing

    if section.draw is None:
        raise ValueError(f"section {section.key} has no picture")
    # Words are in ink that the page may change; text without any colour follows the page's own style.
    inks = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    style: dict[Any, Any] = dict.fromkeys(inks, _INK)
    style |= {"svg.hashsalt": section.key, "font.family": "sans-serif"}
    with drawing.styled(), matplotlib.rc_context(style):
        figure = Figure(figsize=section.inches, layout="constrained")
        section.draw(figure)
        written = io.BytesIO()
        figure.savefig(written, format="svg", transparent=transparent, metadata={"Date": None, "Creator": None})
    return written.getvalue()
