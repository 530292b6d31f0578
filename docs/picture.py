"""Draws README's picture from a quickstart: python docs/picture.py exports/quickstart docs/quickstart.svg."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

from rich.console import Console

from edgepeft.report.quickstart import quickstart_table


def draw(result: Path, picture: Path) -> None:
    """Write the closing table of ``result/quickstart.json`` as SVG."""
    summary = json.loads((result / "quickstart.json").read_text(encoding="utf-8"))
    console = Console(record=True, width=120, file=io.StringIO(), highlight=False, color_system="truecolor")
    console.print(quickstart_table(summary))
    drawn = console.export_svg(title="make quickstart")
    picture.write_text(
        re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.S), encoding="utf-8"
    )  # no fonts from a network


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
