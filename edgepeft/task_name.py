"""Names of tasks, which are also names of files and parts of URLs."""

from __future__ import annotations

import re

from edgepeft.errors import UsageError

__all__ = ["TASK_NAME", "check_task_name", "named_after"]

TASK_NAME = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$"


def check_task_name(name: str) -> str:
    """The name itself, after a check.

    Raises:
        UsageError: it has other characters than letters, digits, ``.``, ``_`` and ``-``, starts with a dot, or is long.
    """
    if not re.fullmatch(TASK_NAME, name):
        raise UsageError(
            f"{name!r} cannot be a task's name: letters, digits, '.', '_' and '-' only, no dot in front, at most 100."
        )
    return name


def named_after(method: str) -> str:
    """A task's or template's name made from a method's: ``compacter++`` becomes ``compacter-plus-plus``."""
    return method.replace("+", "-plus")
