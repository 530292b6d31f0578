"""Several labels at once, or none: a sigmoid for each, and a threshold of its own, chosen on the evaluation rows.

A label's threshold is the one of the best F1 of that label on those rows (SCut; Yang, 2001, "A study of thresholding
strategies for text categorization"), 0.5 where none of them has it.  Scores are scikit-learn's, computed without it:
micro and macro F1, the share of rows whose labels are exactly right, and as ``ranking`` 1 - ``label_ranking_loss``.

A row's ``label`` is a list of names.  As text, which rows have, it is canonical JSON: sorted, without blanks.

Letters: n rows, C labels.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError
from edgepeft.data.columns import label_text, quote
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._losses import CLOSE, Agreement, GraphWriter, LossGraph, Metric, Values, mean
from edgepeft.tasks.base import TaskType
from edgepeft.tasks.classification import check_names

_EVEN = 0.5  # a threshold where nothing speaks for another
_SURE = 100.0  # a logit whose probability is 0 or 1 in float64


@dataclass(frozen=True)
class LabelsPrediction(Prediction):
    """The ``labels`` that hold, in the task's order, and the probability of each."""

    labels: tuple[str, ...] = ()

    @property
    def value(self) -> list[str]:
        return list(self.labels)

    @property
    def facts(self) -> dict[str, Any]:
        return {"labels": self.value, "scores": self.scores}


@dataclass(frozen=True)
class Labels(TaskType):
    """loss = mean over the labels of softplus(logit) - logit [the row has it]; targets are float32 [n, C]."""

    name = "labels"
    title = "a task of several labels"
    answers = "several labels"
    default_metric = "micro_f1"
    telling = ("micro_f1", "macro_f1")
    has_labels = True
    needs_names = True
    chooses = True
    problem_type = "multi_label_classification"
    sample_label = "[]"

    def __post_init__(self) -> None:
        given = self.chosen.get("thresholds")
        if given is None:
            return
        sound = isinstance(given, list | tuple) and len(given) == self.n_outputs
        if not sound or not all(isinstance(each, int | float) and 0 < each < 1 for each in given):
            raise ValueError(f"thresholds lie between 0 and 1, one for each of {self.n_outputs} labels")

    @property
    def described(self) -> str:
        return f"any of {self.n_outputs} labels"

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """[C]: probabilities above which a label holds."""
        return np.array(self.chosen.get("thresholds") or [_EVEN] * self.n_outputs, np.float64)

    @classmethod
    def label_text(cls, value: Any, where: str) -> str:
        """Return a list of names, each once, as JSON."""
        if not isinstance(value, list | tuple):
            raise DataError(
                f"{where}: the label is a list of names, [] for none; found {quote(value)}. In a table, or a text, "
                "say what stands between the names: --label-separator ','."
            )
        names = [label_text(each, where, "label in the list") for each in value]
        twice = next((name for name, n in Counter(names).items() if n > 1), None)
        if twice is not None:
            raise DataError(f"{where}: the label {twice!r} stands twice in the row's list; give it once.")
        return json.dumps(sorted(names), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def labels_of(cls, rows: Sequence[Row]) -> tuple[str, ...]:
        names = [_names(row) for row in rows]
        labels = tuple(sorted({name for of_row in names for name in of_row}))
        if not labels:
            raise DataError(f"{rows[0].file}: no row has a label: every list is empty. Give rows with labels too.")
        check_names(rows, names)
        return labels

    def unknown_label(self, row: Row) -> str | None:
        return next((name for name in _names(row) if name not in (self.labels or ())), None)

    def expected(self, row: Row) -> list[str]:
        return _names(row)

    def targets(self, rows: Sequence[Row]) -> Values:
        index = {label: i for i, label in enumerate(self.labels or ())}
        targets = np.zeros((len(rows), len(index)), np.float32)
        for target, row in zip(targets, rows, strict=True):
            target[[index[name] for name in _names(row)]] = 1
        return targets

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        return np.eye(self.n_outputs, dtype=np.float32)[np.arange(len(mask)) % self.n_outputs]

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """Return the mean of the labels' binary cross entropies."""
        exact = logits.astype(np.float64)
        return (np.logaddexp(0, exact) - exact * targets).mean(1)

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        """Return their mean, in the form that never overflows."""
        return (logits.clamp(min=0) - logits * targets + (-logits.abs()).exp().log1p()).mean()

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Read (B, C) twice."""
        of_labels = graph.op("Sub", graph.op("Softplus", logits), graph.op("Mul", logits, labels))
        of_rows = graph.op("ReduceSum", of_labels, graph.ints(-1), keepdims=0)
        return LossGraph(of_rows, integers=False, dims=("batch", self.n_outputs))

    def terms(self, targets: Values) -> Values:
        return np.full(len(targets), float(self.n_outputs))

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        return math.log(2)

    def with_chosen(self, targets: Values, outputs: Values) -> Self:
        shares = _sigmoid(outputs)
        best = [_best_threshold(targets[:, i] > 0, shares[:, i]) for i in range(self.n_outputs)]
        return self.bind_chosen(thresholds=best)

    def decided(self, logits: Values) -> NDArray[np.bool_]:
        """Say which labels hold, [n, C]."""
        return _sigmoid(logits) > self.thresholds

    def plain(self, outputs: Values) -> list[list[str]]:
        names = self.labels or ()
        return [[names[i] for i in np.flatnonzero(row)] for row in self.decided(outputs)]

    def row_errors(self, targets: Values, outputs: Values) -> Values:
        return (self.decided(outputs) != (targets > 0)).sum(1)

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Return ``by_class`` and ``macro``, each label for itself, and ``figures``: every metric, and the loss too."""
        from edgepeft.data.by_class import by_class

        right, given, has = _counts(self, targets, outputs).tolist()
        figures = {name: self.score(name, targets, outputs) for name in self.metrics}
        figures["ranking_loss"] = 1 - figures.pop("ranking")
        return {**by_class(self.labels or (), right, given, has), "figures": figures}

    def majority(self, targets: Values) -> Values:
        """Return the most frequent labels, as many as have the best micro F1: the most frequent set is often empty."""
        has = (targets > 0).sum(0)
        order = np.argsort(-has, kind="stable")
        f1 = 2 * np.cumsum(has[order]) / (len(targets) * np.arange(1, self.n_outputs + 1) + has.sum())
        answer = np.full(self.n_outputs, -_SURE)
        answer[order[: f1.argmax() + 1]] = _SURE
        return answer

    def least_squares_targets(self, targets: Values) -> NDArray[np.float64]:
        return 2.0 * targets - 1.0

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        """Answer the labels whose probability, the sigmoid of the logit, is above their threshold."""
        answers: list[Prediction] = []
        for row, raw, held, note in zip(_sigmoid(logits), logits.tolist(), self.plain(logits), notes, strict=True):
            scores = {label: round(float(p), 6) for label, p in zip(self.labels or (), row, strict=True)}
            best = max(scores.values())
            answers.append(LabelsPrediction(task, None, best, scores, tuple(raw), note, labels=tuple(held)))
        return answers

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """Return the mean share of a row's labels that both answer, of those that either does (Jaccard's index; of
        none 1).  A row is undecided where the reference's logit is too near a label's threshold."""
        cut = np.log(self.thresholds) - np.log1p(-self.thresholds)
        decided = (np.abs(reference - cut) > 2 * (tolerance or CLOSE)).all(1)
        one, other = (self.decided(each[decided]) for each in (reference, logits))
        either = (one | other).sum(1)
        alike = np.where(either > 0, (one & other).sum(1) / np.maximum(either, 1), 1.0)
        return Agreement(float(alike.mean()) if decided.any() else 1.0, int((~decided).sum()))


def _names(row: Row) -> list[str]:
    return json.loads(row.label or "[]")


def _sigmoid(logits: Values) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -_SURE, _SURE)))


