"""A sweep on disk: what its cells are, in ``sweep.json``; a folder and an outcome for each run, named by its hash.

    SWEEP/sweep.json             the plan, and its cells
    SWEEP/runs/<hash>/           the delta that `edgepeft train` writes, or its checkpoints
    SWEEP/runs/<hash>.json       how the run ended
    SWEEP/results.jsonl          both in one line a run, instead of folders, once the sweep was folded; or, where
                                 somebody compressed it, results.jsonl.gz
    SWEEP/states/                hidden states that runs have in common, until all are over

A run's name is the hash of what ``train`` records as asked, so that equal runs are one, and none is computed twice.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from edgepeft.bundle.card import CARD_FILE, CHECKPOINTS, EVALUATION_FILE, TENSORS_FILE, DeltaCard, read_card
from edgepeft.common.atomic import drop_unfinished, write_atomically, write_json
from edgepeft.common.errors import BundleError, DataError, UsageError
from edgepeft.common.messages import mistakes_text
from edgepeft.common.own_folder import own_folder
from edgepeft.common.resources import json_at
from edgepeft.data.training_loop.checkpoint import latest
from edgepeft.sweep.plan import Plan, placed

SWEEP_FILE, SWEEP_SCHEMA = "sweep.json", "edgepeft.sweep/1"
RESULTS_FILE = "results.jsonl"
ANSWERS_FILE = "test.npz"  # beside the card: outputs and targets of the test rows, as the kind of task has them
RUNS = "runs"
State = Literal["open", "begun", "done", "diverged", "dropped"]
_NAME_LENGTH = 16
_SWEEP_BYTES = 64 << 20  # of tens of thousands of cells
RunName = Annotated[str, Field(pattern=rf"^[0-9a-f]{{{_NAME_LENGTH}}}$")]  # of its folder, too
_SCORES = ("metric", "eval", "test", "n_train", "n_eval", "n_test")  # of a card's metrics, what tables need


@dataclass(frozen=True)
class Cell:
    """One run of the grid; ``options`` are those of ``edgepeft train``, with paths as ``recorded`` has them, ``rows``
    train, in so many ``steps`` at most and with an evaluation each ``interval``."""

    name: RunName
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
    """How a run ended."""

    state: Literal["done", "diverged", "dropped"]
    seconds: float = 0.0  # of its last process, which began at ``from_step``
    from_step: int = 0
    bytes: int = 0  # of the delta's tensors
    parameters: int = 0
    steps: int = 0
    score: float | None = None  # of the evaluation rows, where it was dropped
    reason: str | None = None


@dataclass(frozen=True)
class Result:
    """A line of ``results.jsonl``: a run that is over; ``data`` to ``seed`` are for others, we have the cell."""

    run: RunName
    data: str
    method: str
    rate: float
    rows: int
    seed: int
    outcome: Outcome
    card: DeltaCard | None = None  # without what no table needs: versions, errors by row and so on
    answers: str | None = None  # the bytes of an ``.npz`` like ``ANSWERS_FILE``, by zlib and base64


@dataclass(frozen=True)
class Sweep:
    """The cells of a plan and where their runs lie; ``sources`` are digests of data and backbones by their names."""

    folder: Path
    plan: Plan
    cells: tuple[Cell, ...]
    sources: Mapping[str, str]

    def run(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        return self.folder / RUNS / cell.name

    def options(self, cell: Cell) -> dict[str, Any]:
        """The options of a cell's run, with the paths that its data and backbone have here."""
        return placed(cell.options, self.folder)

    @property
    def _results_file(self) -> Path:
        # The plain file is the one that counts where both are there.
        path, compressed = self.folder / RESULTS_FILE, self.folder / f"{RESULTS_FILE}.gz"
        return compressed if compressed.is_file() and not path.is_file() else path

    @cached_property
    def results(self) -> Mapping[str, Result]:
        """The lines of ``results.jsonl`` by their runs' names; none where the sweep was not folded."""
        path, found, reader = self._results_file, dict[str, Result](), TypeAdapter(Result)
        written = path.read_bytes() if path.is_file() else b""
        if path.suffix == ".gz":
            try:
                written = gzip.decompress(written)
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"{path} is damaged ({error}); restore it, or remove it to run all again.") from None
        for number, line in enumerate(written.splitlines(), 1):
            try:
                result = reader.validate_json(line)
            except ValidationError as error:
                wrong = f"{path}, line {number} is damaged ({mistakes_text(error)})"
                raise DataError(f"{wrong}; remove the line to run it again.") from None
            found[result.run] = result
        return found

    @property
    def shared(self) -> Path:
        """The folder of hidden states that runs leave each other."""
        return self.folder / "states"

    def n_over(self) -> int:
        """How many runs have ended."""
        return sum(self.outcome(cell) is not None for cell in self.cells)

    def outcome(self, cell: Cell) -> Outcome | None:
        """How the run ended; None where it has not, or its card is gone.  A card and the answers, which come later, are
        one that is done."""
        if cell.name in self.results:
            return self.results[cell.name].outcome
        path = self.run(cell).with_suffix(".json")
        try:
            found: Outcome = TypeAdapter(Outcome).validate_json(path.read_bytes())
            return None if found.state == "done" and not (self.run(cell) / CARD_FILE).exists() else found
        except FileNotFoundError:
            whole = all((self.run(cell) / name).is_file() for name in (CARD_FILE, ANSWERS_FILE))
            return self.done(cell) if whole else None
        except ValidationError as error:
            raise DataError(
                f"{path} does not say how a run ended: {mistakes_text(error)}. Remove it to run again."
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
        """The card of a run that is done."""
        folded = self.results.get(cell.name)
        return folded.card if folded and folded.card else read_card(self.run(cell))

    def answers(self, cell: Cell) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """(targets, outputs) of the test rows of a run that is done; None where they are no arrays."""
        folded, path = self.results.get(cell.name), self.run(cell) / ANSWERS_FILE
        if folded.answers is None if folded else not path.is_file():
            return None
        try:
            packed = zlib.decompress(base64.b64decode(folded.answers or "")) if folded else path.read_bytes()
            with np.load(io.BytesIO(packed), allow_pickle=False) as kept:
                return kept["targets"], kept["outputs"]
        except (OSError, ValueError, KeyError, zlib.error) as error:
            what, remove = f"{path} is damaged", f"{path.parent} to run it again"
            if folded:
                what, remove = f"{self._results_file}: the answers of {cell.name} are damaged", "its line"
            raise BundleError(f"{what} ({error}); remove {remove}.") from None

    def folded(self) -> Sweep:
        """Leave of each run that is over a line of ``results.jsonl`` alone; tensors, whole cards and folders go.

        Lines of runs that the plan has no longer stay.  The file is whole before the first folder goes.
        """
        lines = {**self.results, **{each.run: each for cell in self.cells if (each := self._result(cell))}}
        plain = (TypeAdapter(Result).dump_python(each, mode="json", exclude_defaults=True) for each in lines.values())
        written = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in plain).encode(errors="replace")
        path = self._results_file
        write_atomically(path, gzip.compress(written, mtime=0) if path.suffix == ".gz" else written)
        with contextlib.suppress(FileNotFoundError), own_folder(self.folder, RUNS) as runs:
            for name in lines:
                shutil.rmtree(runs / name, ignore_errors=True)
                (runs / f"{name}.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # runs that are not over
            (self.folder / RUNS).rmdir()
        return dataclasses.replace(self)  # which reads the new lines

    def _result(self, cell: Cell) -> Result | None:
        outcome = self.outcome(cell)
        if outcome is None or cell.name in self.results:
            return self.results.get(cell.name)
        run = (cell.name, cell.data, cell.method, cell.rate, cell.rows, cell.seed)
        if outcome.state != "done":
            return Result(*run, outcome)
        packed = None
        if (answers := self.answers(cell)) is not None:
            file = io.BytesIO()
            np.savez(file, allow_pickle=False, targets=answers[0], outputs=answers[1])
            packed = base64.b64encode(zlib.compress(file.getvalue(), 9)).decode()
        card = self.card(cell)
        metrics = {name: card.metrics[name] for name in _SCORES if name in card.metrics}
        baselines = card.metrics.get("baselines", {})
        metrics["baselines"] = {name: {"test": found["test"]} for name, found in baselines.items()}
        chosen = {name: value for name, value in card.chosen.items() if name != "ece"}
        short = {"metrics": metrics, "chosen": chosen, "training": {}, "versions": {}}  # without what no table needs
        return Result(*run, outcome, card.model_copy(update=short), packed)

    def forget_tensors(self, cell: Cell) -> None:
        """Keep of a run that is done its card and answers alone."""
        with own_folder(self.folder, RUNS, cell.name) as run:
            for name in (TENSORS_FILE, EVALUATION_FILE):
                (run / name).unlink(missing_ok=True)

    def forget_checkpoints(self, cell: Cell) -> None:
        """Remove what a run that goes no further left."""
        with contextlib.suppress(FileNotFoundError), own_folder(self.folder, RUNS) as runs:
            shutil.rmtree(runs / cell.name, ignore_errors=True)

    def forget_shared(self) -> None:
        """Remove what the runs that are over had in common, and what killed ones left."""
        shutil.rmtree(self.shared, ignore_errors=True)  # which stops at a link
        drop_unfinished(self.folder, SWEEP_FILE, self._results_file.name)
        with contextlib.suppress(FileNotFoundError), own_folder(self.folder, RUNS) as runs:
            drop_unfinished(runs)
            for cell in self.cells:
                drop_unfinished(runs / cell.name)
                shutil.rmtree(runs / f".{cell.name}", ignore_errors=True)  # where its lock was

    def write(self) -> None:
        """Write ``sweep.json``, a cell a line: there are hundreds."""
        head = {
            "schema": SWEEP_SCHEMA,
            "plan": self.plan.model_dump(mode="json", exclude_unset=True),
            "sources": dict(self.sources),
        }
        start = json.dumps(head, indent=2, ensure_ascii=False).removesuffix("\n}")
        cells = ",\n".join(f"    {json.dumps(dataclasses.asdict(cell), ensure_ascii=False)}" for cell in self.cells)
        text = f'{start},\n  "cells": [\n{cells}\n  ]\n}}\n'
        write_atomically(self.folder / SWEEP_FILE, text.encode(errors="replace"))


def name_of(asked: Mapping[str, Any]) -> str:
    """The name of a run, by what makes it what it is."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:_NAME_LENGTH]


def open_sweep(folder: Path) -> Sweep:
    """The sweep of a folder, as its runs are."""
    path = folder / SWEEP_FILE
    try:
        document = json_at(path, _SWEEP_BYTES, names_files=True)
        if document.get("schema") != SWEEP_SCHEMA:
            raise DataError(f"{path} has schema {document.get('schema')!r}; this version reads {SWEEP_SCHEMA}.")
        cells: Sequence[Cell] = TypeAdapter(list[Cell]).validate_python(document["cells"])
        return Sweep(folder, Plan.model_validate(document["plan"]), tuple(cells), document["sources"])
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} holds no sweep: it has no {SWEEP_FILE}. Make one with: edgepeft sweep.") from None
    except (OSError, ValueError, AttributeError, KeyError) as error:
        shown = mistakes_text(error) if isinstance(error, ValidationError) else getattr(error, "strerror", error)
        raise DataError(
            f"{path} is damaged ({shown}); remove it, and repeat edgepeft sweep, which writes it anew."
        ) from None
