"""What the verbs that count and predict share of text that is written: how much of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgepeft.errors import UsageError

if TYPE_CHECKING:
    from edgepeft.runtime.bundle import Bundle
    from edgepeft.runtime.decoding import Decoding

__all__ = ["decoding_of", "written"]


def decoding_of(bundle: Bundle, task: str | None, beams: int | None, max_new_tokens: int | None) -> Decoding:
    """How a task's texts are written, greedily if nothing is given.

    Raises:
        UsageError: something is given, and the task writes none.
    """
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
