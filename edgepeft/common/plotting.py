"""Pictures with matplotlib: heat maps with readable labels, and files whose bytes depend on their content alone.

Without pyplot there is no window system and no state; the user's style is not applied.  Texts are never read as
mathematics, so a label may hold a dollar sign.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from edgepeft.common.atomic import write_atomically

COLOURS = "viridis"  # sequential, and the same order of brightness for every kind of colour vision
BLUE, RED = "#0072b2", "#d55e00"  # of Okabe and Ito's palette
MISSING = "0.88"
LONGEST_NAME = 28
MAX_INCHES = 24.0  # of a picture's side, margins apart: thousands of labels still make a file that opens

_STYLE: dict[str, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "font.size": 10,
    "savefig.dpi": 130,
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "edgepeft",
    "text.parse_math": False,
}
# Neither a time nor a version in the file.
_METADATA: dict[str, dict[str, Any]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}


@contextlib.contextmanager
def plot_style() -> Iterator[None]:
    """Draw within the block: the picture looks alike on every machine."""
    with style.context(["default", _STYLE], after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a label in a script that the font lacks
        yield


def new_figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def cell_inches(n: int, wanted: float, most: float) -> float:
    """The side of a cell, so that ``n`` of them are at most ``most`` inches."""
    return min(wanted, most / max(n, 1))


def title(axes: Axes, text: str, note: str) -> None:
    """What it is, and in smaller letters what it was measured on."""
    lines = note.count("\n") + 1
    axes.set_title(shortened(text, 90), loc="left", fontsize=12, pad=10 + 12 * lines)
    small = axes.annotate(note, (0, 1), (0, 6), "axes fraction", "offset points", fontsize=9, color="0.35", va="bottom")
    small.set_in_layout(False)  # it may stand past the axes without narrowing them


def heat_map(
    axes: Axes,
    values: Sequence[Sequence[float | None]],
    rows: Sequence[object],
    columns: Sequence[object],
    *,
    lowest: float,
    highest: float,
    cell: tuple[float, float],
    decimals: int = 1,
    numbers: Sequence[Sequence[int]] | None = None,
    missing: str = "white",
    upright: bool = False,
) -> QuadMesh:
    """Draw ``values`` [rows][columns], None where there is none, as coloured cells, the first row on top.

    ``lowest`` has the darkest colour, ``highest`` the brightest.  Numbers stand in cells that are large enough
    (``cell``: width and height in inches), or ``numbers`` in place of the values.  ``upright`` turns the names below.
    """
    table = np.array([[np.nan if value is None else value for value in row] for row in values], dtype=float)
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad=missing)
    if highest <= lowest:
        lowest, highest = lowest - 0.5, highest + 0.5
    edges = "white" if min(cell) >= 0.12 else "none"  # lines would cover smaller cells
    mesh = axes.pcolormesh(table, cmap=colours, vmin=lowest, vmax=highest, edgecolors=edges, linewidth=0.6)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    widest = max((len(shortened(name)) for name in columns), default=1)
    below = 0.15 if upright else 0.09 * widest
    for names, axis, side, needed in ((rows, axes.yaxis, cell[1], 0.15), (columns, axes.xaxis, cell[0], below)):
        places = range(0, len(names), max(1, math.ceil(needed / side)))  # every second, third, ... where all overlap
        axis.set_ticks([place + 0.5 for place in places], [shortened(names[place]) for place in places])
    axes.tick_params(labelsize=9)
    if upright:
        axes.tick_params(axis="x", rotation=90)
    texts = {place: f"{value:.{decimals}f}" for place, value in np.ndenumerate(table) if not np.isnan(value)}
    if numbers is not None:
        texts = {place: f"{n:,}" for place, n in np.ndenumerate(np.array(numbers))}
    bright, longest = lowest + 0.6 * (highest - lowest), max(map(len, texts.values()), default=1)
    size = min(9.0, 72 * cell[0] / (0.72 * longest), 72 * cell[1] / 1.6)  # a digit is about 0.6 of its size wide
    for (row, column), text in texts.items() if size >= 5.5 else ():
        colour = "white" if table[row, column] < bright else "black"
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=colour, fontsize=size)
    return mesh


def save(figure: Figure, folder: Path, stem: str) -> tuple[str, str]:
    """Write ``stem.png`` and ``stem.svg``; the same picture gives the same bytes."""
    for suffix in _METADATA:
        save_as(figure, folder / f"{stem}{suffix}")
    return f"{stem}.png", f"{stem}.svg"


def save_as(figure: Figure, path: Path) -> None:
    """Write one picture, a PNG or an SVG by its name; the same picture gives the same bytes."""
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix.removeprefix("."), metadata=_METADATA[path.suffix])
    write_atomically(path, file.getvalue())


def shortened(name: object, longest: int = LONGEST_NAME) -> str:
    """A name on one line, without characters that XML cannot hold; of a long one the middle is left out."""
    text = "".join(character if character.isprintable() else " " for character in str(name))
    if len(text) <= longest:
        return text
    end = longest // 3
    return f"{text[: longest - 1 - end].rstrip()}…{text[-end:].lstrip()}"
