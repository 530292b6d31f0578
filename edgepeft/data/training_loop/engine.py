"""What a training loop needs of an engine: PyTorch on a workstation and ONNX Runtime on a board are the two."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.frozen_random import uniform
from edgepeft.data.batches import Encoded
from edgepeft.data.metrics import Scored, score_rows
from edgepeft.tasks.base import TaskType

__all__ = ["Arrays", "Masks", "StepOutcome", "TrainingEngine", "dropout_mask"]

Arrays = dict[str, NDArray[Any]]
Masks = Callable[[int, float, Sequence[int]], NDArray[np.float32]]
"""(which dropout of the step, its probability, the features' shape) -> what the features are multiplied by."""


class StepOutcome(NamedTuple):
    """The loss of a step's rows before the update, and the norm of all gradients before clipping.

    Where one is not finite, ``odd_rows`` are those of which that is so alone; none where the engine does not look.
    """

    loss: float
    gradient_norm: float
    odd_rows: tuple[int, ...] = ()


class TrainingEngine(ABC):
    """Holds the trained tensors and their optimizer; the training loop says which rows, which rate and which masks."""

    @abstractmethod
    def prepare(self, advance: Callable[[int, int], None]) -> None:
        """Compute what all steps share; ``advance`` gets the number of rows done and of all."""

    @abstractmethod
    def step(self, chosen: Sequence[int], factor: float, masks: Masks) -> StepOutcome:
        """One update on these training rows, every rate times ``factor``; none where the outcome is not finite."""

    def scored(self, part: str, rows: Encoded, kind: TaskType, metric: str, advance: Callable[[int], None]) -> Scored:
        """The tensors as they are, on the rows of a part; ``advance`` gets the number of rows after each batch.

        What the kind chooses is chosen on the evaluation rows.
        """
        return score_rows(partial(self.logits, part), rows, kind, metric, advance, choose=part == "eval")

    @abstractmethod
    def logits(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """[token rows, outputs] of rows of a part, by the tensors as they are and without dropout."""

    @abstractmethod
    def states(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """[token rows, d] of rows of a part: what the head would read of the bare backbone."""

    @abstractmethod
    def tensors(self) -> Arrays:
        """A copy of the trained tensors by name."""

    @abstractmethod
    def state(self) -> Arrays:
        """All that steps change, the trained tensors among it, by names of the engine's own; not copied."""

    @abstractmethod
    def load_state(self, state: Arrays) -> None:
        """Stand where ``state`` was taken."""

    @abstractmethod
    def finish(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Take these tensors and free what only steps need: from now on, test rows are scored."""


def dropout_mask(seed: int, step: int, index: int, probability: float, shape: Sequence[int]) -> NDArray[np.float32]:
    """0 where a feature is dropped, 1 / (1 - p) where it is kept: a function of seed and step, so nothing is saved."""
    kept = uniform(f"{seed}/{step}/dropout/{index}", shape) >= probability
    return (kept / (1 - probability)).astype(np.float32)
