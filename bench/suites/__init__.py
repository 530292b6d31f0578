"""Suites: what edgepeft claims, measured beside its peers in one run.  One file a suite, found by its name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Protocol

from bench.suites._row import SuiteRow
from bench.suites._suite_run import SuiteRun
from edgepeft.common.errors import UnknownName
from edgepeft.common.registry import names_of


class Suite(Protocol):
    """What a module of this package offers."""

    TITLE: str

    @staticmethod
    def measure(run: SuiteRun) -> Iterator[SuiteRow]:
        """The suite's rows, one by one as they are measured."""


def suite_names() -> list[str]:
    """Every suite, by name."""
    return list(names_of(__name__))


def suite_named(name: str) -> Suite:
    """The suite of that name."""
    if name not in suite_names():
        raise UnknownName("suite", name, suite_names())
    suite: Suite = importlib.import_module(f"{__name__}.{name}")  # type: ignore[assignment]
    return suite