def _best_threshold(has: NDArray[np.bool_], shares: NDArray[np.float64]) -> float:
    """Return the threshold of the best F1, between two rows' probabilities [n]; of equals the nearest to one half."""
    if not has.any():
        return _EVEN
    order = np.argsort(-shares)
    found, hits = shares[order], np.cumsum(has[order])
    f1 = 2 * hits / (np.arange(1, len(has) + 1) + has.sum())  # of the first 1, 2, ... rows
    middles = (found + np.append(found[1:], 0.0)) / 2
    possible = found > middles  # equal probabilities are not told apart
    best = f1[possible].max()
    near = middles[possible & (f1 == best)]
    return float(near[np.abs(near - _EVEN).argmin()])


def _counts(kind: Labels, targets: Values, outputs: Values) -> NDArray[np.intp]:
    """Count the rows that are given each label rightly, are given it, and have it: [3, C]."""
    given, has = kind.decided(outputs), targets > 0
    return np.stack([(given & has).sum(0), given.sum(0), has.sum(0)])


def _f1(right: Values, given: Values, has: Values) -> Values:
    return 2 * right / np.maximum(1, given + has)


def _ranks_right(kind: Labels, targets: Values, outputs: Values) -> Values:
    """Return 1 less each row's share of wrong pairs, [n] (Tsoumakas et al., 2010): of a label that it has and one that
    it lacks, the first must score higher; a row without such a pair has none wrong."""
    losses = []
    for has, scores in zip(targets > 0, outputs, strict=True):
        theirs, others = scores[has], np.sort(scores[~has])
        wrong = (len(others) - np.searchsorted(others, theirs, "left")).sum()
        losses.append(wrong / max(1, len(theirs) * len(others)))
    return 1 - np.array(losses)


Labels.metrics = {
    "micro_f1": Metric(lambda *of: _f1(*_counts(*of).sum(1)), "over all rows' labels together"),
    "macro_f1": Metric(lambda *of: _f1(*_counts(*of)).mean(), "mean over the labels, each counting alike"),
    "exact_match": Metric(
        lambda kind, targets, outputs: (kind.decided(outputs) == (targets > 0)).all(1),
        "share of rows whose labels are exactly right",
        mean,
    ),
    "ranking": Metric(_ranks_right, "1 less the label ranking loss, mean over rows", mean),
}
