"""The card of a delta: what its tensors are, as ``delta.json`` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from edgepeft.backbones.base import Pooling
from edgepeft.errors import BundleError, UsageError
from edgepeft.mistakes import in_words

__all__ = ["CARD_FILE", "ERRORS", "TENSORS_FILE", "BackboneCard", "DeltaCard", "read_card"]

ERRORS = "errors"  # of a card's metrics: by class, with rows of the data named; it stays in the delta's folder
CARD_FILE, TENSORS_FILE = "delta.json", "delta.safetensors"
# Of a row with a prompt in front, the first position is the prompt's; the other two leave prompts out.
READS = {
    "first_token": Pooling.FIRST,
    "first_position": Pooling.FIRST,
    "mean": Pooling.MEAN,
    "labels": Pooling.LABELS,
}


class BackboneCard(BaseModel):
    """Which backbone a delta belongs to; ``sha256`` is of its weights file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    family: str
    model_type: str
    sha256: str


class DeltaCard(BaseModel):
    """The content of ``delta.json``.  ``labels`` is None for regression."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["edgepeft.delta/1"] = "edgepeft.delta/1"
    task: str
    level: Literal["sentence"] = "sentence"
    method: str
    hyperparameters: dict[str, Any]
    labels: tuple[str, ...] | None
    pairs: bool = False
    head: str
    head_reads: Literal["first_token", "first_position", "mean", "labels"]
    head_dropout: float = 0.1
    max_length: int
    prompt_length: int = 0
    backbone: BackboneCard
    trainable_parameters: int = 0
    metrics: dict[str, Any] = {}
    training: dict[str, Any] = {}
    versions: dict[str, str] = {}

    @property
    def n_outputs(self) -> int:
        """Logits of a row: one per label, one for regression."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def pooling(self) -> Pooling:
        """The pooled value that the head reads."""
        return READS[self.head_reads]

    @property
    def unpooled(self) -> int:
        """Tokens at a row's start that the head's pooled value leaves out."""
        return 0 if self.head_reads in ("first_position", "labels") else self.prompt_length


def read_card(folder: Path) -> DeltaCard:
    """The card of a delta's folder.

    Raises:
        UsageError: no such folder, or it holds no delta.
        BundleError: the card is damaged or of an unknown version.
    """
    path = folder / CARD_FILE
    try:
        return DeltaCard.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        reason = f"has no {CARD_FILE}" if folder.exists() else "is not there"
        raise UsageError(f"{folder} is not a delta: it {reason}. Make one with: edgepeft train.") from None
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({error.strerror}); let this user read the delta.") from error
    except ValidationError as error:
        raise BundleError(f"{path} is not a delta card that this version can read: {in_words(error)}.") from error
