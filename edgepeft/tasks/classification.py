"""Classification: one of the labels for each row, by the cross entropy; scored as GLUE's tasks are.

``f1`` of two labels is that of the positive one, which ``f1:LABEL`` names; of more labels it is ``macro_f1``: the mean
of the labels' own, of those that some row has or is given.  ``matthews`` is of any number of labels (Gorodkin, 2004).
Scores are scikit-learn's, computed without it.  Labels that are numbers may be scored by correlations too.

Probabilities are softmax(logits / temperature), fitted on the evaluation rows; where a coverage or a risk is
guaranteed, an answer without a single label in its conformal set, or of too low a probability, is ``unsure``.  Neither
changes which label is best.  ``_conformal`` has the rules and the equations.
"""

import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.common.messages import counted, first_of
from edgepeft.data.columns import Columns
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._losses import GraphWriter, LossGraph, Metric, Values, cross_entropy, log_softmax, mean
from edgepeft.tasks.base import TaskType

RARE = 0.2  # of the rows: of a label with fewer accuracy says little
MANY, VERY_MANY = 100, 1_000  # labels: refused from the one where most have a single row, mentioned from the other


@dataclass(frozen=True)
class Classification(TaskType):
    """loss = -log softmax(logits)[label]."""

    name = "classification"
    title = "a classification"
    answers = "labels"
    default_metric = "accuracy"
    calibrates = True
    has_labels = True
    one_label = True
    problem_type = "single_label_classification"

    @classmethod
    def is_of(cls, labels: Sequence[str] | None, head_reads: str) -> bool:
        return labels is not None

    @classmethod
    def columns(cls, given: Columns) -> Columns:
        """Refuse a separator of labels, of which a row has one."""
        if given.separator is not None:
            raise UsageError(
                "--label-separator divides a row's several labels, and a classification has one for each row: give "
                "--kind labels too, or leave it out."
            )
        return super().columns(given)

    @property
    def described(self) -> str:
        return ", ".join([f"{self.n_outputs} labels", *(f"{name} {value:g}" for name, value in self.guarantee.items())])

    @classmethod
    def labels_of(cls, rows: Sequence[Row]) -> tuple[str, ...]:
        """Return the labels: two at least, of which most stand in more than one row."""
        labels = tuple(sorted({row.label or "" for row in rows}))
        if len(labels) < 2:
            raise DataError(
                f"{rows[0].file}: every label is {labels[0]!r}; a classification needs two. "
                "Numbers to predict are for: edgepeft train --regression."
            )
        check_names(rows, [[row.label or ""] for row in rows], alone=True)
        return labels

    def as_known(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Take 1.0 for 1, as pandas writes whole numbers beside a gap, TRUE for true, and the other way round."""

        def plain(label: str | None) -> str:
            lower = (label or "").lower()
            return _WHOLE.sub("", lower) if lower in ("true", "false") or _NUMBER.fullmatch(lower) else label or ""

        labels = self.labels or ()
        known = {plain(label): label for label in labels}
        return [r if r.label in labels else r._replace(label=known.get(plain(r.label), r.label)) for r in rows]

    def unknown_label(self, row: Row) -> str | None:
        return None if self.labels is None or row.label in self.labels else row.label

    def targets(self, rows: Sequence[Row]) -> Values:
        index = {label: i for i, label in enumerate(self.labels or ())}
        return np.array([index[row.label or ""] for row in rows], np.int64)

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        return np.arange(len(mask)) % self.n_outputs

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        return -log_softmax(logits)[np.arange(len(targets)), targets]

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        each = -logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        if weights is None:
            return each.mean()
        return (each * weights[targets]).sum() / weights[targets].sum()

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Read (B, C) and (B)."""
        return LossGraph(cross_entropy(graph, logits, labels, 1), integers=True)

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        return math.log(self.n_outputs)

    def fitting(self, targets: Values) -> tuple[str, ...]:
        shares = np.bincount(targets) / len(targets)
        return ("accuracy", "macro_f1") if shares[shares > 0].min() < RARE else ("accuracy",)

    def metric_of(self, name: str) -> Metric:
        """Know one label's F1 too, and correlations if labels are numbers."""
        known, _, positive = name.partition(":")
        if known == "f1" and (positive or self.labels):
            labels = self.labels or (positive,)
            if positive and positive not in labels:
                raise UnknownName("label", positive, labels)
            if not positive and len(labels) > 2:
                return Metric(_macro_f1, f"macro {self.metrics['macro_f1'].averaged}")
            # Of two the last name that denies nothing: 1, yes, true, spam; equivalent, not not_equivalent.
            affirming = [each for each in labels if not re.match(r"(not?|non)[ _-]", each, re.IGNORECASE)]
            one = positive or max(affirming or labels)
            return Metric(partial(_f1, positive=one), f"of the label {one!r} alone")
        if self.labels is not None and all(map(_NUMBER.fullmatch, self.labels)):
            from edgepeft.tasks.regression import CORRELATIONS

            if name in CORRELATIONS:
                on, metric = np.array([*map(float, self.labels)]), CORRELATIONS[name]
                return metric._replace(function=lambda kind, *of: metric.function(kind, *(on[each] for each in of)))
        return super().metric_of(name)

    def outputs(self, logits: NDArray[Any]) -> Values:
        return logits.argmax(1)

    def plain(self, outputs: Values) -> list[str]:
        labels = self.labels or ()
        return [labels[i] for i in outputs]

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Return ``by_class``, ``macro`` (their means) and ``confusion`` (label -> answer -> rows, no zeros)."""
        from edgepeft.data.by_class import by_class

        names, pairs = self.labels or (), Counter(zip(targets.tolist(), outputs.tolist(), strict=True))
        right = [pairs[i, i] for i in range(len(names))]
        given, has = (np.bincount(values, minlength=len(names)).tolist() for values in (outputs, targets))
        confusion: dict[str, dict[str, int]] = {name: {} for name in names}
        for (i, j), n in sorted(pairs.items()):
            confusion[names[i]][names[j]] = n
        return {**by_class(names, right, given, has), "confusion": confusion}

    def doubted(self, targets: Values, logits: NDArray[Any]) -> list[tuple[int, dict[str, Any]]]:
        """Doubt labels by confident learning (Northcutt et al., 2021, arXiv:1911.00068, section 3.1), of a model that
        did not learn from these rows.

        A label's threshold is its mean probability over the rows that have it: t_j = mean of p_j over {i : y_i = j}.  A
        row is likely mislabelled where of the labels j with p_j >= t_j the most probable is another than its own, and
        the answer is another too.  The worst first, by p(own label) - p(that label).
        """
        names, shares, every = self.labels or (), self.shares(logits), np.arange(len(targets))
        rows, own = np.bincount(targets, minlength=shares.shape[1]), shares[every, targets]
        means = np.bincount(targets, own, minlength=shares.shape[1]) / np.maximum(rows, 1)
        thresholds = np.where(rows > 0, means, np.inf)  # of a label that no row has nothing is known
        confident = np.where(shares >= thresholds, shares, -1.0)
        likely = confident.argmax(1)
        probable = shares[every, likely]
        odd = (confident.max(1) >= 0) & (likely != targets) & (shares.argmax(1) != targets)
        found = []
        for i in sorted(np.flatnonzero(odd).tolist(), key=(own - probable).__getitem__):
            label = {"label": names[targets[i]], "label_probability": round(float(own[i]), 6)}
            found.append((i, {**label, "likely": names[likely[i]], "likely_probability": round(float(probable[i]), 6)}))
        return found

    def majority(self, targets: Values) -> Values:
        return np.asarray(np.bincount(targets).argmax())

    def least_squares_targets(self, targets: Values) -> NDArray[np.float64]:
        return np.eye(self.n_outputs)[targets]

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        """Answer the likeliest label; probabilities are the logits' softmax at the temperature."""
        names, (shares, unsure) = self.labels or (), self.likely(logits)
        answers = []
        for row, raw, note, doubt in zip(shares, logits.tolist(), notes, unsure, strict=True):
            scores = {label: round(p, 6) for label, p in zip(names, row, strict=True)}
            best = names[raw.index(max(raw))]
            mean = None if self.step is None else sum(float(n) * p for n, p in zip(names, row, strict=True))
            answers.append(Prediction(task, best, scores[best], scores, tuple(raw), note, mean, unsure=doubt))
        return answers


_MISSING = {"nan", "null", "none", "n/a", "na", "<na>", "#n/a", "#value!", "#ref!", "\\n", "-"}
_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_UNSEEN = re.compile(r"[\s\u00ad\u200b-\u200f\u2060\ufeff]")  # blanks, and what has no width
_WHOLE = re.compile(r"(?<=\d)\.0+$")  # 1.0 beside 1


def check_names(rows: Sequence[Row], names: Sequence[Sequence[str]], *, alone: bool = False) -> None:
    """Refuse the ``names`` of each row if most stand once; warn of rare, of similar and of very many ones, and of ones
    that look like several where each stands ``alone``."""
    has: dict[str, list[Row]] = {}
    for row, of_row in zip(rows, names, strict=True):
        for name in of_row:
            has.setdefault(name, []).append(row)
    labels, n, file = sorted(has), sum(map(len, names)), rows[0].file

    def quoted(name: str) -> str:  # with escapes if it is not of the usual Unicode form and may look like another
        seen, of = repr(name) if unicodedata.is_normalized("NFKC", name) else ascii(name), has[name]
        first = ", ".join(row.short for row in of[:3])
        return f"{seen} ({counted(len(of), 'row')}: {first}{', ...' * (len(of) > 3)})"

    def say(what: str, found: Sequence[Sequence[str]]) -> None:
        if found:
            told = first_of([" and ".join(map(quoted, each)) for each in found], between="; ")
            warnings.warn(f"{file}: {what}: {told}.", stacklevel=3)

    if len(labels) > MANY and 2 * len(labels) > n:
        raise DataError(
            f"{file}: {len(labels):,} different labels in {n:,} rows, such as {', '.join(labels[:3])}; a label stands "
            "in many rows. Is it another column (--label-column NAME), or numbers (edgepeft train --regression)?"
        )
    missing = [[label] for label in labels if label.casefold() in _MISSING]
    say("labels that may stand for a missing one are names like others", missing)
    bracketed = [[label] for label in labels if label[:1] + label[-1:] in ("[]", "{}", "()")]
    say("labels in brackets are names too, and no lists, which a table has as ['a', 'b']", bracketed)
    if n > len(labels):
        rare = [[label] for label in labels if len(has[label]) == 1]
        say("labels of a single row are too rare to be learnt", rare)
    alike: dict[str, list[str]] = {}
    for label in labels:
        plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", label.casefold()))
        alike.setdefault(_WHOLE.sub("", plain), []).append(label)
    same = [each for each in alike.values() if len(each) > 1]
    say("labels that differ in case, blanks, Unicode form or .0 only are different ones", same)
    if alone and (mark := _divided_by(labels)):
        of = [[label] for label in labels if mark in label]
        say(f"labels look like several names each, which --kind labels --label-separator {mark!r} reads", of)
    if len(labels) > VERY_MANY:
        warnings.warn(
            f"{file} has {len(labels):,} labels; each needs rows of its own to be learnt. If it is not the column of "
            "labels, --label-column names another; numbers to predict are for: edgepeft train --regression.",
            stacklevel=2,
        )


def _divided_by(labels: Sequence[str]) -> str | None:
    """Return the mark between names of which labels are made: fewer names than labels, as no "Books, Films" has."""
    for mark in ";|,#":
        parts = [[part.strip() for part in label.split(mark)] for label in labels]
        if len({name for each in parts for name in each}) < len(labels) and all(map(all, parts)):
            return mark
    return None


def _counts(kind: Classification, targets: Values, outputs: Values) -> tuple[Values, Values, Values]:
    """Count the rows that are given each label rightly, are given it, and have it: float64 [C]."""
    of = (targets[targets == outputs], outputs, targets)
    right, given, has = (np.bincount(each, minlength=kind.n_outputs).astype(np.float64) for each in of)
    return right, given, has


def _f1(kind: Classification, targets: Values, outputs: Values, positive: str) -> float:
    right, given, has = _counts(kind, targets, outputs)
    place = (kind.labels or ()).index(positive)
    return float(2 * right[place] / max(1, given[place] + has[place]))


def _macro_f1(kind: Classification, targets: Values, outputs: Values) -> float:
    right, given, has = _counts(kind, targets, outputs)
    there = given + has > 0
    return float((2 * right[there] / (given + has)[there]).mean())


def _matthews(kind: Classification, targets: Values, outputs: Values) -> float:
    right, given, has = _counts(kind, targets, outputs)
    n = len(targets)
    spread = math.sqrt((n**2 - given @ given) * (n**2 - has @ has))
    return float(right.sum() * n - given @ has) / spread if spread else 0.0


Classification.metrics = {
    "accuracy": Metric(lambda _, targets, outputs: targets == outputs, "share of rows that are right", mean),
    "f1": Metric(_macro_f1),  # of two labels one's own: ``metric_of``
    "macro_f1": Metric(_macro_f1, "mean of the labels' own F1, each counting alike"),
    "matthews": Metric(_matthews),
}
