"""Scores of entities, as seqeval has them (Nakayama, 2018), without it: what is tuned on a board is scored there.

Of 0 / 0 a score is 0.  A kind gives with ``both`` the right tags of each row's words, and those that are answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.tasks._tags import entities
from edgepeft.tasks.base import Metric

__all__ = ["ENTITY_SCORES", "counts_of"]

Values = NDArray[Any]


def counts_of(kind: Any, targets: Values, outputs: Values) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """By type: entities that are given rightly, are given, and are there."""
    right, given, has = Counter[str](), Counter[str](), Counter[str]()
    for true, found in kind.both(targets, outputs):
        there, answered = {*entities(true)}, {*entities(found)}
        for count, those in ((right, there & answered), (given, answered), (has, there)):
            count.update(entity.label for entity in those)
    return right, given, has


def _micro(kind: Any, targets: Values, outputs: Values) -> tuple[int, int, int]:
    right, given, has = (count.total() for count in counts_of(kind, targets, outputs))
    return right, given, has


def _f1(kind: Any, targets: Values, outputs: Values) -> float:
    right, given, has = _micro(kind, targets, outputs)
    return 2 * right / max(1, given + has)


def _precision(kind: Any, targets: Values, outputs: Values) -> float:
    right, given, _ = _micro(kind, targets, outputs)
    return right / max(1, given)


def _recall(kind: Any, targets: Values, outputs: Values) -> float:
    right, _, has = _micro(kind, targets, outputs)
    return right / max(1, has)


def _macro(kind: Any, targets: Values, outputs: Values) -> float:
    """Of the types that stand in either."""
    right, given, has = counts_of(kind, targets, outputs)
    each = [2 * right[label] / (given[label] + has[label]) for label in {*given, *has}]
    return float(np.mean(each)) if each else 0.0


def _accuracy(kind: Any, targets: Values, outputs: Values) -> float:
    tags = [pair for both in kind.both(targets, outputs) for pair in zip(*both, strict=True)]
    return float(sum(one == other for one, other in tags)) / max(1, len(tags))


ENTITY_SCORES: Mapping[str, Metric] = {
    "entity_f1": Metric(_f1, "over all rows' entities together, as seqeval's micro average"),
    "entity_precision": Metric(_precision, "over all rows' entities together"),
    "entity_recall": Metric(_recall, "over all rows' entities together"),
    "entity_macro_f1": Metric(_macro, "mean over the types of entities, each counting alike"),
    "tag_accuracy": Metric(_accuracy, "share of words whose tag is right"),
}
