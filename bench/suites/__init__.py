"""Suites: what edgepeft claims, measured beside its peers in one run.  One file a suite, found by its name.

A suite has a ``TITLE``, and ``measure(run)`` gives its rows, one by one as they are measured.
"""

from __future__ import annotations

import importlib
from typing import Any

from edgepeft.common.errors import UnknownName
from edgepeft.common.registry import names_of


def suite_names() -> list[str]:
    """Every suite, by name."""
    return list(names_of(__name__))


def suite_named(name: str) -> Any:
    """The module of that suite."""
    if name not in suite_names():
        raise UnknownName("suite", name, suite_names())
    return importlib.import_module(f"{__name__}.{name}")
