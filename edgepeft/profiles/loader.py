"""Finds, reads and writes profiles: shipped ones by name, a user's own by the path of its file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from os.path import expanduser  # unlike Path.expanduser, it leaves an unknown user as it is
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from edgepeft.errors import DataError, UnknownName, UsageError
from edgepeft.profiles import schema
from edgepeft.profiles.schema import Profile
from edgepeft.profiles.variants import with_settings
from edgepeft.resources import data_folder

__all__ = ["known_profiles", "load_profile", "toml_of"]

_SUFFIX = ".toml"
_TABLES: dict[str, type[BaseModel]] = {
    "cores": schema.Cores,
    "memory": schema.MemoryFigure,
    "isa": schema.Flags,
    "figures": schema.Amount,
    "latencies": schema.Latency,
    "reference": schema.ReferenceEncoder,
    "sweeps": schema.Sweep,
    "calibrations": schema.Calibration,
}


def known_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in data_folder("profiles").glob(f"*{_SUFFIX}")))


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a shipped profile by name, or the file at a path that ends in ``.toml``; ``rpi4:memory=2GB`` is its variant.

    Raises:
        UnknownName: no shipped profile of that name.
        UsageError: no such file; no such variant.
        DataError: a file that is no profile; the message names file, key and the nearest known key.
    """
    asked, colon, settings = str(name_or_path).partition(":")
    if asked.endswith(_SUFFIX):
        profile = _read(Path(expanduser(asked)))  # noqa: PTH111
    elif asked in known_profiles():
        profile = _read(data_folder("profiles") / f"{asked}{_SUFFIX}")
    else:
        raise UnknownName("profile", asked, known_profiles())
    return with_settings(profile, settings.split(",")) if colon else profile


def _read(path: Path) -> Profile:
    if not path.is_file():
        raise UsageError(f"there is no profile file {path}. Shipped: {', '.join(known_profiles())}.")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8 (byte {error.start}).") from error
    except (ValueError, RecursionError) as error:  # endless digits, endless nesting: not TOMLDecodeErrors
        raise DataError(f"{path} is not TOML: {error}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        raise DataError(f"{path} is not a profile: {_explain(error)}.") from error


def _explain(error: ValidationError) -> str:
    """The first three things wrong, each as ``key: what``."""
    mistakes = error.errors(include_url=False)
    parts = [_sentence(dict(one)) for one in mistakes[:3]]
    more = f"; and {len(mistakes) - 3} more" if len(mistakes) > 3 else ""
    return "; ".join(dict.fromkeys(parts)) + more


def _sentence(one: dict[str, Any]) -> str:
    path = [str(part) for part in one["loc"]]
    where = ".".join(path) or "the file"
    if one["type"] == "extra_forbidden":
        part = _TABLES.get(path[0], Profile) if len(path) > 1 else Profile
        known = sorted(part.model_fields)
        close = get_close_matches(path[-1], known, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return f"unknown key {where!r}{hint}, known there: {', '.join(known)}"
    if one["type"] == "missing":
        return f"key {where!r} is missing"
    what = str(one["msg"]).removeprefix("Value error, ")
    given = "" if one["type"] == "value_error" else f", found {_short(one['input'])}"
    return f"{where}: {what[0].lower()}{what[1:]}{given}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def toml_of(document: Mapping[str, Any], comment: str = "") -> str:
    """A profile as the TOML file that it is read from; ``comment`` becomes its first lines.

    Raises:
        ValueError: a number that is none, which TOML could hold and no profile can.
    """
    json.dumps(document, allow_nan=False)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + tomli_w.dumps(document)
