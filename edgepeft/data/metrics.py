"""The metrics of GLUE by name, higher is better for all; f1 and matthews from scikit-learn, imported when used.

Classification: accuracy, f1, matthews.  Regression: pearson, spearman and their mean, pearson_spearman.
``f1`` of two labels is that of the positive one, which ``f1:LABEL`` names; of more labels it is the macro mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.errors import MissingPackage, UnknownName, UsageError

__all__ = [
    "METRICS",
    "SCORED_ROWS",
    "Metric",
    "Scored",
    "averaged",
    "check_metric",
    "compute",
    "default_metric",
    "losses_of",
    "score_of",
    "score_rows",
]

Function = Callable[[Sequence[Any], Sequence[Any], str | None, Sequence[str] | None], float]


@dataclass(frozen=True)
class Metric:
    """Whether it scores numbers, and the function of (labels, predictions, positive label, all labels)."""

    regression: bool
    function: Function


def default_metric(regression: bool) -> str:
    """The metric when none is asked for."""
    return "pearson_spearman" if regression else "accuracy"


def check_metric(name: str, *, regression: bool, names: Sequence[str] | None = None) -> None:
    """See that ``name`` exists and scores this kind of task, before any work is done.

    Raises:
        UnknownName: no such metric, or ``f1:LABEL`` of a label that is not in ``names``.
        UsageError: a metric of regression for a classification, or the other way round.
    """
    metric, positive = _find(name)
    if metric.regression != regression:
        fitting = ", ".join(known for known, m in METRICS.items() if m.regression == regression)
        kind = "regression" if regression else "classification"
        raise UsageError(f"{name} is no metric of a {kind}; those are {fitting}.")
    if positive is not None and names is not None and positive not in names:
        raise UnknownName("label", positive, names)


def averaged(name: str, names: Sequence[str] | None = None) -> str:
    """How a metric comes to one number, for a task with these labels."""
    metric, positive = _find(name)
    if metric.function is not _f1 or names is None:
        return "share of rows that are right" if metric.function is _accuracy else "over all rows"
    if positive is None and len(names) > 2:
        return "macro mean: of the labels' own F1, each counting alike"
    return f"of the label {positive or _positive(sorted(names))!r} alone"


def compute(name: str, labels: Sequence[Any], predictions: Sequence[Any], names: Sequence[str] | None = None) -> float:
    """Score ``predictions`` against ``labels``: label texts, or numbers for a regression.

    ``names`` are all labels of the task, where some may not occur.  What is not defined (a correlation
    with a constant) is 0.

    Raises:
        UnknownName: no such metric.
        MissingPackage: scikit-learn is needed and not installed.
    """
    metric, positive = _find(name)
    if len(labels) != len(predictions) or not len(labels):
        raise ValueError(f"{len(labels)} labels and {len(predictions)} predictions cannot be compared")
    value = metric.function(labels, predictions, positive, names)
    return value if math.isfinite(value) else 0.0


def _find(name: str) -> tuple[Metric, str | None]:
    known, _, positive = name.partition(":")
    if known not in METRICS or (positive and known != "f1"):
        raise UnknownName("metric", name, METRICS)
    return METRICS[known], positive or None


def _accuracy(labels: Sequence[Any], predictions: Sequence[Any], *_: Any) -> float:
    # Not scikit-learn's: a board has none, and this one needs none.
    return sum(bool(a == b) for a, b in zip(labels, predictions, strict=True)) / len(labels)


def _f1(labels: Sequence[Any], predictions: Sequence[Any], positive: str | None, names: Sequence[str] | None) -> float:
    score = _sklearn().f1_score
    known = sorted({*labels, *predictions} if names is None else {*names})
    if positive is None and len(known) > 2:
        return float(score(labels, predictions, labels=known, average="macro", zero_division=0))
    chosen = positive or _positive(known)
    return float(score(labels, predictions, labels=[chosen], average="macro", zero_division=0))


def _positive(names: Sequence[str]) -> str:
    """The last of the sorted names that denies nothing: 1, yes, true, spam; equivalent, not not_equivalent."""
    affirming = [name for name in names if not re.match(r"(not?|non)[ _-]", name, re.IGNORECASE)]
    return (affirming or list(names))[-1]


def _pearson(labels: Sequence[Any], predictions: Sequence[Any], *_: Any) -> float:
    # Not scipy's, as above: what is tuned on a board is scored there.
    if len(set(labels)) < 2 or len(set(predictions)) < 2:
        return 0.0  # not defined
    return float(np.corrcoef(np.asarray(labels, np.float64), np.asarray(predictions, np.float64))[0, 1])


def _spearman(labels: Sequence[Any], predictions: Sequence[Any], *_: Any) -> float:
    return _pearson(_ranks(labels), _ranks(predictions))


def _ranks(values: Sequence[float]) -> list[float]:
    """Equal values share the mean of their ranks."""
    _, which, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    means: list[float] = (np.cumsum(counts) - (counts - 1) / 2)[which].tolist()
    return means


def _sklearn() -> Any:
    try:
        from sklearn import metrics
    except ImportError:
        raise MissingPackage("this metric needs scikit-learn: pip install scikit-learn.") from None
    return metrics


METRICS: dict[str, Metric] = {
    "accuracy": Metric(False, _accuracy),
    "f1": Metric(False, _f1),
    "matthews": Metric(False, lambda a, b, *_: float(_sklearn().matthews_corrcoef(a, b))),
    "pearson": Metric(True, _pearson),
    "spearman": Metric(True, _spearman),
    "pearson_spearman": Metric(True, lambda a, b, *_: (_pearson(a, b) + _spearman(a, b)) / 2),
}


SCORED_ROWS = 64  # at once: no gradients are kept, so more rows fit than in training


class Scored(NamedTuple):
    """The metric (higher is better) and the mean loss; of each row what is answered, a label's index or a number, and
    its loss."""

    score: float
    loss: float
    outputs: NDArray[Any]
    losses: NDArray[np.float64]


def score_rows(
    logits_of: Callable[[list[int]], NDArray[np.float32]],
    rows: Encoded,
    labels: tuple[str, ...] | None,
    metric: str,
    advance: Callable[[int], None] = lambda _: None,
) -> Scored:
    """Score ``rows`` by ``logits_of`` [batch, outputs]; ``advance`` gets the number of rows after each batch.

    ``labels`` are the outputs' names, None for a regression.
    """
    outputs, losses = np.empty_like(rows.targets), np.empty(len(rows.targets))
    for chosen in sorted_batches(rows.lengths, SCORED_ROWS):
        logits = logits_of(chosen)
        losses[chosen] = losses_of(logits, rows.targets[chosen])
        outputs[chosen] = logits[:, 0] if labels is None else logits.argmax(1)
        advance(len(chosen))
    return Scored(score_of(metric, rows.targets, outputs, labels), float(losses.mean()), outputs, losses)


def score_of(metric: str, targets: NDArray[Any], outputs: NDArray[Any], labels: tuple[str, ...] | None) -> float:
    """The metric of answers [rows]: indices into ``labels``, or numbers where it is None."""
    expected, predicted = (
        values.tolist() if labels is None else [labels[i] for i in values] for values in (targets, outputs)
    )
    return compute(metric, expected, predicted, labels)


def losses_of(logits: NDArray[np.float32], targets: NDArray[Any]) -> NDArray[np.float64]:
    """Cross entropy, or squared error of float targets, of each row."""
    exact = logits.astype(np.float64)
    if targets.dtype.kind == "f":
        squares: NDArray[np.float64] = np.square(exact[:, 0] - targets)
        return squares
    shifted = exact - exact.max(1, keepdims=True)
    losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(targets)), targets]
    return losses
