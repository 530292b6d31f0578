"""Lists and mappings in a table's cell, as JSON or Python writes them."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from typing import Any

__all__ = ["opened"]

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
