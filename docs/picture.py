"""Draws README's picture from a quickstart: python docs/picture.py exports/quickstart docs/quickstart.svg."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from edgepeft.bench.report.tables import QuickstartSummary, quickstart_table
from edgepeft.bench.result.parts import read_document


def draw(result: Path, picture: Path) -> None:
    """Write the closing table of ``result/quickstart.json`` as SVG."""
    summary = read_document(result / "quickstart.json", QuickstartSummary)
    console = Console(record=True, width=120, file=io.StringIO(), highlight=False, color_system="truecolor")
    console.print(quickstart_table(summary))
    drawn = console.export_svg(title="make quickstart")
    picture.write_text(
        re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.S), encoding="utf-8"
    )  # no fonts from a network


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
