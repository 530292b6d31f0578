"""A kind of task in one class: its labels, losses and scores; and what it answers to a row.

A kind is a file of this package with one subclass of ``TaskType``, found by its ``name``; ``--kind NAME`` asks for it,
and nothing else in edgepeft knows which kinds there are.  An object of the class is bound to a task: its labels, and
what was chosen for it on the evaluation rows.

Two parts of the class stand apart: ``_reading`` (rows, and texts that are too long), ``_conformal`` (probabilities).

Letters: B rows of a batch, n rows, C columns of the logits; K token rows of the row that has most, where a row is
read as several: logits are ``row_grouping.LOWEST`` then where a row has fewer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TokenBatch
from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.common.registry import class_named, classes_of, names_of
from edgepeft.data.columns import Columns, label_text, one_of
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._conformal import Calibration
from edgepeft.tasks._losses import Agreement, GraphWriter, LossGraph, Metric, Values, same_best


@dataclass(frozen=True)
class TaskType(Calibration, ABC):
    """Base of all kinds; ``labels`` are the names of the columns of the logits, where those have names.

    ``step`` is between labels that are numbers; ``chosen`` is what the evaluation rows were asked for (thresholds).
    """

    labels: tuple[str, ...] | None = None
    step: float | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)

    # Facts.  A kind sets those that have no value here; those of how it reads rows are in ``Reading``.

    name: ClassVar[str]
    answers: ClassVar[str]  # what an answer is: labels, number, text
    metrics: ClassVar[Mapping[str, Metric]]
    default_metric: ClassVar[str]
    telling: ClassVar[tuple[str, ...]] = ()  # the metrics that say most, the best first, if not the default one
    has_labels: ClassVar[bool] = False  # the columns of the logits have names
    needs_names: ClassVar[bool] = False  # and what they are called is what is answered: no number stands for a name
    one_label: ClassVar[bool] = False  # and each row has one of these, so that rows can be weighed by it
    has_baselines: ClassVar[bool] = True  # a majority and a linear head are its rivals
    chooses: ClassVar[bool] = False  # something is chosen on the evaluation rows
    head: ClassVar[str | None] = None  # the head that it needs; None: any that gives logits
    compared: ClassVar[str] = "decisions"  # what of 8-bit weights is compared: these, or values
    problem_type: ClassVar[str | None] = None  # transformers' name for it
    picks: ClassVar[bool] = False  # an answer is one of the candidates that the row brings
    whole_batch: ClassVar[bool] = False  # the loss is of a batch's rows together: see ``slopes``
    optional_labels: ClassVar[bool] = False  # rows may have none
    gives_vectors: ClassVar[bool] = False  # an answer is one, and the bare backbone's is its rival: see ``frozen``
    model: ClassVar[str] = "ForSequenceClassification"  # how transformers' class for it ends
    older: ClassVar[Mapping[str, Any]] = {}  # what a manifest's entry says for versions that know no kinds
    possible: ClassVar[str] = ""  # the answers, in words, where they are no labels
    sample_label: ClassVar[str] = "0"  # of a synthetic row
    sample_labels: ClassVar[tuple[str, ...]] = ("yes", "no")  # of a synthetic task that has labels

    # Cards.

    @classmethod
    def require_classes(cls) -> None:
        """Refuse ``--balanced`` where rows cannot be weighed by a label."""
        if not cls.one_label:
            raise UsageError(f"--balanced weighs classes, and {cls.title} has none; leave --balanced out.")

    @classmethod
    def initial_choices(cls, hidden_size: int) -> Mapping[str, Any]:
        """Return what is ``chosen`` for a fresh task on a backbone of that size."""
        return {}

    def bind_rows(self, rows: Sequence[Row]) -> Self:
        """Bind what the form of these rows says, which train or are scored."""
        return self

    @classmethod
    def is_of(cls, labels: Sequence[str] | None, head_reads: str) -> bool:
        """True if an older card, which names no kind, is of this one."""
        return False

    @property
    def n_outputs(self) -> int:
        """Columns of the logits."""
        return len(self.labels or "1")

    def logits_shape(self, rows: int, length: int) -> tuple[int, ...]:
        """Shape of the logits of ``rows`` token rows of ``length`` tokens."""
        return (rows, length, self.n_outputs) if self.per_token else (rows, self.n_outputs)

    @property
    def described(self) -> str:
        """The task in a table's cell: "3 labels"."""
        return self.name

    @property
    def listed(self) -> str:
        """The possible answers, as words that follow "labels"."""
        return self.possible or ", ".join(self.labels or ())

    # Rows.

    @classmethod
    def label_text(cls, value: Any, where: str) -> str:
        """Return a column's value as canonical text: equal labels are equal texts."""
        return label_text(one_of(value), where)

    @classmethod
    def labels_of(cls, rows: Sequence[Row]) -> tuple[str, ...] | None:
        """Return the training rows' labels, sorted; None if labels have no names.  Refuses rows that teach nothing."""
        return None

    @classmethod
    def check_labels(cls, labels: Sequence[str]) -> None:
        """Refuse names that the logits' columns of a head trained elsewhere cannot have."""

    @classmethod
    def columns(cls, given: Columns) -> Columns:
        """Add what this kind reads of a row to the columns that options name."""
        named = cls.has_labels and given.step is None
        return given._replace(named=named, candidates=given.candidates or cls.picks, passages=cls.passages)

    def as_known(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows whose labels are called as the task calls them."""
        return rows

    def unknown_label(self, row: Row) -> str | None:
        """Return the row's first label that the task does not have; refuse what is no label at all."""
        self.expected(row)
        return None

    def check_batch(self, batch_size: int, rows: Sequence[Row]) -> None:
        """Refuse a batch that is too small for a step."""

    def strata(self, rows: Sequence[Row]) -> list[str]:
        """Name each row's stratum: its rarest label, if it has one; rows of each are divided in proportion."""
        names = [self.names_in(row) for row in rows]
        counts = Counter(name for of_row in names for name in of_row)
        return [min(of_row, key=lambda name: (counts[name], name), default="") for of_row in names]

    def expected(self, row: Row) -> Any:
        """Return the right answer as people see it, a plain value of JSON."""
        return row.label

    def names_in(self, row: Row) -> list[str]:
        """Return the row's labels; none if labels have no names."""
        found = self.expected(row) if self.has_labels else []
        return [*map(str, found)] if isinstance(found, list) else [str(found)]

    @abstractmethod
    def targets(self, rows: Sequence[Row]) -> Values:
        """Return what the loss compares with, [n, ...], of rows that were checked."""

    def targets_at_tokens(self, rows: Sequence[Row], tokens: TokenBatch) -> Values:
        """Return ``targets`` of rows with these tokens."""
        return self.targets(rows)

    def synthetic_per_row(self, n: int) -> list[int] | None:
        """Divide ``n`` synthetic token rows among rows: two each, the last has the rest; None if each row is one."""
        if self.texts_taught < 2:
            return None
        return [2] * (n // 2 - 1) + [2 + n % 2] if n > 1 else [n]

    @classmethod
    def readable(cls, *, pairs: bool, text: str = "a") -> Any:
        """Return a synthetic row, as callers give it, whose long text is ``text``."""
        return (text, "a") if pairs else text

    @classmethod
    def example(cls, labels: Sequence[str] | None) -> tuple[str, tuple[str, ...] | None]:
        """Return a synthetic row's label, and all labels: ``labels`` if they are known."""
        known = tuple(labels or cls.sample_labels) if cls.has_labels else None
        return (known[0] if known and cls.one_label else cls.sample_label), known

    @abstractmethod
    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        """Return synthetic targets [B, ...] for rows with this mask [B, S], to time a step."""

    # Losses: the same in NumPy, PyTorch and ONNX.

    @abstractmethod
    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """Return each row's loss, [B]."""

    @abstractmethod
    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        """Return the mean over a batch of PyTorch's tensors, by their methods; ``weights`` [labels] weigh rows by
        their one label."""

    @abstractmethod
    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Write the loss as ONNX nodes on the values of these names; of a whole batch, the sum of ``logits`` times
        what ``slopes`` gives for ``labels``."""

    def slopes(self, logits: NDArray[np.float32], targets: Values) -> tuple[float, NDArray[np.float64]]:
        """Return the loss of a whole batch, and its derivative by each logit: a step computes all logits first and goes
        back from these, so that its memory does not grow with the batch (Gao et al., 2021, arXiv:2101.06983)."""
        raise UsageError(f"{self.title} has its loss row by row.")

    def terms(self, targets: Values) -> Values:
        """Count each row's terms in the loss, [B]: its tokens, if the loss is one of tokens."""
        return np.ones(len(targets))

    @abstractmethod
    def constant_loss(self, targets: Values, words: int = 0) -> float:
        """Return the loss of knowing nothing, with these targets; ``words`` are those of a decoder."""

    # Scores.

    def score(self, metric: str, targets: Any, outputs: Any) -> float:
        """Score outputs [n, ...], as ``outputs`` gives them; an undefined score (a constant's correlation) is 0."""
        if len(targets) != len(outputs) or not len(targets):
            raise ValueError(f"{len(targets)} labels and {len(outputs)} answers cannot be compared")
        value = self.metric_of(metric).score(self, targets, outputs)
        return value if math.isfinite(value) else 0.0

    def metric_or_default(self, metric: str | None) -> str:
        """Return the metric's name, after a check."""
        name = metric or self.default_metric
        self.metric_of(name)
        return name

    def fitting(self, targets: Any) -> tuple[str, ...]:
        """Name the metrics that say most of rows with these targets, the best first."""
        return self.telling or (self.metric_or_default(None),)

    def resampled(self, outputs: Any) -> Any:
        """Return what a bootstrap draws from: outputs of the same score that are quicker to score."""
        return outputs

    def metric_of(self, name: str) -> Metric:
        """Return the metric of that name; refuse unknown ones and those of other kinds."""
        if name in self.metrics:
            return self.metrics[name]
        others = {metric for kind in kinds().values() for metric in kind.metrics} - {*self.metrics}
        if name.partition(":")[0] not in others:
            raise UnknownName("metric", name, self.metrics)
        raise UsageError(f"{name} is no metric of {self.title}; those are {', '.join(self.metrics)}.")

    def outputs(self, logits: NDArray[Any]) -> Values:
        """Keep what is scored of logits [B, C], as [B, ...]: by default all."""
        return logits

    def with_chosen(self, targets: Values, outputs: Values) -> Self:
        """Choose on these rows, the evaluation rows, what this kind chooses."""
        return self

    def plain(self, outputs: Values) -> list[Any]:
        """Return outputs as people see answers: plain values of JSON."""
        return outputs.tolist()

    def plain_answers(self, rows: Sequence[Row], targets: Values, outputs: Values) -> list[Any]:
        """Return ``plain`` answers, which some kinds need the rows for."""
        return self.plain(outputs)

    def row_errors(self, targets: Values, outputs: Values) -> Values:
        """Return each answer's distance from the right one, [n], by the default metric; McNemar's test asks whose is
        nearer."""
        return np.asarray(1.0 - self.metrics[self.default_metric].function(self, targets, outputs))

    @abstractmethod
    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Say where answers are wrong: ``by_class``, ``macro``, ``confusion``, or ``residuals``, or ``texts``."""

    # Baselines.

    def majority(self, targets: Values) -> Values:
        """Return the one output, [] or [C], that is best for all of these rows."""
        raise UsageError(f"{self.title} has no majority.")

    def least_squares_targets(self, targets: Values) -> NDArray[np.float64]:
        """Return what a linear head learns by least squares in place of logits, [n, C]."""
        raise UsageError(f"{self.title} has no linear head for a rival.")

    def baseline_outputs(self, states: Values) -> Values:
        """Return the outputs of the bare backbone's states [n, K, hidden size]."""
        raise UsageError(f"{self.title} takes a head on the backbone's states.")

    def baseline_features(self, states: Sequence[Values], targets: Values) -> Values:
        """Return what a linear head reads, [n, d], of each row's state [d]."""
        return np.stack(states)

    def logits_by_row(self, logits: Values, targets: Values) -> Values:
        """Shape what a linear head gives for ``baseline_features`` as this kind's logits."""
        return logits

    # Answers of a deployed task.

    @abstractmethod
    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        """Make answers of logits [n, C] and of what speaks against each; ``read`` is ``prediction_context``'s."""

    def logits_and_targets(self, answers: Sequence[Any], rows: Sequence[Row]) -> tuple[Values, Values]:
        """Return (logits, targets) of answers to rows that were checked."""
        return np.array([answer.logits for answer in answers], np.float32), self.targets(rows)

    def prediction_context(self, given: Sequence[Any], texts: Sequence[Text], tokens: TokenBatch) -> Sequence[Any]:
        """Return what ``predictions`` reads beside the logits of rows as ``given``, whose token rows are ``texts``."""
        return ()

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """Compare logits [n, C] with the reference's, held to that tolerance or to none; where a row is several,
        [n, K, C], or [token rows, C] if it is not known whose they are."""
        return same_best(reference, logits, tolerance)


@cache
def kinds() -> dict[str, type[TaskType]]:
    """Return every kind by name."""
    return classes_of("edgepeft.tasks", TaskType, "name")  # type: ignore[type-abstract]


@cache
def kind_named(name: str) -> type[TaskType]:
    """Return the kind of that name."""
    found = class_named("edgepeft.tasks", TaskType, name)  # type: ignore[type-abstract]
    if found is None:
        raise UnknownName("kind of task", name, names_of("edgepeft.tasks"))
    return found


def requested_kind(name: str | None, *, regression: bool = False, writes: bool = False) -> type[TaskType]:
    """Return the kind that ``--kind`` or one of its short forms asks for; else classification."""
    short = "regression" if regression else None
    if writes:
        short = next(known for known, kind in kinds().items() if kind.writes)
    if None not in (name, short) and name != short:
        raise UsageError(f"--kind {name} is another kind of task than {short}, which is asked for too; leave one out.")
    return kind_named(name or short or "classification")


def kind_from_card(name: str | None, labels: Sequence[str] | None, head_reads: str, **bound: Any) -> TaskType:
    """Return the kind that a card states; older cards have no name of a kind."""
    if name is None:
        found = next(kind for kind in kinds().values() if kind.is_of(labels, head_reads))
    else:
        try:
            found = kind_named(str(name))  # of a damaged card it may be anything
        except UnknownName:
            known = ", ".join(names_of("edgepeft.tasks"))
            raise ValueError(f"this version knows no kind of task {name!r}; it knows {known}") from None
    if found.has_labels != bool(labels):
        raise ValueError(f"{found.title} has {'labels, and there are none' if found.has_labels else 'no labels'}")
    kind = found(tuple(labels) if labels else None, **bound)
    kind.require_sound_windows()
    return kind
