"""Draws the floors of the package from its import contract, for docs/architecture.md."""

from __future__ import annotations

import re
import tomllib
from html import escape
from pathlib import Path

_HEADER, _ROW, _GAP, _WIDTH = 58, 34, 6, 900
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328; text-anchor: middle }
  .note { font-size: 12px; fill: #59636e; text-anchor: start }
  .title { font-size: 17px; font-weight: 600; text-anchor: start }
  rect { fill: #ddf4ff; stroke: #0969da }
  .other { fill: #f6f8fa; stroke: #818b98 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .note { fill: #9198a1 }
    rect { fill: #121d2f; stroke: #4493f8 }
    .other { fill: #151b23; stroke: #656c76 }
  }
"""


def _rooms(layer: str) -> list[str]:
    """The packages of one floor; their separators say only whether they may import each other."""
    return [name.strip(" ()") for name in re.split(r"[|:]", layer)]


def _contract(project: Path) -> tuple[list[list[str]], set[str]]:
    """The floors, the highest first, and the packages that a contract keeps from importing PyTorch."""
    contracts = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (floors,) = (c["layers"] for c in contracts if c.get("containers") == ["edgepeft"])
    forbidding = [c for c in contracts if c["type"] == "forbidden" and "torch" in c["forbidden_modules"]]
    checked = {name.removeprefix("edgepeft.") for c in forbidding for name in c["source_modules"]}
    return [_rooms(layer) for layer in floors], checked


def floors_picture(project: Path) -> str:
    """The contract of ``project``, a pyproject.toml, as SVG: a row for each floor, a box for each package."""
    floors, without_torch = _contract(project)
    height = _HEADER + len(floors) * (_ROW + _GAP) + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>The packages of edgepeft, each importing only from the floors beneath it</title>",
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{_GAP}" y="24">Each floor imports only from the floors beneath it</text>',
        f'<rect x="{_GAP}" y="34" width="14" height="14"/>',
        '<text class="note" x="28" y="46">a contract keeps PyTorch out</text>',
        '<rect class="other" x="220" y="34" width="14" height="14"/>',
        '<text class="note" x="240" y="46">under no such contract</text>',
    ]
    for i, names in enumerate(floors):
        y, width = _HEADER + i * (_ROW + _GAP), (_WIDTH - _GAP) / len(names) - _GAP
        for j, name in enumerate(names):
            x, kind = _GAP + j * (width + _GAP), "" if name in without_torch else ' class="other"'
            lines.append(f'<rect{kind} x="{x:g}" y="{y}" width="{width:g}" height="{_ROW}" rx="4"/>')
            lines.append(f'<text x="{x + width / 2:g}" y="{y + _ROW / 2 + 5:g}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])
