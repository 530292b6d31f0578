"""Cards: a delta's metadata in ``delta.json``; a task graph's in its ``metadata_props``, as ``edgepeft.card``.

The manifest's entry repeats the graph's card, so that listing tasks needs no graph.  The two are compared wherever both
are at hand: an altered manifest would give other answers than those that were verified.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from edgepeft.backbones.pooling import SKIP_PROMPT
from edgepeft.bundle.manifest import TaskCard, TaskEntry
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.messages import mistakes_text
from edgepeft.common.resources import bytes_at
from edgepeft.tasks.base import TaskType, kind_from_card

ERRORS = "errors"  # of a card's metrics: by class, with rows of the data named; it stays in the delta's folder
CARD_FILE, TENSORS_FILE = "delta.json", "delta.safetensors"
CHECKPOINTS = "checkpoint"  # a folder, there until the training ends
DELTA_FORMAT: Literal["edgepeft.delta/1"] = "edgepeft.delta/1"
EVALUATION_FILE = "evaluation.safetensors"  # logits and targets of the evaluation rows, by which guarantees are made


class BackboneCard(BaseModel):
    """Which backbone a delta belongs to; ``sha256`` is of its weights file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    family: str
    model_type: str
    sha256: str


class DeltaCard(TaskCard):
    """The content of ``delta.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["edgepeft.delta/1"] = DELTA_FORMAT
    task: str
    hyperparameters: dict[str, Any]
    head_dropout: float = 0.1
    backbone: BackboneCard
    trainable_parameters: int = 0
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def skipped_tokens(self) -> int:
        """Tokens at a row's start that the head leaves out."""
        return self.prompt_length if self.head_reads in SKIP_PROMPT else 0


def read_card(folder: Path) -> DeltaCard:
    """The card of a delta's folder."""
    path = folder / CARD_FILE
    try:
        return DeltaCard.model_validate_json(bytes_at(path))
    except (FileNotFoundError, NotADirectoryError):
        reason = f"has no {CARD_FILE}" if folder.exists() else "is not there"
        raise UsageError(f"{folder} is not a delta: it {reason}. Make one with: edgepeft train.") from None
    except OSError as error:
        raise BundleError(
            f"{path} cannot be read ({error.strerror}); let this user read it, or train it again."
        ) from error
    except ValidationError as error:
        raise BundleError(f"{path} is not a delta card that this version can read: {mistakes_text(error)}.") from error


# What the entry has of its files, this machine and the task's past, and not of the card.
_OF_FILES = TaskEntry.model_fields.keys() - TaskCard.model_fields.keys() - {"regression", "trainable_parameters"}


def card_of(facts: Mapping[str, str], where: Path) -> dict[str, Any]:
    """The card in a graph's metadata."""
    with _reading(where):
        return TypeAdapter(dict[str, Any]).validate_json(facts.get("edgepeft.card", "{}"))


def entry_of(card: Mapping[str, Any], where: Path, of_files: Mapping[str, Any]) -> TaskEntry:
    """The entry that a card makes, with what there is to say of its files."""
    with _reading(where):
        return _with_kind_name(TaskEntry.model_validate({**card, **of_files}))


def kind_of(card: Mapping[str, Any], where: Path) -> TaskType:
    """The kind of task that a card states."""
    with _reading(where):
        chosen = card.get("chosen") or {}
        return kind_from_card(card.get("kind"), card.get("labels"), card.get("head_reads", ""), chosen=chosen)


def require_agreement(card: Mapping[str, Any], entry: TaskEntry, where: Path) -> None:
    """See that an entry says what the card says."""
    made = entry_of(card, where, {name: getattr(entry, name) for name in _OF_FILES})
    said, meant = _plain(_with_kind_name(entry)), _plain(made)
    if odd := next((name for name in meant if said[name] != meant[name]), None):
        raise BundleError(
            f"{where}: its entry says {odd} {json.dumps(said[odd]):.200}, and the graph itself "
            f"{json.dumps(meant[odd]):.200}. One of them was altered; do not use it, or add the task anew."
        )


def _plain(entry: TaskEntry) -> dict[str, Any]:
    """As JSON has it, where a number that is none is null."""
    return json.loads(entry.model_dump_json(exclude=_OF_FILES))


def _with_kind_name(entry: TaskEntry) -> TaskEntry:
    """With the kind of task by name, also of what is older than those names."""
    return entry.model_copy(update={"kind": entry.task_kind.name, **entry.task_kind.older})


@contextlib.contextmanager
def _reading(where: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        said = mistakes_text(error) if isinstance(error, ValidationError) else error
        raise BundleError(f"{where}: its card is damaged: {said}.") from error
