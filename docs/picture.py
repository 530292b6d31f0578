"""Draws README's picture from a quickstart's own result: python docs/picture.py exports/quickstart docs/quickstart.svg."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from edgepeft.report.quickstart import quickstart_table


def draw(result: Path, picture: Path) -> None:
    """Write the closing table of ``result/quickstart.json`` as SVG."""
    summary = json.loads((result / "quickstart.json").read_text(encoding="utf-8"))
    console = Console(record=True, width=116, file=io.StringIO(), highlight=False, color_system="truecolor")
    console.print(quickstart_table(summary))
    console.save_svg(str(picture), title="make quickstart")


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
