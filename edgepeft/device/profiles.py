"""Finds, reads and writes profiles: shipped ones by name, a user's own by the path of its file.

A variant is the same board with more or less memory (``--set memory=2GB``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from os.path import expanduser  # unlike Path.expanduser, it leaves an unknown user as it is
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from edgepeft.common.bounded import read_toml
from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.common.messages import in_words, mistake
from edgepeft.common.resources import data_folder
from edgepeft.device import profile_schema
from edgepeft.device.host.groups import ROOT
from edgepeft.device.host.machine import board_name, cpu_model, usable_cores
from edgepeft.device.profile_schema import MemoryFigure, Profile

__all__ = [
    "SETTABLE",
    "is_this_board",
    "known_profiles",
    "load_profile",
    "profile_of_board",
    "toml_of",
    "variant_of",
    "with_settings",
]

_SUFFIX = ".toml"
_TABLES: dict[str, type[BaseModel]] = {
    "cores": profile_schema.Cores,
    "memory": profile_schema.MemoryFigure,
    "isa": profile_schema.Flags,
    "figures": profile_schema.Amount,
    "latencies": profile_schema.Latency,
    "reference": profile_schema.ReferenceEncoder,
    "sweeps": profile_schema.Sweep,
    "calibrations": profile_schema.Calibration,
}


def known_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in data_folder("profiles").glob(f"*{_SUFFIX}")))


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a shipped profile by name, or a file whose path ends in ``.toml``; ``rpi4:memory=2GB`` is a variant."""
    asked, colon, settings = str(name_or_path).partition(":")
    if asked.endswith(_SUFFIX):
        profile = _read(Path(expanduser(asked)))  # noqa: PTH111
    elif asked in known_profiles():
        profile = _read(data_folder("profiles") / f"{asked}{_SUFFIX}")
    else:
        raise UnknownName("profile", asked, known_profiles())
    return with_settings(profile, settings.split(",")) if colon else profile


def variant_of(name: str, settings: Iterable[str]) -> str:
    """The name by which ``load_profile`` makes that variant: ``rpi4`` with ``memory=2GB`` is ``rpi4:memory=2GB``."""
    listed = ",".join(settings)
    return f"{name}{',' if ':' in name else ':'}{listed}" if listed else name


def _read(path: Path) -> Profile:
    if not path.is_file():
        raise UsageError(f"there is no profile file {path}. Shipped: {', '.join(known_profiles())}.")
    try:
        return Profile.model_validate(read_toml(path))
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        parts = dict.fromkeys(_sentence(dict(one)) for one in mistakes[:3])
        more = f"; and {len(mistakes) - 3} more" if len(mistakes) > 3 else ""
        raise DataError(f"{path} is not a profile: {'; '.join(parts)}{more}.") from error


def _sentence(one: dict[str, Any]) -> str:
    path = [str(part) for part in one["loc"]]
    where = ".".join(path)
    if one["type"] == "extra_forbidden":
        part = _TABLES.get(path[0], Profile) if len(path) > 1 else Profile
        known = sorted(part.model_fields)
        close = get_close_matches(path[-1], known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"unknown key {where!r}{hint}, known there: {', '.join(known)}"
    return mistake(one, "the file")


def toml_of(document: Mapping[str, Any], comment: str = "") -> str:
    """A profile as the TOML file that it is read from; ``comment`` becomes its first lines."""
    json.dumps(document, allow_nan=False)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(document)


SETTABLE = ("memory",)
_UNITS = {unit.lower(): unit for unit in ("B", "MB", "GB", "MiB", "GiB")}


def with_settings(profile: Profile, settings: Iterable[str]) -> Profile:
    """``["memory=2GB"]`` -> the profile with that memory."""
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
        raise UsageError(f"--set memory={text}: {in_words(error)}.") from error


def is_this_board(profile: Profile, root: Path = ROOT) -> bool:
    """Whether the profile's device is what this runs on.

    A PC has no name of its own: it needs the processor's whole name, which many have, and as many cores.
    """
    name = board_name(root)
    if name is not None:
        return any(name.startswith(board) for board in profile.boards)
    return cpu_model(root / "proc") in profile.boards and usable_cores() == profile.cores.value


def profile_of_board(root: Path = ROOT) -> Profile | None:
    """The shipped profile of this board; None where there is none."""
    profiles = (load_profile(name) for name in known_profiles())
    return next((profile for profile in profiles if is_this_board(profile, root)), None)
