"""Regular expressions of foreign files, matched by a child process with two seconds and 256 MB for all of them.

Whoever writes a pattern decides how long it takes: to compile, by its size, and to match, by how it repeats.  PEFT
takes all of Python's syntax, lookaheads and backreferences among it, which engines of linear time lack.
"""

from __future__ import annotations

import json
import subprocess
import sys

from edgepeft.common.errors import BundleError

__all__ = ["Patterns"]

_CORE_S = 2  # Python and the library take a tenth of it to start
_MEMORY_MB = 256
_MOST_CHARACTERS = 10_000  # the longest that were seen list a hundred modules
_CHILD = """
import contextlib, json, sys
import regex
with contextlib.suppress(ImportError):  # Windows has none: there a match has its own time limit alone
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (core_s, core_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
for line in sys.stdin:
    pattern, name = json.loads(line)
    try:
        found = regex.match(pattern, name, timeout=core_s)
        answer = None if found is None else [found[0], *found.groups()]
    except regex.error as error:
        answer = f"is no regular expression ({error})"
    except (TimeoutError, RecursionError, MemoryError):
        answer = "takes too long or too much memory"
    print(json.dumps(answer), flush=True)
"""


class Patterns:
    """The patterns of one file; the child starts with the first of them and ends with this object."""

    def __init__(self, core_s: int = _CORE_S, memory_mb: int = _MEMORY_MB) -> None:
        self._limits = f"core_s, memory = {core_s}, {memory_mb << 20}\n"
        self._child: subprocess.Popen[str] | None = None

    def match(self, pattern: str, name: str) -> tuple[str | None, ...] | None:
        """What a pattern finds at a name's start, and its groups; None where it finds nothing."""
        if len(pattern) > _MOST_CHARACTERS:
            raise BundleError(
                f"the pattern {pattern!r:.80} has {len(pattern):,} characters; list names of modules instead."
            )
        child = self._child = self._child or subprocess.Popen(
            [sys.executable, "-P", "-c", self._limits + _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert child.stdin and child.stdout
            child.stdin.write(f"{json.dumps([pattern, name])}\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
        except (OSError, ValueError):  # it was ended by its limits
            answer = "takes too long or too much memory, alone or with those before it"
        if isinstance(answer, str):
            raise BundleError(f"the pattern {pattern!r:.80} {answer}; list names of modules instead.")
        return None if answer is None else tuple(answer)

    def __del__(self) -> None:
        """The child reads to the end of its input; what still matches is ended."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
