"""A profile as the TOML file that it is read from: the standard library reads TOML and writes none.

Only what profiles hold: texts, numbers, lists of these, tables, lists of tables (toml.io/en/v1.0.0).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["toml_of"]


def toml_of(document: Mapping[str, Any], comment: str = "") -> str:
    """The file's text; ``comment`` becomes its first lines."""
    head = [f"# {line}" for line in comment.splitlines()]
    return "\n".join([*head, *_table(document, ())]).strip("\n") + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Plain keys first: whatever follows a header belongs to it."""
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    arrays = {key: value for key, value in table.items() if _is_array(value)}
    for key, value in table.items():
        if key not in tables and key not in arrays:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        inner = (*path, _key(key))
        if any(not isinstance(part, Mapping) for part in value.values()):
            yield from ("", f"[{'.'.join(inner)}]")
        yield from _table(value, inner)
    for key, rows in arrays.items():
        inner = (*path, _key(key))
        for row in rows:
            yield from ("", f"[[{'.'.join(inner)}]]")
            yield from _table(row, inner)


def _is_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(one) for one in value)}]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value, allow_nan=False)
