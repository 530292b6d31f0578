"""A part of a report: a picture and the numbers that it shows, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cell", "Section"]

Cell = str | float | int | None


@dataclass(frozen=True)
class Section:
    """``draw`` draws on a matplotlib figure of ``inches``; None where there is only a table."""

    key: str
    title: str
    text: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    draw: Callable[[Any], None] | None = None
    inches: tuple[float, float] = (7.0, 4.0)
    notes: Sequence[str] = field(default_factory=tuple)
