"""A profile's variants: the same board is sold with more or less memory (``--set memory=2GB``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import ValidationError

from edgepeft.errors import UsageError
from edgepeft.profiles.schema import MemoryFigure, Profile

__all__ = ["SETTABLE", "with_settings"]

SETTABLE = ("memory",)
_UNITS = {unit.lower(): unit for unit in ("B", "MB", "GB", "MiB", "GiB")}


def with_settings(profile: Profile, settings: Iterable[str]) -> Profile:
    """``["memory=2GB"]`` -> the profile with that memory.

    Raises:
        UsageError: not ``name=value``, no such setting, or no such variant.
    """
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting}: name=value is needed, for example --set memory=2GB.")
        if name not in SETTABLE:
            close = " Did you mean 'memory'?" if get_close_matches(name, SETTABLE, n=1) else ""
            raise UsageError(f"--set {setting}: of a profile, {', '.join(SETTABLE)} can be set.{close}")
        profile = profile.model_copy(update={"memory": _memory(profile, value)})
    return profile


def _memory(profile: Profile, text: str) -> MemoryFigure:
    """One of the variants, where the profile names them; a maker's GB is then the profile's GiB."""
    own = profile.memory
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text, re.IGNORECASE | re.ASCII)
    unit = own.unit if match is None or not match[2] else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise UsageError(f"--set memory={text}: an amount of memory was expected, such as 2GB or 512MiB.")
    value = float(match[1])
    value = int(value) if value.is_integer() else value
    if own.variants:
        sold = ", ".join(f"{size:g} {own.unit}" for size in own.variants)
        if value not in own.variants or unit.replace("i", "") != own.unit.replace("i", ""):
            raise UsageError(f"--set memory={text}: {profile.name} is sold with {sold}; name one of them.")
        unit = own.unit
    try:
        return MemoryFigure.model_validate({**own.model_dump(), "value": value, "unit": unit})
    except ValidationError as error:
        what = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UsageError(f"--set memory={text}: {what}.") from error
