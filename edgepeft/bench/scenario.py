"""Scenarios are data: ``bench/scenarios/<name>.toml`` says how work arrives and how long to measure."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

from edgepeft.errors import UnknownName
from edgepeft.resources import data_folder

__all__ = ["Scenario", "load_scenario"]


@dataclass(frozen=True)
class Scenario:
    """The defaults that the command line's options replace."""

    name: str
    summary: str
    batch_size: int
    sequence_length: int
    warmup_rounds: int
    rounds: int
    max_seconds: float


def load_scenario(name: str) -> Scenario:
    """The shipped scenario of that name.

    Raises:
        UnknownName: there is none.
    """
    folder = data_folder("bench/scenarios")
    path = folder / f"{name}.toml"
    known = sorted(found.stem for found in folder.glob("*.toml"))
    if name not in known:
        raise UnknownName("scenario", name, known)
    return Scenario(**tomllib.loads(path.read_text(encoding="utf-8")))
