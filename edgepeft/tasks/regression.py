"""Regression: a number for each row, by the squared error; scored as GLUE's STS-B is, by correlations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError
from edgepeft.data.columns import number_of
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._losses import CLOSE, Agreement, GraphWriter, LossGraph, Metric, Values
from edgepeft.tasks.base import TaskType

_MOVED = 0.25  # of the standard deviation of a check's values


def _pearson(labels: Values, answers: Values) -> float:
    if len(np.unique(labels)) < 2 or len(np.unique(answers)) < 2:
        return 0.0  # not defined
    return float(np.corrcoef(labels.astype(np.float64), answers.astype(np.float64))[0, 1])


def _spearman(labels: Values, answers: Values) -> float:
    return _pearson(ranks(labels), ranks(answers))


def ranks(values: Values) -> Values:
    """Rank values from 1; equal ones share the mean of their ranks."""
    _, which, counts = np.unique(values.astype(np.float64), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


CORRELATIONS = {
    "pearson": Metric(lambda _, labels, answers: _pearson(labels, answers)),
    "spearman": Metric(lambda _, labels, answers: _spearman(labels, answers)),
    "pearson_spearman": Metric(lambda _, a, b: (_pearson(a, b) + _spearman(a, b)) / 2),
}
"""Name -> correlation of numbers [n] and answers [n]."""


@dataclass(frozen=True)
class Regression(TaskType):
    """loss = (logit - number)^2."""

    name = "regression"
    title = "a regression"
    answers = "number"
    metrics = CORRELATIONS
    default_metric = "pearson_spearman"
    telling = ("spearman", "pearson")
    compared = "values"
    problem_type = "regression"
    possible = "numbers"
    older: ClassVar[Mapping[str, Any]] = {"regression": True}

    @classmethod
    def is_of(cls, labels: Sequence[str] | None, head_reads: str) -> bool:
        return labels is None and head_reads != "text"

    @classmethod
    def labels_of(cls, rows: Sequence[Row]) -> None:
        """Refuse rows that teach nothing; there are no labels."""
        if len({cls().expected(row) for row in rows}) < 2:
            raise DataError(f"{rows[0].file}: every label is {rows[0].label}; a regression needs numbers that differ.")

    def expected(self, row: Row) -> float:
        if (number := number_of(row.label)) is None:
            remedy = "; write it with a point, without commas" if "," in (row.label or "") else ""
            raise DataError(f"{row.where}: the label of a regression is a finite number; found {row.label!r}{remedy}.")
        return number

    def targets(self, rows: Sequence[Row]) -> Values:
        return np.array([self.expected(row) for row in rows], np.float32)

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        return np.arange(len(mask), dtype=np.float32)

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        return np.square(logits[:, 0].astype(np.float64) - targets)

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        return (logits.squeeze(-1) - targets).square().mean()

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Read (B, 1) and (B)."""
        off = graph.op("Sub", graph.op("Squeeze", logits, graph.ints(-1)), labels)
        return LossGraph(graph.op("Mul", off, off), integers=False)

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        """Return the loss of the mean in place of every number."""
        return float(targets.var(dtype=np.float64))

    def outputs(self, logits: NDArray[Any]) -> Values:
        return logits[:, 0]

    def row_errors(self, targets: Values, outputs: Values) -> Values:
        return np.abs(outputs - targets)

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Return ``residuals``, of the answers less the labels."""
        off = np.asarray(outputs, np.float64) - np.asarray(targets, np.float64)
        size = np.abs(off)
        figures = {"mean": off.mean(), "mean_absolute": size.mean(), "root_mean_square": np.sqrt((off**2).mean())}
        figures |= {f"absolute_p{q}": np.percentile(size, q) for q in (50, 90, 100)}
        return {"residuals": {name: float(value) for name, value in figures.items()}}

    def majority(self, targets: Values) -> Values:
        return np.asarray(targets.mean())

    def least_squares_targets(self, targets: Values) -> NDArray[np.float64]:
        return targets[:, None].astype(np.float64)

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        values = logits[:, 0].tolist()
        return [Prediction(task, None, value, {}, (value,), note) for value, note in zip(values, notes, strict=True)]

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """Agree within the tolerance.  Without one, a row has changed that moved by more than a quarter of the values'
        standard deviation: noise that moves 2 % of rows so far costs a correlation half a point."""
        if tolerance is not None:
            return Agreement(1.0, 0)
        near = np.abs(reference - logits) <= max(_MOVED * float(reference.std()), CLOSE)
        return Agreement(float(near.mean()), 0)
