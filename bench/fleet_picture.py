"""Draws a fleet for docs/fleet.md: what goes from where to where, signed by whom, and what stays."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from bench.floors import STYLE

_WIDTH, _HEIGHT = 900, 470
_MORE = """
  .left { text-anchor: start }
  .open { fill: none; stroke: #bc4c00; stroke-dasharray: 5 4 }
  .way { stroke: #59636e; fill: none; stroke-width: 1.5 }
  .head { fill: #59636e; stroke: none }
  .small { font-size: 12px; fill: #59636e; text-anchor: middle }
  @media (prefers-color-scheme: dark) { .small { fill: #9198a1 } .way { stroke: #9198a1 } .head { fill: #9198a1 } }
"""


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
    boards = [
        line
        for y, name in ((70, "board 1"), (170, "board 2"), (290, "board 100"))
        for line in _box(
            700, y, 190, 84, name, "edgepeft serve, tune", "its rows: stay here", "trusts 1.root.json alone"
        )
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        "<title>A workstation publishes signed files, boards pull them; a server averages what boards tuned</title>",
        f"<style>{STYLE}{_MORE}</style>",
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>',
        '<text class="title" x="10" y="28">Publish once, every board takes it up; tune together, rows stay</text>',
        *_box(10, 70, 200, 130, "workstation", "bundle", "keys, which never leave it:", *_keys(days)),
        *_box(
            320,
            70,
            230,
            148,
            "web server, bucket, USB stick",
            "metadata/",
            *expiry,
            "targets/stable, beta",
            kind="open",
        ),
        *boards,
        '<text class="small" x="795" y="276">...</text>',
        *_box(
            320,
            320,
            230,
            84,
            "server of a federation",
            "Flower: TLS, a key a board",
            "averages tensors; sees no text",
            "its bundle has the mean",
        ),
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


def _keys(days: Mapping[str, int]) -> list[str]:
    """The names of the roles, root apart."""
    return ["root (in a drawer)", ", ".join(role for role in days if role != "root")]
