"""Options that several verbs have: one meaning, one definition."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepeft.common.errors import UsageError
from edgepeft.common.progress import messages

if TYPE_CHECKING:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.runtime.decoding import Decoding

BundleFolder = Annotated[Path, typer.Argument(help="The bundle's folder.")]
Variant = Annotated[
    list[str] | None, typer.Option("--set", help="A variant of the device: memory=2GB.", metavar="NAME=VALUE")
]

# What is measured, or predicted.
Mode = Annotated[
    str,
    typer.Option(
        help="limits: the device's cores and memory at this host's speed; calibrated: its speed too; "
        "predicted: nothing runs. On the device itself the first two measure."
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(help="For all; what does not fit is left out. Default: 600 of rounds, a workload."),
]

# How text is written.
Beams = Annotated[int | None, typer.Option(min=1, help="Texts that are followed at once. Default: 1, greedy.")]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of a text, at most. Default: 128.")]
LengthPenalty = Annotated[float | None, typer.Option(help="Above 1 beams favour long texts. Default: 1.")]
NoRepeatNgram = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="No N tokens stand twice in a text. Default: 0, any may.")
]


def note_trainable(trainable: bool) -> None:
    """Say of an option of earlier versions that it does nothing."""
    if trainable:
        messages().print("note: --trainable does nothing any more: every task can be tuned.")


def decoding_of(bundle: Bundle, task: str | None, beams: int | None, max_new_tokens: int | None) -> Decoding:
    """How a task's texts are written, greedily if nothing is given."""
    from edgepeft.runtime.decoding import Decoding

    asked = {"beams": beams, "max_new_tokens": max_new_tokens}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if given and (task is None or not bundle.entry(task).writes):
        option = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{option} is for a task that writes text; --task names one that does.")
    return Decoding(**given)


def written(decoding: Decoding | None) -> str:
    """Behind the sizes of what is read."""
    if decoding is None:
        return ""
    beams = "" if decoding.beams == 1 else f" by {decoding.beams} beams"
    return f" and {decoding.max_new_tokens} written{beams}"
