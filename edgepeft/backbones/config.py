"""JSON files that describe a model; apart from source.py, which may convert with torch and which no board loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgepeft.errors import BundleError

__all__ = ["read_config"]


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        BundleError: not JSON, or not an object.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise BundleError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(config, dict):
        raise BundleError(f"{path} holds {type(config).__name__}; a JSON object was expected.")
    return config
