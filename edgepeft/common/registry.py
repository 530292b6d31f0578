"""Discovery: every public module of a package counts; there is no list to keep.  What is named is imported alone."""

import importlib
import pkgutil
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import TypeVar

_Base = TypeVar("_Base")


def classes_of(package: str, base: type[_Base], attribute: str) -> dict[str, type[_Base]]:
    """The subclasses of ``base`` that public modules of ``package`` define, by their own ``attribute``."""
    return {name: kind for module in modules_of(package) for name, kind in _classes_in(module, base, attribute)}


def class_named(package: str, base: type[_Base], name: str) -> type[_Base] | None:
    """That of the module of its name, where classes are called as their modules are; None where there is none."""
    module = name.replace("-", "_").replace("+", "_plus")
    if module not in names_of(package):
        return None
    return dict(_classes_in(importlib.import_module(f"{package}.{module}"), base, "name")).get(name)


def _classes_in(module: ModuleType, base: type[_Base], attribute: str) -> Iterator[tuple[str, type[_Base]]]:
    for value in vars(module).values():
        own = isinstance(value, type) and value.__module__ == module.__name__  # not one that it derives from
        if own and issubclass(value, base) and attribute in vars(value):
            yield vars(value)[attribute], value


def names_of(package: str, *, skip: Collection[str] = ("base",)) -> tuple[str, ...]:
    """The public modules of ``package`` in alphabetical order, those in ``skip`` left out; none is imported."""
    folders = importlib.import_module(package).__path__
    names = sorted(info.name for info in pkgutil.iter_modules(folders))
    return tuple(name for name in names if name not in skip and not name.startswith("_"))


def modules_of(package: str, *, skip: Collection[str] = ()) -> Iterator[ModuleType]:
    """Import and yield them, the base too."""
    return (importlib.import_module(f"{package}.{name}") for name in names_of(package, skip=skip))
