"""A limit on open sessions: the least recently used one is closed for the next.

Each session maps the weights tensor by tensor (roberta-base: 150 to 200 mappings), and Linux gives a process 65,530
mappings in all; beyond some 350 sessions ONNX Runtime opens no more, and the process gets no more memory either.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["MOST_SESSIONS", "SessionLru", "most_sessions"]

MOST_SESSIONS = 128  # tasks of one structure share one or two of them; each holds 8 to 20 MB and its threads
_LIMIT = Path("/proc/sys/vm/max_map_count")


def most_sessions(n_tensors: int, limit: Path = _LIMIT) -> int:
    """How many sessions of ``n_tensors`` tensors each fit into half of the mappings that a process may have."""
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):  # not Linux
        return MOST_SESSIONS
    return max(4, min(MOST_SESSIONS, allowed // 2 // max(1, n_tensors)))


class SessionLru:
    """The open sessions by last use; ``forget`` is called with one that their owner must drop.

    A session that is running when it is forgotten runs to its end.
    """

    def __init__(self, most: int, forget: Callable[[Any], object]) -> None:
        self.most, self._forget = most, forget
        self._open: OrderedDict[int, weakref.ref[Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self) -> None:
        """Close the least recently used sessions until one more may open."""
        while len(self._open) >= self.most:
            _, reference = self._open.popitem(last=False)
            session = reference()
            if session is not None:
                self._forget(session)

    def add(self, session: Any) -> None:
        """Count a session that was just opened, until it is garbage collected."""
        key = id(session)
        self._open[key] = weakref.ref(session, lambda _: self._open.pop(key, None))

    def used(self, session: Any) -> None:
        """Note a session as the most recently used one; from any thread."""
        with contextlib.suppress(KeyError):  # closed meanwhile
            self._open.move_to_end(id(session))
