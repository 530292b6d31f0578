"""What a task's graph says of itself, its metadata's ``edgepeft.card``, and the manifest's entry, which is made of it.

The entry repeats the card, for what lists tasks reads no graph.  So the two are compared wherever both are at hand: a
manifest that was altered gives other answers than the graph was verified with.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.errors import BundleError
from edgepeft.common.messages import in_words
from edgepeft.tasks.base import TaskType, stated

__all__ = ["card_of", "entry_of", "kind_of", "require_agreement"]

# What the entry has of its files, this machine and the task's past, and not of the card.
_OF_FILES = {
    "n_bytes",
    "weights_dtype",
    "private_bytes",
    "shared_layers",
    "sha256",
    "check_sha256",
    "weights_sha256",
    "train_sha256",
    "verification",
    "previous",
}


def card_of(facts: Mapping[str, str], where: Path) -> dict[str, Any]:
    """The card in a graph's metadata."""
    with _reading(where):
        return TypeAdapter(dict[str, Any]).validate_json(facts.get("edgepeft.card", "{}"))


def entry_of(card: Mapping[str, Any], where: Path, of_files: Mapping[str, Any]) -> TaskEntry:
    """The entry that a card makes, with what there is to say of its files."""
    with _reading(where):
        return _named(TaskEntry.model_validate({**card, **of_files}))


def kind_of(card: Mapping[str, Any], where: Path) -> TaskType:
    """The kind of task that a card states."""
    try:
        chosen = card.get("chosen") or {}
        return stated(card.get("kind"), card.get("labels"), card.get("head_reads", ""), chosen=chosen)
    except (ValueError, TypeError) as error:
        raise BundleError(f"{where}: its card is damaged: {error}.") from error


def require_agreement(card: Mapping[str, Any], entry: TaskEntry, where: Path) -> None:
    """See that an entry says what the card says."""
    made = entry_of(card, where, {name: getattr(entry, name) for name in _OF_FILES})
    said, meant = _plain(_named(entry)), _plain(made)
    if odd := next((name for name in meant if said[name] != meant[name]), None):
        raise BundleError(
            f"{where}: its entry says {odd} {json.dumps(said[odd]):.200}, and the graph itself "
            f"{json.dumps(meant[odd]):.200}. One of them was altered; do not use it, or add the task anew."
        )


def _plain(entry: TaskEntry) -> dict[str, Any]:
    """As JSON has it, where a number that is none is null."""
    found: dict[str, Any] = json.loads(entry.model_dump_json(exclude=_OF_FILES))
    return found


def _named(entry: TaskEntry) -> TaskEntry:
    """With the kind of task by name, also of what is older than those names."""
    return entry.model_copy(update={"kind": entry.task_kind.name, **entry.task_kind.older})


@contextlib.contextmanager
def _reading(where: Path) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise BundleError(f"{where}: its card is damaged: {in_words(error)}.") from error
