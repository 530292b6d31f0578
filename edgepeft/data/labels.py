"""What stands in a row as its label, as text: what jsonl has as ``3`` or ``true`` and csv as text is one label."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from edgepeft.common.errors import DataError

__all__ = ["NO_TARGET", "LabelReader", "label_text", "shown"]

NO_TARGET = -100  # past a target's end: PyTorch's and transformers' number for what no loss is of

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
    if not label or any("\ud800" <= character <= "\udfff" for character in label):
        raise DataError(f"{where}: the {what} is empty or not valid Unicode: {shown(value)}.")
    return label


def shown(value: Any) -> str:
    """As JSON, cut where it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
