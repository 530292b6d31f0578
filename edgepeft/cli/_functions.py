"""``edgepeft.train(...)`` and ``edgepeft.export(...)``: a verb's options as arguments of a function.

The options, their types, defaults and help are those of the verb's command and stand there alone; they are read from
its signature.  The functions that take objects keep their names: what is called with objects goes on to them.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import torch
import typer
from pydantic import ValidationError, create_model

from edgepeft.cli import export as export_verb
from edgepeft.cli import train as train_verb
from edgepeft.cli._output import INTERRUPTED
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.common.messages import in_words
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.loop import train as train_delta

__all__ = ["export", "train"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_OF_THE_LINE = ("as_json",)  # options that say what to print


class Function(Protocol[P, R_co]):
    """Takes objects, or a verb's options by name, and gives what `edgepeft VERB --json` prints."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, **options: Any) -> dict[str, Any]: ...


def _both(of_objects: Callable[P, R], verb: ModuleType, own: str) -> Function[P, R]:
    """``own`` is an argument that only the function of objects has."""
    name = verb.__name__.rsplit(".", 1)[1]

    @functools.wraps(of_objects)
    def call(*args: Any, **named: Any) -> Any:
        if args or own in named:
            return of_objects(*args, **named)
        return _called(name, verb, named)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{inspect.getdoc(of_objects)}\n\n{_options_of(name, verb.command)}"
    return typing.cast("Function[P, R]", call)


def _called(name: str, verb: ModuleType, given: Mapping[str, Any]) -> dict[str, Any]:
    known = {n: p for n, p in inspect.signature(verb.command).parameters.items() if n not in _OF_THE_LINE}
    for option in given:
        if option not in known:
            raise UnknownName(f"option of edgepeft.{name}", option, known)
    missing = [n for n, p in known.items() if p.default is p.empty and n not in given]
    if missing:
        raise UsageError(f"edgepeft.{name} needs {' and '.join(f'{n}=' for n in missing)} too.")
    hints = typing.get_type_hints(verb.command)
    options = {n: _typed(n, given[n], hints[n]) if n in given else p.default for n, p in known.items()}
    threads = torch.get_num_threads()
    try:
        document: dict[str, Any] = verb.document(verb.run(options))
        return document
    except typer.Exit as end:
        if end.exit_code != INTERRUPTED:
            raise
        raise Interrupted(f"edgepeft.{name} was stopped; with resume=True and without force it goes on.") from None
    finally:
        torch.set_num_threads(threads)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """A value as the command line has it: ``{"rank": 8}`` as rank=8, one path as a list of them, 0.2 as text."""
    if value is None:
        return None
    listed = any(typing.get_origin(kind) is list for kind in typing.get_args(hint))
    if isinstance(value, Mapping):
        value = [f"{key}={_joined(each)}" for key, each in value.items()]
    elif listed and not isinstance(value, list | tuple):
        value = [value]
    elif isinstance(value, float) and float not in (hint, *typing.get_args(hint)):
        value = str(value)
    fields: dict[str, Any] = {name: (hint, ...)}
    try:
        return getattr(create_model("options", **fields)(**{name: value}), name)
    except ValidationError as error:
        raise UsageError(f"{in_words(error)}.") from None


def _joined(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _options_of(name: str, command: Callable[..., None]) -> str:
    """For ``help()``: every option with its help."""
    hints = typing.get_type_hints(command, include_extras=True)
    lines = [f"Or with the options of `edgepeft {name}` by name; gives what `--json` prints:"]
    for option, parameter in inspect.signature(command).parameters.items():
        if option not in _OF_THE_LINE:
            said = next((m.help for m in getattr(hints[option], "__metadata__", ()) if getattr(m, "help", None)), "")
            default = "" if parameter.default in (parameter.empty, None) else f" (default {parameter.default!r})"
            lines.append(f"    {option}{'' if parameter.default is not parameter.empty else ' *'}: {said}{default}")
    return "\n".join([*lines, "", "An asterisk marks what must be given."])


train = _both(train_delta, train_verb, "options")
export = _both(export_bundle, export_verb, "deltas")
