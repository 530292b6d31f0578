"""Pictures of docs: the package's floors, from its import contract, and a fleet, what goes where and signed by whom."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from html import escape
from pathlib import Path

_HEADER, _ROW, _GAP, _WIDTH = 58, 34, 6, 900
_STYLE = """
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
_FLEET_HEIGHT = 470
_MORE = """
  .left { text-anchor: start }
  .open { fill: none; stroke: #bc4c00; stroke-dasharray: 5 4 }
  .way { stroke: #59636e; fill: none; stroke-width: 1.5 }
  .head { fill: #59636e; stroke: none }
  .small { font-size: 12px; fill: #59636e; text-anchor: middle }
  @media (prefers-color-scheme: dark) { .small { fill: #9198a1 } .way { stroke: #9198a1 } .head { fill: #9198a1 } }
"""


def _contract(project: Path) -> tuple[list[list[str]], set[str]]:
    """The floors, the highest first, and the packages that a contract keeps from importing PyTorch."""
    contracts = tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (floors,) = (c["layers"] for c in contracts if c.get("containers") == ["edgepeft"])
    forbidding = [c for c in contracts if c["type"] == "forbidden" and "torch" in c["forbidden_modules"]]
    checked = {name.removeprefix("edgepeft.") for c in forbidding for name in c["source_modules"]}
    # The separators of a floor's packages say only whether they may import each other.
    return [[name.strip(" ()") for name in re.split(r"[|:]", layer)] for layer in floors], checked


def floors_picture(project: Path) -> str:
    """The contract of ``project``, a pyproject.toml, as SVG: a row for each floor, a box for each package."""
    floors, without_torch = _contract(project)
    height = _HEADER + len(floors) * (_ROW + _GAP) + _GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        "<title>The packages of edgepeft, each importing only from the floors beneath it</title>",
        f"<style>{_STYLE}</style>",
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


def _box(x: int, y: int, width: int, height: int, *lines: str, kind: str = "") -> list[str]:
    """A box whose first line names it."""
    css = f' class="{kind}"' if kind else ""
    said = [f'<rect{css} x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>']
    for i, line in enumerate(lines):
        which = "left" if i == 0 else "note"
        said.append(f'<text class="{which}" x="{x + 12}" y="{y + 22 + 18 * i}">{escape(line)}</text>')
    return said


def _way(x0: int, y0: int, x1: int, y1: int, *lines: str, both: bool = False) -> list[str]:
    """An arrow, with what goes along it written above its middle."""
    ends = ' marker-start="url(#head)"' if both else ""
    said = [f'<path class="way" d="M{x0} {y0}L{x1} {y1}" marker-end="url(#head)"{ends}/>']
    x, y = (x0 + x1) // 2, (y0 + y1) // 2 - 8 - 15 * (len(lines) - 1)
    said += [f'<text class="small" x="{x}" y="{y + 15 * i}">{escape(line)}</text>' for i, line in enumerate(lines)]
    return said


def fleet_picture(days: Mapping[str, int]) -> str:
    """As SVG; ``days`` are a role's until what it signed expires."""
    expiry = [f"{role}: {n} days" for role, n in days.items()]
    others = ", ".join(role for role in days if role != "root")
    boards = [
        line
        for y, name in ((70, "board 1"), (170, "board 2"), (290, "board 100"))
        for line in _box(
            700, y, 190, 84, name, "edgepeft serve, tune", "its rows: stay here", "trusts 1.root.json alone"
        )
    ]
    store = ("web server, bucket, USB stick", "metadata/", *expiry, "targets/stable, beta")
    server = ("server of a federation", "Flower: TLS, a key a board", "averages tensors; sees no text")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_FLEET_HEIGHT}" role="img">',
        "<title>A workstation publishes signed files, boards pull them; a server averages what boards tuned</title>",
        f"<style>{_STYLE}{_MORE}</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>',
        '<text class="title" x="10" y="28">Publish once, every board takes it up; tune together, rows stay</text>',
        *_box(10, 70, 200, 130, "workstation", "bundle", "keys, which never leave it:", "root (in a drawer)", others),
        *_box(320, 70, 230, 148, *store, kind="open"),
        *boards,
        '<text class="small" x="795" y="276">...</text>',
        *_box(320, 320, 230, 84, *server, "its bundle has the mean"),
        *_way(210, 140, 320, 140, "publish", "(signed)"),
        *_way(550, 120, 700, 112, "pull: what changed,", "verified, replayed"),
        *_way(550, 160, 700, 205),
        *_way(550, 200, 700, 310),
        *_way(550, 345, 700, 240, both=True),
        *_way(550, 370, 700, 350, both=True),
        '<text class="small" x="650" y="400">up: tensors, losses, scores,</text>',
        '<text class="small" x="650" y="415">numbers of rows</text>',
        '<text class="small" x="650" y="430">down: the mean, the app\'s code</text>',
        *_way(320, 362, 110, 200),
        '<text class="small" x="140" y="300">a task like any other</text>',
        '<rect class="open" x="10" y="440" width="14" height="14"/>',
        '<text class="note" x="32" y="452">not trusted, nor is the network: what they alter is refused</text>',
    ]
    return "\n".join([*lines, "</svg>", ""])
