"""Options that several verbs have, one meaning, one definition; and a verb's command made of its options' model."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from pydantic.fields import FieldInfo
from typer import Argument, Option

from edgepeft.common.errors import UsageError
from edgepeft.common.progress import say
from edgepeft.options.base import Options

if TYPE_CHECKING:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.inputs import Truncation

BundleFolder = Annotated[Path, Argument(help="The bundle's folder.")]
Variant = Annotated[list[str] | None, Option("--set", help="A device's variant: memory=2GB.", metavar="NAME=VALUE")]

# How text is written.
Beams = Annotated[int | None, Option(min=1, help="Texts that are followed at once. Default: 1, greedy.")]
MaxNewTokens = Annotated[int | None, Option(min=1, help="Tokens of a text, at most. Default: 128.")]
LengthPenalty = Annotated[float | None, Option(help="Above 1 beams favour long texts. Default: 1.")]
NoRepeatNgram = Annotated[int | None, Option(min=0, metavar="N", help="No N tokens twice in a text. Default: 0, any.")]


def note_trainable(trainable: bool) -> None:
    """Say of an option of earlier versions that it does nothing."""
    if trainable:
        say("note: --trainable does nothing any more: every task can be tuned.")


def decoding_of(bundle: Bundle, tasks: Iterable[str], **asked: Any) -> Decoding:
    """How these tasks' texts are written, greedily if nothing is given; None is not."""
    from edgepeft.runtime.decoding import Decoding

    given = {name: value for name, value in asked.items() if value is not None}
    if given and not any(bundle.entry(task).task_kind.writes for task in tasks):
        option = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{option} is for tasks that write text, and these do not; --task names one that does.")
    return Decoding(**given)


def written(decoding: Decoding | None) -> str:
    """Behind the sizes of what is read."""
    if decoding is None:
        return ""
    beams = "" if decoding.beams == 1 else f" by {decoding.beams} beams"
    return f" and {decoding.max_new_tokens} written{beams}"


def say_cuts(truncation: Truncation, max_new_tokens: int) -> None:
    """Say how many texts were cut or read in windows, and how many not written to their ends."""
    if truncation.rows:
        say(f"{truncation.rows} answer(s) read a text cut to the task's maximal length.")
    if truncation.windows.texts:
        say(f"read in windows: {truncation.windows}.")
    if truncation.texts:
        say(f"{truncation.texts} text(s) were cut at {max_new_tokens} tokens.")


def command_of(options: type[Options], verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function: typer then reads ``options`` by name, and what it takes beside them."""

    def decorate(act: Callable[..., None]) -> Callable[..., None]:
        own = dict(list(inspect.signature(act, eval_str=True).parameters.items())[1:])
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else _default(field),
                annotation=Annotated[_typed(field.annotation), next(m for m in field.metadata if hasattr(m, "help"))],
            )
            for name, field in options.model_fields.items()
            if options.help_of(name)  # others are not the command line's
        ]
        parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)  # what must be given is first
        parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values()]

        def command(**given: Any) -> None:
            beside = {name: given.pop(name) for name in own}
            asked = {n: value for n, value in given.items() if value != _default(options.model_fields[n])}
            act(options.of(asked, f"edgepeft {verb}"), **beside)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _default(field: FieldInfo) -> Any:
    """None where it is empty, as typer has options that are not given."""
    value = field.get_default(call_default_factory=True)
    return None if value in ({}, ()) else value


def _typed(kind: Any) -> Any:
    """The type that typer reads a value as: rows and folders as a path, mappings as NAME=VALUE; several as a list."""
    arms = [kind] if get_origin(kind) in (Mapping, tuple) else get_args(kind)
    of_arms = {get_origin(arm) or arm for arm in arms}
    one = Path if os.PathLike in of_arms or kind == tuple[Path, ...] else str
    if of_arms & {Mapping, Sequence, tuple}:
        return list[one] | None  # type: ignore[valid-type]
    return kind if one is str else Path | None if type(None) in of_arms else Path
