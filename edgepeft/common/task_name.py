"""Names of tasks, which are also names of files and parts of URLs."""

import itertools
import re
from collections.abc import Iterable

from edgepeft.common.errors import UsageError

TASK_NAME = "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$"
# A task's files, after its name; the last has what is more than a graph can hold.
SUFFIXES = GRAPH, CHECK, TRAINING, WEIGHTS = ".onnx", ".check.safetensors", ".train.onnx", ".weights.safetensors"
_RESERVED = TRAINING.removesuffix(GRAPH)  # a name that ends so has another task's training graph for its graph


def check_task_name(name: str) -> str:
    """The name itself, where a task of a bundle may have it."""
    if not re.fullmatch(TASK_NAME, name):
        raise UsageError(
            f"{name!r} cannot be a task's name: a to z, A to Z, digits, '.', '_', '-', no dot in front, at most 100."
        )
    return name


def check_new_name(name: str, beside: Iterable[str] = ()) -> str:
    """The name itself, where a new task may have it among the tasks ``beside`` it."""
    check_task_name(name)
    if name.lower().endswith(_RESERVED):
        raise UsageError(f"{name!r} cannot be a new task's name: {_RESERVED!r} at its end marks training graphs.")
    for other in beside:
        if other != name and other.lower() == name.lower():
            raise UsageError(f"{name!r} differs from the task {other!r} in capital letters only; choose another name.")
    return name


def check_task_names(names: Iterable[str]) -> None:
    """See that tasks which stand together have names of tasks, and no file in common."""
    listed = [check_task_name(name) for name in names]
    owners: dict[str, str] = {}
    for name, suffix in itertools.product(listed, SUFFIXES):
        if owners.setdefault(f"{name}{suffix}", name) != name:
            raise UsageError(f"the tasks {owners[name + suffix]!r} and {name!r} would share the file {name + suffix}.")


def named_after(method: str) -> str:
    """A task's or template's name made from a method's: ``compacter++`` becomes ``compacter-plus-plus``."""
    return method.replace("+", "-plus")
