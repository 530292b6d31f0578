"""A sweep on disk: what its cells are, in ``sweep.json``; a folder and an outcome for each run, named by its hash.

    SWEEP/sweep.json             the plan, and its cells
    SWEEP/runs/<hash>/           the delta that `edgepeft train` writes, or its checkpoints
    SWEEP/runs/<hash>.json       how the run ended
    SWEEP/states/                hidden states that runs have in common, until all are over

A run's name is the hash of what ``train`` records as asked, so that equal runs are one, and none is computed twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from edgepeft.bundle.card import CARD_FILE, TENSORS_FILE, DeltaCard, read_card
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import BundleError, DataError, UsageError
from edgepeft.common.validation_messages import in_words
from edgepeft.data.training_loop.checkpoint import latest
from edgepeft.sweep.plan import Plan, placed

__all__ = ["SWEEP_FILE", "SWEEP_SCHEMA", "Cell", "Outcome", "Sweep", "name_of", "open_sweep"]

SWEEP_FILE, SWEEP_SCHEMA = "sweep.json", "edgepeft.sweep/1"
ANSWERS_FILE = "test.npz"  # beside the card: outputs and targets of the test rows, as the kind of task has them
CHECKPOINTS = "checkpoint"  # as the training names their folder
State = Literal["open", "begun", "done", "diverged", "dropped"]
_NAME_LENGTH = 16


@dataclass(frozen=True)
class Cell:
    """One run of the grid; ``options`` are those of ``edgepeft train``, with paths as ``recorded`` has them, ``rows``
    train, in so many ``steps`` at most and with an evaluation each ``interval``."""

    name: str
    backbone: str
    data: str
    size: str
    method: str
    rate: float
    seed: int
    rows: int
    steps: int
    interval: int
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.data} {self.method} at {self.rate:g}, {self.rows} rows, seed {self.seed}, {self.backbone}"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: ``score`` is of the evaluation rows where it was dropped, ``bytes`` are the delta's tensors'.

    ``seconds`` are those of its last process, which began at ``from_step``.
    """

    state: Literal["done", "diverged", "dropped"]
    seconds: float = 0.0
    from_step: int = 0
    bytes: int = 0
    parameters: int = 0
    steps: int = 0
    score: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Sweep:
    """The cells of a plan and where their runs lie; ``sources`` are digests of data and backbones by their names."""

    folder: Path
    plan: Plan
    cells: tuple[Cell, ...]
    sources: Mapping[str, str]

    def run(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        return self.folder / "runs" / cell.name

    def options(self, cell: Cell) -> dict[str, Any]:
        """The options of a cell's run, with the paths that its data and backbone have here.

        Raises:
            UsageError: a variable of the plan is not set.
        """
        return placed(cell.options, self.folder)

    @property
    def shared(self) -> Path:
        """The folder of hidden states that runs leave each other."""
        return self.folder / "states"

    def outcome(self, cell: Cell) -> Outcome | None:
        """How the run ended; None where it has not.  A card that is whole is a run that is done."""
        path = self.run(cell).with_suffix(".json")
        try:
            return TypeAdapter(Outcome).validate_json(path.read_bytes())
        except FileNotFoundError:
            return self.done(cell) if (self.run(cell) / CARD_FILE).is_file() else None
        except ValidationError as error:
            raise DataError(
                f"{path} does not say how a run ended: {in_words(error)}. Remove it to run again."
            ) from None

    def done(self, cell: Cell, seconds: float = 0.0, from_step: int = 0) -> Outcome:
        """The outcome of a run whose card is whole."""
        card, tensors = self.card(cell), self.run(cell) / TENSORS_FILE
        size = tensors.stat().st_size if tensors.is_file() else 0
        return Outcome("done", seconds, from_step, size, card.trainable_parameters, card.training["steps"])

    def end(self, cell: Cell, outcome: Outcome) -> None:
        """Write down how a run ended."""
        write_json(self.run(cell).with_suffix(".json"), dataclasses.asdict(outcome))

    def checkpoint(self, cell: Cell) -> Path | None:
        """Where a run that is not over stands."""
        return latest(self.run(cell) / CHECKPOINTS)

    def state(self, cell: Cell) -> State:
        """Whether a run is open, begun (there is a checkpoint), or how it ended."""
        found = self.outcome(cell)
        if found is not None:
            return found.state
        return "begun" if self.checkpoint(cell) else "open"

    def card(self, cell: Cell) -> DeltaCard:
        """The card of a run that is done.

        Raises:
            BundleError: it is damaged.
        """
        return read_card(self.run(cell))

    def answers(self, cell: Cell) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """(targets, outputs) of the test rows of a run that is done; None where they are no arrays."""
        path = self.run(cell) / ANSWERS_FILE
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as kept:
                return kept["targets"], kept["outputs"]
        except (OSError, ValueError, KeyError) as error:
            raise BundleError(f"{path} is damaged ({error}); remove {path.parent} to run it again.") from None

    def forget_tensors(self, cell: Cell) -> None:
        """Keep of a run that is done its card and answers alone."""
        for file in self.run(cell).iterdir():
            if file.name not in (CARD_FILE, ANSWERS_FILE) and file.is_file():
                file.unlink()

    def forget_checkpoints(self, cell: Cell) -> None:
        """Remove what a run that goes no further left."""
        shutil.rmtree(self.run(cell), ignore_errors=True)

    def forget_shared(self) -> None:
        """Remove what the runs that are over had in common."""
        shutil.rmtree(self.shared, ignore_errors=True)

    def write(self) -> None:
        """Write ``sweep.json``."""
        write_json(
            self.folder / SWEEP_FILE,
            {
                "schema": SWEEP_SCHEMA,
                "plan": self.plan.model_dump(mode="json", exclude_unset=True),
                "sources": dict(self.sources),
                "cells": [dataclasses.asdict(cell) for cell in self.cells],
            },
        )

    def require_sources(self, before: Mapping[str, str]) -> None:
        """See that data and backbones are those that earlier runs of this folder had.

        Raises:
            UsageError: one changed.
        """
        for name, digest in self.sources.items():
            if before.get(name, digest) != digest:
                raise UsageError(
                    f"{name} changed since runs of {self.folder} were computed (sha256 {before[name][:12]} then, "
                    f"{digest[:12]} now). Restore it, or give another --out."
                )


def name_of(asked: Mapping[str, Any]) -> str:
    """The name of a run, by what makes it what it is."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:_NAME_LENGTH]


def open_sweep(folder: Path) -> Sweep:
    """The sweep of a folder, as its runs are.

    Raises:
        UsageError: there is none.
        DataError: its ``sweep.json`` is damaged, or of another version.
    """
    path = folder / SWEEP_FILE
    try:
        document = json.loads(path.read_bytes())
        if document.get("schema") != SWEEP_SCHEMA:
            raise DataError(f"{path} has schema {document.get('schema')!r}; this version reads {SWEEP_SCHEMA}.")
        cells: Sequence[Cell] = TypeAdapter(list[Cell]).validate_python(document["cells"])
        return Sweep(folder, Plan.model_validate(document["plan"]), tuple(cells), document["sources"])
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} holds no sweep: it has no {SWEEP_FILE}. Make one with: edgepeft sweep.") from None
    except (OSError, ValueError, AttributeError, KeyError) as error:
        shown = in_words(error) if isinstance(error, ValidationError) else error
        raise DataError(f"{path} is damaged ({shown}); repeat edgepeft sweep, which writes it anew.") from None
