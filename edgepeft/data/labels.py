"""What stands in a cell or as a label: what jsonl has as ``3`` or ``true`` and csv as text is one label.

Lists and mappings in a table's cell are read as JSON or Python writes them.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from edgepeft.common.errors import DataError, UsageError

__all__ = ["NO_TARGET", "LabelReader", "label_text", "number_of", "opened", "require_names", "shown"]

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
    """See that labels are no numbers to learn: many, or with fractions."""
    values = {number for label in labels if (number := number_of(label)) is not None}
    if len(values) <= _MOST_VALUES and all(value == int(value) for value in values):
        return
    if all(number_of(label) is not None for label in labels):
        few = ", ".join(f"{value:g}" for value in sorted(values)[:3])
        raise UsageError(
            f"{path}: the {what} holds numbers ({few}, ...). Say what they are: --kind regression learns to "
            "give such a number, --kind classification takes each for a name."
        )


_LONGEST = 1 << 20  # characters
_OF_PYTHON = 1 << 18  # a list that Python parses takes some hundred times as much
_APART = re.compile(r"""['"]\s+['"]""")  # NumPy's ['a' 'b'], which Python reads as ['ab']


def opened(cell: Any) -> Any:
    """What a cell holds: the list or mapping that it is the text of; anything else as it is."""
    text = cell.strip() if isinstance(cell, str) and len(cell) <= _LONGEST else ""
    if (text[:1], text[-1:]) not in (("[", "]"), ("{", "}")):
        return cell
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    if len(text) <= _OF_PYTHON and not _APART.search(text):
        with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            found = ast.literal_eval(text)
            return found if isinstance(found, list | dict) else cell
    return cell
