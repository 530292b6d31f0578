"""A profile as the TOML file that it is read from: the standard library reads TOML and writes none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tomli_w

__all__ = ["toml_of"]


def toml_of(document: Mapping[str, Any], comment: str = "") -> str:
    """The file's text; ``comment`` becomes its first lines.

    Raises:
        ValueError: a number that is none, which TOML could hold and no profile can.
    """
    json.dumps(document, allow_nan=False)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(document)
