"""Proportional memory (PSS) of a process, read from outside: a page that n processes map counts 1/n for each."""

from __future__ import annotations

from pathlib import Path

from edgepeft.common.errors import EdgepeftError


def proportional_bytes(pid: int) -> int:
    """PSS of a living process, in bytes."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError as error:
        raise EdgepeftError(f"the proportional memory of process {pid} cannot be read here ({error}).") from error
    raise EdgepeftError(f"/proc/{pid}/smaps_rollup names no Pss.")
