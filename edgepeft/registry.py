"""Discovery: every public module of a package counts; there is no list to keep."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterator
from types import ModuleType

__all__ = ["modules_of"]


def modules_of(package: str, *, skip: Collection[str] = ()) -> Iterator[ModuleType]:
    """Import and yield the public modules of ``package`` in alphabetical order, those in ``skip`` left out."""
    folders = importlib.import_module(package).__path__
    for info in sorted(pkgutil.iter_modules(folders), key=lambda info: info.name):
        if not info.name.startswith("_") and info.name not in skip:
            yield importlib.import_module(f"{package}.{info.name}")
