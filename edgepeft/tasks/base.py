"""What a kind of task is: how labels, losses, scores and answers of such tasks come about, in one class.

A kind is a file of this package with one subclass of ``TaskType``, found by its ``name``; ``--kind NAME`` asks for it,
and nothing else in edgepeft knows which kinds there are.  An object of the class is bound to a task: its labels, and
what was chosen for it on the evaluation rows.

Letters: B rows of a batch, n rows, C columns of the logits; K token rows of the row that has most, where a row is
read as several: logits are ``several.LOWEST`` then where a row has fewer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TokenBatch
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.common.registry import class_named, classes_of, names_of
from edgepeft.data.answers import Prediction
from edgepeft.data.labels import label_text
from edgepeft.data.rows import Columns, Row
from edgepeft.tasks._conformal import Calibration
from edgepeft.tasks._facts import Agreement, Facts, LossGraph, Metric, Values, same_best

_USUAL = "classification"


@dataclass(frozen=True)
class TaskType(Facts, Calibration, ABC):
    """Base of all kinds; ``labels`` are the names of the columns of the logits, where those have names.

    ``step`` is between labels that are numbers; ``chosen`` is what the evaluation rows were asked for (thresholds).
    """

    labels: tuple[str, ...] | None = None
    step: float | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)

    # What a card says, and what is said of it.

    @classmethod
    def begun(cls, hidden_size: int) -> Mapping[str, Any]:
        """What is ``chosen`` of a fresh task on such a backbone."""
        return {}

    def seen(self, rows: Sequence[Row]) -> Self:
        """This kind as rows of that form, which train or are scored, have it."""
        return self

    @classmethod
    def is_of(cls, labels: Sequence[str] | None, head_reads: str) -> bool:
        """Whether a card that names no kind, as all did once, is of this one."""
        return False

    @property
    def n_outputs(self) -> int:
        """Columns of the logits."""
        return len(self.labels or "1")

    def logits_shape(self, rows: int, length: int) -> tuple[int, ...]:
        """Of so many token rows of so many tokens."""
        return (rows, length, self.n_outputs) if self.per_token else (rows, self.n_outputs)

    @property
    def described(self) -> str:
        """In a cell of a table: "3 labels"."""
        return self.name

    @property
    def listed(self) -> str:
        """What there is to answer, after "labels"."""
        return ", ".join(self.labels or ())

    # Rows.

    @classmethod
    def label_text(cls, value: Any, where: str) -> str:
        """A column's value as the row's label; the text is canonical, so that equal labels are equal texts.

        Raises:
            DataError: it is none.
        """
        return label_text(value, where)

    @classmethod
    def labels_of(cls, rows: Sequence[Row]) -> tuple[str, ...] | None:
        """The labels that training rows have, sorted; None where there are no names.

        Raises:
            DataError: they cannot be learnt.
        """
        return None

    @classmethod
    def check_labels(cls, labels: Sequence[str]) -> None:
        """See that the columns of logits that were trained elsewhere can have these names.

        Raises:
            UsageError: they cannot.
        """
        return

    @classmethod
    def columns(cls, given: Columns) -> Columns:
        """What is read of its files' rows, by the names that are given."""
        return given._replace(named=cls.has_labels and given.step is None)

    def strange(self, row: Row) -> str | None:
        """A label of the row that is not among this task's; None where all are.

        Raises:
            DataError: what stands there is no label at all.
        """
        return None

    def check_batch(self, batch_size: int, rows: Sequence[Row]) -> None:
        """See that so many of these rows make a step.

        Raises:
            UsageError: too few.
        """
        return

    def strata(self, rows: Sequence[Row]) -> list[str]:
        """Rows of the same one are divided in proportion."""
        return [""] * len(rows)

    def expected(self, row: Row) -> Any:
        """The right answer as people see it, a plain value of JSON."""
        return row.label

    def names_in(self, row: Row) -> list[str]:
        """The labels that a row has; none where labels have no names."""
        found = self.expected(row)
        return [] if self.labels is None else [*map(str, found)] if isinstance(found, list) else [str(found)]

    @abstractmethod
    def targets(self, rows: Sequence[Row]) -> Values:
        """[n, ...] what the loss takes of rows that were checked."""

    def made_per_row(self, n: int) -> list[int] | None:
        """How many token rows each row is of ``n`` made ones, where only time matters; None where each is one, else
        two, and the last row has what is left."""
        if self.texts_taught < 2:
            return None
        return [2] * (n // 2 - 1) + [2 + n % 2] if n > 1 else [n]

    def encoded(self, rows: Sequence[Row], tokens: TokenBatch) -> Values:
        """As ``targets``, of rows that are tokenized so."""
        return self.targets(rows)

    @abstractmethod
    def made_targets(self, mask: NDArray[np.int64]) -> Values:
        """[B, ...] what stands for the targets of rows with this mask [B, S], where only time matters."""

    @classmethod
    def readable(cls, *, pairs: bool, text: str = "a") -> Any:
        """A row that stands for any, as callers give it: what is as long as ``text`` is that."""
        return (text, "a") if pairs else text

    @classmethod
    @abstractmethod
    def example(cls, labels: Sequence[str] | None) -> tuple[str, tuple[str, ...] | None]:
        """The label of a row that stands for any, and all labels: ``labels`` where they are known."""

    # Losses: the same three times.

    @abstractmethod
    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """[B] of each row."""

    @abstractmethod
    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        """The mean over the batch of PyTorch's tensors, by their methods; ``weights`` [labels] make it a weighted one,
        where rows have one label."""

    @abstractmethod
    def loss_graph(self, logits: str, labels: str) -> LossGraph:
        """As ONNX nodes on the values of these names; of a whole batch, the sum of ``logits`` times what ``slopes``
        gives for ``labels``."""

    def slopes(self, logits: NDArray[np.float32], targets: Values) -> tuple[float, NDArray[np.float64]]:
        """The loss of a whole batch, and its derivative by each logit.

        A step in ONNX Runtime computes the logits of all its parts first, and goes back from these (Gao et al., 2021,
        arXiv:2101.06983): what it takes of memory does not grow with the batch.
        """
        raise UsageError(f"{self.title} has its loss row by row.")

    def terms(self, targets: Values) -> Values:
        """[B] how many terms each row has in the loss: tokens, where it is one of tokens."""
        return np.ones(len(targets))

    @abstractmethod
    def ignorant_loss(self, targets: Values, words: int = 0) -> float:
        """What knowing nothing costs with these targets; ``words`` are those of a decoder."""

    # Scores.

    def score(self, metric: str, targets: Any, outputs: Any) -> float:
        """Of outputs [n, ...], as ``outputs`` gives them; what is not defined (a correlation with a constant) is 0."""
        if len(targets) != len(outputs) or not len(targets):
            raise ValueError(f"{len(targets)} labels and {len(outputs)} answers cannot be compared")
        value = self.metric_of(metric).score(self, targets, outputs)
        return value if math.isfinite(value) else 0.0

    def metric_or_default(self, metric: str | None) -> str:
        """The metric's name, after a check."""
        self.metric_of(metric or self.default_metric)
        return metric or self.default_metric

    def fitting(self, targets: Any) -> tuple[str, ...]:
        """The metrics that say most of rows with these targets, the first of them first."""
        return (self.metric_or_default(None),)

    def resampled(self, outputs: Any) -> Any:
        """What a bootstrap draws of in place of these outputs, where that is quicker: it has the same score."""
        return outputs

    def averaged(self, metric: str) -> str:
        """How a metric comes to one number."""
        return self.metric_of(metric).averaged

    def metric_of(self, name: str) -> Metric:
        """The metric of that name.

        Raises:
            UnknownName: there is none, of any kind.
            UsageError: it is one of another kind.
        """
        if name in self.metrics:
            return self.metrics[name]
        others = {metric for kind in kinds().values() for metric in kind.metrics} - {*self.metrics}
        if name.partition(":")[0] not in others:
            raise UnknownName("metric", name, self.metrics)
        raise UsageError(f"{name} is no metric of {self.title}; those are {', '.join(self.metrics)}.")

    @abstractmethod
    def outputs(self, logits: NDArray[Any]) -> Values:
        """[B, C] -> [B, ...] what is kept of a row's logits to be scored."""

    def with_chosen(self, targets: Values, outputs: Values) -> Self:
        """This kind with what these rows, the evaluation rows, are asked for."""
        return self

    def plain(self, outputs: Values) -> list[Any]:
        """Outputs as people see answers: plain values of JSON."""
        return outputs.tolist()

    def answered(self, rows: Sequence[Row], targets: Values, outputs: Values) -> list[Any]:
        """As ``plain``, where it takes the rows to say it."""
        return self.plain(outputs)

    def off(self, targets: Values, outputs: Values) -> Values:
        """[n] how far each answer is from the right one; McNemar's test asks whose is nearer."""
        raise UsageError(f"{self.title} has no baseline.")

    @abstractmethod
    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Where answers are wrong: ``by_class``, ``macro``, ``confusion``, or ``residuals``, or ``texts``."""

    # Baselines.

    def majority(self, targets: Values) -> Values:
        """The output, [] or [C], that is best for all of these rows alike."""
        raise UsageError(f"{self.title} has no majority.")

    def regressed(self, targets: Values) -> NDArray[np.float64]:
        """[n, C] what a linear head learns by least squares in place of logits."""
        raise UsageError(f"{self.title} has no linear head for a rival.")

    def frozen(self, states: Values) -> Values:
        """The outputs of [n, K, hidden size], of the bare backbone."""
        raise UsageError(f"{self.title} takes a head on the backbone's states.")

    def read_by_head(self, states: Sequence[Values], targets: Values) -> Values:
        """[n, d] that a linear head reads of each row's state [d]."""
        return np.stack(states)

    def of_rows(self, logits: Values, targets: Values) -> Values:
        """Logits as this kind has them, of what a linear head gives for ``read_by_head``."""
        return logits

    # Answers of a deployed task.

    @abstractmethod
    def predictions(
        self, task: str, logits: NDArray[np.float32], notes: Sequence[str], read: Sequence[Any] = ()
    ) -> list[Prediction]:
        """[n, C] and what speaks against each answer -> answers; ``read`` is what ``beside`` gives."""

    def judged(self, answers: Sequence[Any], rows: Sequence[Row]) -> tuple[Values, Values]:
        """(logits, targets) of answers to rows that were checked."""
        return np.array([answer.logits for answer in answers], np.float32), self.targets(rows)

    def beside(self, given: Sequence[Any], texts: Sequence[Text], tokens: TokenBatch) -> Sequence[Any]:
        """What ``predictions`` reads beside the logits: of rows as they are ``given``, whose token rows are texts."""
        return ()

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """How [n, C] stand to the reference's, which are held to that tolerance, or to none; where a row is several,
        [n, K, C], or [token rows, C] of which it is not known whose they are."""
        return same_best(reference, logits, tolerance)


@cache
def kinds() -> dict[str, type[TaskType]]:
    """Every kind by name."""
    return classes_of("edgepeft.tasks", TaskType, "name")  # type: ignore[type-abstract]


@cache
def _names() -> tuple[str, ...]:
    return names_of("edgepeft.tasks")


@cache
def kind_named(name: str) -> type[TaskType]:
    """The kind of that name."""
    found = class_named("edgepeft.tasks", TaskType, "name", name)  # type: ignore[type-abstract]
    if found is None:
        raise UnknownName("kind of task", name, _names())
    return found


def kind_asked(name: str | None, *, regression: bool = False, writes: bool = False) -> type[TaskType]:
    """What is asked for by ``--kind``, or by its short forms; else the kind of rows that have a text as their label."""
    short = "regression" if regression else None
    if writes:
        short = next(known for known, kind in kinds().items() if kind.writes)
    if None not in (name, short) and name != short:
        raise UsageError(f"--kind {name} is another kind of task than {short}, which is asked for too; leave one out.")
    return kind_named(name or short or _USUAL)


def stated(name: str | None, labels: Sequence[str] | None, head_reads: str, **bound: Any) -> TaskType:
    """The kind of a task by its card, which may be older than the names of kinds."""
    if name is None:
        found = next(kind for kind in kinds().values() if kind.is_of(labels, head_reads))
    elif name in _names():
        found = kind_named(name)
    else:
        raise ValueError(f"this version knows no kind of task {name!r}; it knows {', '.join(_names())}")
    if found.has_labels != bool(labels):
        raise ValueError(f"{found.title} has {'labels, and there are none' if found.has_labels else 'no labels'}")
    kind = found(tuple(labels) if labels else None, **bound)
    kind.require_sound_windows()
    return kind
