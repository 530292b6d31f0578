"""What stands in a row as its label, as text: what jsonl has as ``3`` or ``true`` and csv as text is one label."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from edgepeft.common.errors import DataError, UsageError

__all__ = ["NO_TARGET", "LabelReader", "label_text", "number_of", "require_names", "shown"]

NO_TARGET = -100  # past a target's end: PyTorch's and transformers' number for what no loss is of
_MOST_VALUES = 20  # of labels that are numbers and names all the same

LabelReader = Callable[[Any, str], str]
"""(the column's value, ``file:line``) -> the row's label as text; raises DataError."""


def label_text(value: Any, where: str, what: str = "label") -> str:
    """The text of a label, or of another column that is ``what``."""
    if not isinstance(value, str | int | float):
        raise DataError(f"{where}: the {what} must be a text or a number; found {shown(value)}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(
            f"{where}: the {what} is {value}, which stands for a missing one; fill it in or leave the row out."
        )
    label = json.dumps(value) if isinstance(value, bool) else str(value).strip()
    if not label or (not label.isascii() and any("\ud800" <= character <= "\udfff" for character in label)):
        raise DataError(f"{where}: the {what} is empty or not valid Unicode: {shown(value)}.")
    return label


def shown(value: Any) -> str:
    """As JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def number_of(value: Any) -> float | None:
    """The number that a label is; None of a name."""
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def require_names(path: object, what: str, labels: Sequence[Any]) -> None:
    """See that labels are no numbers to learn: many, or with fractions.

    Raises:
        UsageError: they may be.
    """
    values = {number for label in labels if (number := number_of(label)) is not None}
    if len(values) <= _MOST_VALUES and all(value == int(value) for value in values):
        return
    if all(number_of(label) is not None for label in labels):
        few = ", ".join(f"{value:g}" for value in sorted(values)[:3])
        raise UsageError(
            f"{path}: the {what} holds numbers ({few}, ...). Say what they are: --kind regression learns to "
            "give such a number, --kind classification takes each for a name."
        )
