"""Results of ``edgepeft eval``: what each task scored, class by class, and the rows that it did worst."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field

from edgepeft.bench.report.calibration import Calibration, reliability
from edgepeft.bench.report.pictures import Section
from edgepeft.bench.result.parts import Part
from edgepeft.data.by_class import class_rows, figure_rows, in_words

__all__ = ["EVAL_SCHEMA", "Errors", "EvalSummary", "evaluations"]

EVAL_SCHEMA = "edgepeft.eval/1"


class ClassFigures(Part):
    """Of one label; ``support`` is how many rows have it."""

    precision: float
    recall: float
    f1: float
    support: int


class WorstRow(Part):
    """A row, where it stands, and its loss."""

    row: str
    text: str = ""  # a delta's card has none
    label: str | float | list[str]
    answer: str | float | list[str]
    loss: float


class Errors(Part):
    """``by_class`` and ``confusion`` (label -> answer -> rows), or ``residuals`` of numbers, or scores of ``texts``;
    ``calibration`` of probabilities."""

    by_class: dict[str, ClassFigures] = Field(default_factory=dict)
    confusion: dict[str, dict[str, int]] = Field(default_factory=dict)
    residuals: dict[str, float] | None = None
    texts: dict[str, float] | None = None
    figures: dict[str, float] | None = None
    calibration: Calibration | None = None
    worst: list[WorstRow] = Field(default_factory=list)  # as the card's own validator hands them on


class EvalSummary(Errors):
    """The whole document."""

    schema_name: Literal["edgepeft.eval/1"] = Field(default="edgepeft.eval/1", alias="schema")
    task: str
    metric: str
    averaged: str
    score: float
    rows: int


def evaluations(documents: Sequence[tuple[str, EvalSummary]]) -> Iterator[Section]:
    """Two tables for each document."""
    for number, (name, found) in enumerate(documents):
        text = f"{name}. {found.metric} {found.score:.4f} on {found.rows} rows ({found.averaged})."
        header, rows = class_rows(found.model_dump(exclude_none=True))
        title = "errors by class" if found.by_class or found.figures is None else "scores"
        yield Section(f"classes-{number}", f"{found.task}: {title}", text, tuple(header), rows)
        if found.figures is not None and found.by_class:
            columns_of, cells = figure_rows(found.figures)
            yield Section(f"figures-{number}", f"{found.task}: scores", f"{name}.", tuple(columns_of), cells)
        if found.calibration is not None:
            yield from reliability(f"reliability-{number}", name, found.task, found.calibration)
        texts = any(each.text for each in found.worst)
        columns = [(e.row, *([e.text] if texts else []), in_words(e.label), in_words(e.answer)) for e in found.worst]
        listed = [(*cells, f"{each.loss:.3f}") for cells, each in zip(columns, found.worst, strict=True)]
        if listed:
            head = ("row", *(["text"] if texts else []), "label", "answer", "loss")
            yield Section(f"worst-{number}", f"{found.task}: worst rows", f"{name}. By their loss.", head, listed)
