"""The engine that a training loop drives, and how rows are scored by one, batch by batch.

PyTorch on a workstation and ONNX Runtime on a board are the two engines.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.frozen_random import uniform
from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.tasks.base import TaskType

SCORED_ROWS = 64  # at once: no gradients are kept, so more rows fit than in training


class Scored(NamedTuple):
    """Some rows, scored."""

    score: float  # the metric; higher is better
    loss: float  # the mean
    outputs: NDArray[Any]  # what is answered to each row, as the kind has it
    losses: NDArray[np.float64]  # of each row
    kind: TaskType  # with what was chosen on these rows, if it was to be
    logits: NDArray[np.float32] | None = None  # [n, C], if the kind is calibrated by them
    pools: Mapping[str, float] = MappingProxyType({})  # the score of each way to pool windows, if one was chosen


def score_rows(
    logits_of: Callable[[list[int]], NDArray[np.float32]],
    rows: Encoded,
    kind: TaskType,
    metric: str,
    advance: Callable[[int], None] = lambda _: None,
    *,
    choose: bool = False,
) -> Scored:
    """Score ``rows`` by ``logits_of`` [token rows, outputs]; ``advance`` gets the number of rows after each batch.

    With ``choose`` the kind first chooses on these rows what it does (thresholds).  A loss of a whole batch is that of
    all these.
    """
    kinds, batches = kind.pool_candidates() if choose else (kind,), sorted_batches(rows.lengths, SCORED_ROWS)
    parts: list[list[tuple[NDArray[Any], ...]]] = [[] for _ in kinds]  # of each kind outputs, losses and logits
    for chosen in batches:
        logits = logits_of(chosen)
        for each, found in zip(kinds, parts, strict=True):
            own = rows.grouping(chosen).by_row(logits, each.pool)
            losses = np.empty(0) if each.whole_batch else each.losses(own, rows.targets[chosen])
            found.append((each.outputs(own), losses, own if each.calibrates else np.empty(0)))
        advance(len(chosen))
    order, scored = np.argsort(np.concatenate(batches)), list[Scored]()
    for each, found in zip(kinds, parts, strict=True):
        outputs, losses, kept = map(np.concatenate, zip(*found, strict=True))
        outputs = outputs[order]
        losses = each.losses(np.asarray(outputs, np.float32), rows.targets) if each.whole_batch else losses[order]
        bound = each.with_chosen(rows.targets, outputs) if choose else each
        score, loss = bound.score(metric, rows.targets, outputs), float(losses.mean())
        scored.append(Scored(score, loss, outputs, losses, bound, kept[order] if each.calibrates else None))
    best = max(scored, key=lambda each: (each.score, -each.loss))  # of equals the first
    return best._replace(pools={each.kind.pool: each.score for each in scored} if len(scored) > 1 else {})


Arrays = dict[str, NDArray[Any]]
Masks = Callable[[int, float, Sequence[int]], NDArray[np.float32]]
"""(which dropout of the step, its probability, the features' shape) -> what the features are multiplied by."""


class StepOutcome(NamedTuple):
    """What a step found before its update."""

    loss: float  # of its rows
    gradient_norm: float  # of all gradients, before clipping
    odd_rows: tuple[int, ...] = ()  # if one is not finite, the rows that alone cause it, where the engine looks


class TrainingEngine(ABC):
    """Holds the trained tensors and their optimizer; the training loop says which rows, which rate and which masks."""

    @abstractmethod
    def prepare(self, advance: Callable[[int, int], None]) -> None:
        """Compute what all steps share; ``advance`` gets the number of rows done and of all."""

    @abstractmethod
    def step(self, chosen: Sequence[int], factor: float, masks: Masks) -> StepOutcome:
        """Update on these training rows, every rate times ``factor``; not if the outcome is not finite."""

    def scored(self, part: str, rows: Encoded, kind: TaskType, metric: str, advance: Callable[[int], None]) -> Scored:
        """Score the tensors as they are on a part's rows, counted by ``advance``; on those of eval the kind chooses."""
        return score_rows(partial(self.logits, part), rows, kind, metric, advance, choose=part == "eval")

    @abstractmethod
    def logits(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """Return logits [token rows, outputs] of rows of a part, by the tensors as they are and without dropout."""

    @abstractmethod
    def states(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """Return what the head would read of the bare backbone, [token rows, d], for rows of a part."""

    @abstractmethod
    def tensors(self) -> Arrays:
        """Return a copy of the trained tensors by name."""

    @abstractmethod
    def state(self) -> Arrays:
        """Return all that steps change, the trained tensors among it, by names of the engine's own; not copied."""

    @abstractmethod
    def load_state(self, state: Arrays) -> None:
        """Go on where ``state`` was taken."""

    @abstractmethod
    def finish(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Take these tensors and free what only steps need: from now on, test rows are scored."""


def dropout_mask(seed: int, step: int, index: int, probability: float, shape: Sequence[int]) -> NDArray[np.float32]:
    """Return 0 where a feature is dropped, else 1 / (1 - p): a function of seed and step, so nothing is saved."""
    kept = uniform(f"{seed}/{step}/dropout/{index}", shape) >= probability
    return (kept / (1 - probability)).astype(np.float32)


BATCH = 16  # as in BERT's fine-tuning (Devlin et al., 2019, appendix A.3)
MEAN_HEAD_RATE = 2e-2  # of a fresh head on a mean of hidden states; see ``training/settings.py``
