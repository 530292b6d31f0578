"""A verb's command made of its options' model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo

from edgepeft.options.base import Options

__all__ = ["command_of"]


def command_of(options: type[Options], act: Callable[..., None], verb: str) -> Callable[..., None]:
    """What typer reads: ``options`` by name, and what ``act`` takes beside them; its docstring is the help."""
    own = dict(list(inspect.signature(act, eval_str=True).parameters.items())[1:])
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.is_required() else _default(field),
            annotation=Annotated[_on_the_line(field.annotation), next(m for m in field.metadata if hasattr(m, "help"))],
        )
        for name, field in options.model_fields.items()
    ]
    parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)  # those that must be given are first
    parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values()]

    def command(**given: Any) -> None:
        beside = {name: given.pop(name) for name in own}
        asked = {n: value for n, value in given.items() if value != _default(options.model_fields[n])}
        act(options.of(asked, f"edgepeft {verb}"), **beside)

    command.__doc__ = inspect.getdoc(act)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _default(field: FieldInfo) -> Any:
    """None where it is empty, as typer has options that are not given."""
    value = field.get_default(call_default_factory=True)
    return None if value in ({}, ()) else value


def _on_the_line(kind: Any) -> Any:
    """The type that typer reads a value as: rows and folders as a path, mappings as NAME=VALUE; several as a list."""
    arms = [kind] if get_origin(kind) is Mapping else get_args(kind)
    of_arms = {get_origin(arm) or arm for arm in arms}
    one = Path if os.PathLike in of_arms else str
    if of_arms & {Mapping, Sequence}:
        return list[one] | None  # type: ignore[valid-type]
    return kind if one is str else Path | None if type(None) in of_arms else Path
