"""Shares on the command line: ``5%`` and ``0.05`` are the same."""

from __future__ import annotations

from edgepeft.errors import UsageError

__all__ = ["share_of"]


def share_of(option: str, text: str) -> float:
    """A fraction in [0, 1); a bare number of 1 or more is not guessed at.

    Raises:
        UsageError: something else.
    """
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise UsageError(f"{option} {text!r}: give a share such as 5% or 0.05, under 100%.")
    return value
