"""What a pull does with each task, from four facts: what is published, what is here, what was taken up last and before.

    published   here             last taken up    then
    B           nothing          not B            take B
    B           B                any              nothing
    B           A, the fleet's   not B            take B
    B           A, the fleet's   B                keep: rolled back here
    B           nothing          B                keep: removed here
    B           C, its own       any              keep: tuned or added here
    nothing     A, the fleet's   any              remove: withdrawn
    nothing     C, its own       A                keep: withdrawn, but tuned here

``--replace-tuned`` turns each keep into what is published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgepeft.fleet.state import State

__all__ = ["Decision", "decide"]


@dataclass(frozen=True)
class Decision:
    """Tasks to take up and to remove, and those that stay as they are here, with the reason."""

    take: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    keep: Mapping[str, str] = field(default_factory=dict)


def decide(published: Mapping[str, str], here: Mapping[str, str], state: State, *, replace: bool) -> Decision:
    """What to do; ``published`` and ``here`` are SHA-256 of graphs by task."""
    take, remove, keep = [], [], {}
    for task in sorted({*published, *here}):
        offered, own, last = published.get(task), here.get(task), state.taken.get(task)
        fleets = own in state.known.get(task, []) or own == last
        if offered == own:
            continue
        if offered is None:
            if fleets or (last is not None and replace):
                remove.append(task)
            elif last is not None:
                keep[task] = "withdrawn by the publisher, and tuned on this board"
        elif replace or (last != offered and (own is None or fleets)):
            take.append(task)
        elif own is None:
            keep[task] = "removed on this board"
        else:
            keep[task] = "rolled back on this board" if fleets else "tuned or added on this board"
    return Decision(tuple(take), tuple(remove), keep)
