"""Scenarios are data: ``bench/scenarios/<name>.toml`` defines how work arrives and how long to measure.

Names are those of MLPerf Inference where it has the scenario (``mlperf`` names it).
"""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgepeft.common.errors import DataError, UnknownName
from edgepeft.common.resources import data_folder
from edgepeft.common.validation_messages import in_words

__all__ = ["SampleKind", "Scenario", "load_scenario", "scenario_names"]


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
    max_seconds: float = Field(gt=0)

    @model_validator(mode="after")
    def _in_order(self) -> Scenario:
        if self.min_rounds > self.rounds or self.warmup_rounds > self.max_warmup_rounds:
            raise ValueError("the least number of rounds is above the most")
        return self


def scenario_names() -> list[str]:
    """The shipped scenarios."""
    return sorted(path.stem for path in data_folder("bench/scenarios").glob("*.toml"))


def load_scenario(name: str) -> Scenario:
    """Read a shipped scenario by its name, or another by its file.

    Raises:
        UnknownName: there is none.
        DataError: a file that is no scenario.
    """
    path = Path(name)
    if path.suffix != ".toml" or not path.is_file():
        if name not in scenario_names():
            raise UnknownName("scenario", name, scenario_names())
        path = data_folder("bench/scenarios") / f"{name}.toml"
    try:
        return Scenario.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise DataError(f"{path}: {in_words(error, 'the scenario')}.") from error
    except ValueError as error:  # of TOML and of UTF-8
        raise DataError(f"{path} is not valid TOML: {error}.") from error
