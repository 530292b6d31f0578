"""What an inspection is: it says which deltas it can look at, computes plain values, and draws them.

One inspection, one file of this package, found by its ``name``.  None asks for a method's name: what a
delta's modules are decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from torch import nn

from edgepeft.bundle.delta import Delta
from edgepeft.common.registry import classes_of
from edgepeft.data.batches import Encoded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Advance", "Inspection", "InspectionTarget", "inspections"]

Advance = Callable[[int], None]
"""Told the number of rows after each batch."""


@dataclass(frozen=True)
class InspectionTarget:
    """A delta in eval mode, the frozen model that it belongs to, and the rows to look at it with."""

    delta: Delta
    model: nn.Module
    rows: Encoded
    metric: str


class Inspection(ABC):
    """Base of all inspections; ``name`` is its key in ``inspect.json``, ``shows`` what one learns from it."""

    name: ClassVar[str]
    shows: ClassVar[str]

    @abstractmethod
    def obstacle(self, delta: Delta) -> str | None:
        """Why this delta has nothing for it; None where it has."""

    @abstractmethod
    def passes(self, delta: Delta) -> int:
        """How many times it runs over the rows."""

    @abstractmethod
    def look(self, target: InspectionTarget, advance: Advance) -> dict[str, Any]:
        """What it measured, as plain values; ``advance`` is called for every pass over the rows."""

    @abstractmethod
    def draw(self, measured: Mapping[str, Any], task: str) -> dict[str, Figure]:
        """Pictures of what ``look`` returned, by the stem of their files."""

    @abstractmethod
    def table(self, measured: Mapping[str, Any]) -> RenderableType:
        """The same for a terminal, in short."""


def inspections() -> tuple[Inspection, ...]:
    """One of each kind, by name."""
    kinds = classes_of("edgepeft.training.inspection", Inspection, "name")  # type: ignore[type-abstract]
    return tuple(kinds[name]() for name in sorted(kinds))
