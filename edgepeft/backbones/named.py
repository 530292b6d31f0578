"""Architectures known by name: their Hugging Face configs are package data, no weight comes with them."""

from __future__ import annotations

from typing import Any

from edgepeft.backbones.config import read_config
from edgepeft.errors import UnknownName
from edgepeft.resources import package_data

__all__ = ["architecture_names", "config_of"]


def architecture_names() -> list[str]:
    """The names that ``config_of`` takes."""
    return sorted(path.stem for path in package_data("architectures").glob("*.json"))


def config_of(name: str) -> dict[str, Any]:
    """The Hugging Face config of a named architecture; an organisation before a slash may be left out.

    Raises:
        UnknownName: no such architecture is shipped.
    """
    known = {known.lower(): known for known in architecture_names()}
    key = name.rsplit("/", 1)[-1].lower()
    if key not in known:
        raise UnknownName("architecture", name, known.values())
    return read_config(package_data("architectures") / f"{known[key]}.json")
