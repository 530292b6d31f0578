"""How work arrives: scenarios, which are data in ``bench/scenarios/<name>.toml``, and the lengths of their texts.

Scenarios' names are those of MLPerf Inference where it has the scenario (``mlperf`` names it).  Sources of lengths:
``--length N`` (every row full), a file (one integer a line, or TOML with ``lengths`` in arrival order or a
``[histogram]`` of length -> count), or a shipped list of real texts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgepeft.common.errors import DataError, UnknownName, UsageError, look_up
from edgepeft.common.messages import mistakes_text
from edgepeft.common.resources import data_folder, read_toml

SCENARIOS, LENGTHS = "bench/scenarios", "bench/scenarios/lengths"  # of what comes with edgepeft
_MAX_ROWS = 1_000_000  # a longer list is a mistake, and would be sent to every worker
_MAX_TOKENS = 1 << 20  # of a batch


class SampleKind(StrEnum):
    """What one sample is."""

    BATCHES = "batches"  # one batch to one task, or one step of training
    MULTI_STREAM = "multi-stream"  # a query of one text for each of several tasks
    MIXED_TASKS = "mixed-tasks"  # a batch with an equal block of rows for each of several tasks
    TASK_SWITCH = "task-switch"  # one text to a task that is not the one asked before
    COLD_START = "cold-start"  # a new process to its first answer


class Scenario(BaseModel):
    """The defaults that the command line's options replace.

    Measuring ends after ``rounds``, or after ``min_rounds`` as soon as every unit's median is known within
    ``precision`` (half the 95 % interval, as a share), or when ``max_seconds`` are over.  Warming up takes
    ``warmup_rounds``, then goes on until steps are steady, to ``max_warmup_rounds``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    kind: SampleKind = SampleKind.BATCHES
    mlperf: str | None = None
    workloads: tuple[Literal["infer", "finetune"], ...] = ("infer", "finetune")
    order: Literal["arrival", "sorted"] = "arrival"  # how texts come into batches
    batch_size: int = Field(ge=1)
    sequence_length: int = Field(ge=1)
    lengths: str | None = None
    tasks: int = Field(default=8, ge=2)
    warmup_rounds: int = Field(ge=1)
    max_warmup_rounds: int = Field(default=10, ge=1)
    min_rounds: int = Field(ge=1)
    rounds: int = Field(ge=1)
    precision: float = Field(gt=0, lt=1)
    max_seconds: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _in_order(self) -> Scenario:
        if self.min_rounds > self.rounds or self.warmup_rounds > self.max_warmup_rounds:
            raise ValueError("the least number of rounds is above the most")
        return self


def shipped(folder: str) -> dict[str, Path]:
    """The files of ``SCENARIOS`` or ``LENGTHS`` that come with edgepeft, by name."""
    return {path.stem: path for path in sorted(data_folder(folder).glob("*.toml"))}


def load_scenario(name: str) -> Scenario:
    """Read a shipped scenario by its name, or another by its file."""
    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        path = look_up("scenario", name, shipped(SCENARIOS))
    try:
        return Scenario.model_validate(read_toml(path))
    except ValidationError as error:
        raise DataError(f"{path}: {mistakes_text(error, 'the scenario')}.") from error


@dataclass(frozen=True)
class Lengths:
    """Token counts of texts in arrival order, and a description of where they come from."""

    values: tuple[int, ...]
    source: str
    described: str

    @property
    def mean(self) -> float:
        """Mean tokens of a text."""
        return sum(self.values) / len(self.values)

    @property
    def uniform(self) -> bool:
        """Whether every text is equally long."""
        return len(set(self.values)) == 1

    def clamped(self, max_length: int) -> Lengths:
        """Cut longer texts to ``max_length``, as ``edgepeft run`` would."""
        return Lengths(tuple(min(n, max_length) for n in self.values), self.source, self.described)


def full_length(length: int, batch_size: int) -> Lengths:
    """Lengths of one batch of rows that are all ``length`` tokens long."""
    if length * batch_size > _MAX_TOKENS:
        most = f"a batch has at most {_MAX_TOKENS:,} tokens"
        raise UsageError(f"--batch-size {batch_size}: of {length} tokens each that is too much; {most}.")
    return Lengths((length,) * batch_size, "full", f"every row {length} tokens, no padding")


def load_lengths(name_or_file: str, *, seed: int = 0) -> Lengths:
    """Read lengths from a shipped list, by name, or from a file."""
    if name_or_file in (known := shipped(LENGTHS)):
        return _from_toml(known[name_or_file], name_or_file, seed)
    path = Path(name_or_file)
    if not path.is_file():
        raise UnknownName("file or shipped list of lengths", name_or_file, known)
    if path.suffix == ".toml":
        return _from_toml(path, path.name, seed)
    try:
        values = _checked(path.read_text(encoding="utf-8").split(), path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text ({error.reason}); one integer a line or TOML is read.") from error
    return Lengths(values, path.name, f"{len(values)} lengths of {path.name}, in its order")


def _from_toml(path: Path, source: str, seed: int) -> Lengths:
    document = read_toml(path)
    if "lengths" in document:
        values = _checked(document["lengths"], path)
        facts = [str(document[key]) for key in ("rows", "tokenizer") if key in document]
        return Lengths(values, source, "; ".join([str(document.get("title", path.name)), *facts]))
    if "histogram" in document:
        histogram = document["histogram"]
        if not isinstance(histogram, Mapping):
            raise DataError(f"{path}: histogram must be a table of length = count.")
        counts = _checked(histogram.values(), path)
        if sum(counts) > _MAX_ROWS:
            raise DataError(f"{path} asks for {sum(counts)} rows; at most {_MAX_ROWS} are taken.")
        rows = [n for n, count in zip(_checked(histogram, path), counts, strict=True) for _ in range(count)]
        random.Random(seed).shuffle(rows)
        return Lengths(tuple(rows), source, f"histogram of {path.name}, {len(rows)} rows, shuffled by the seed")
    raise DataError(f"{path} has neither 'lengths = [...]' nor a [histogram]; found {sorted(document)}.")


def _checked(values: Any, path: Path) -> tuple[int, ...]:
    """Positive integers, at least one of them."""
    try:
        lengths = tuple(int(str(value)) for value in values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: lengths must be positive integers ({error}).") from error
    if not lengths or min(lengths) < 1 or len(lengths) > _MAX_ROWS:
        raise DataError(f"{path}: 1 to {_MAX_ROWS} lengths, each at least 1, are needed.")
    return lengths
