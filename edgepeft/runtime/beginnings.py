"""What the texts of each task begin with, its instruction: its keys and values are computed once and kept.

A text starts from as many of these tokens as are its own too, so it does not matter where a tokenizer joins the
instruction's end to what follows.  The least recently used are let go where memory is short.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import RLock

from edgepeft.runtime.kv_cache import Beginning


class Beginnings:
    """By task; several threads may use them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Beginning] = OrderedDict()
        self._lock = RLock()

    @property
    def n_bytes(self) -> int:
        """Of all that are kept."""
        with self._lock:
            return sum(each.n_bytes for each in self._kept.values())

    def of(self, task: str) -> Beginning | None:
        """A task's, if it is kept."""
        with self._lock:
            if task in self._kept:
                self._kept.move_to_end(task)
            return self._kept.get(task)

    def keep(self, task: str, found: Beginning, most: int) -> Beginning:
        """Keep a task's, which has at most ``most`` bytes; others are let go until all together have no more."""
        with self._lock:
            self.shrink(most - found.n_bytes)
            self._kept[task] = found
        return found

    def shrink(self, most: int) -> None:
        """Let the least recently used go until the others have ``most`` bytes."""
        with self._lock:
            while self._kept and self.n_bytes > most:
                self._kept.popitem(last=False)
