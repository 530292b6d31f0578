"""What one worker is told: which workload, on what model, with which batches.  Plain data, sent as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bench.batches import random_batch

__all__ = ["Job", "Prepared", "Step"]

Step = Callable[[int], None]  # does one unit of work on batch number i


@dataclass(frozen=True)
class Prepared:
    """A workload that is loaded: its step, and what a reader of its figures must know."""

    step: Step
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One unit under measurement.

    ``workload`` is the name of a file in ``edgepeft/bench/workloads``; ``bundle`` the folder of the
    backbone and its tasks; ``task`` None for the bare backbone; ``model`` a peer's ONNX file.
    ``batches`` holds token counts: [batch][row].  ``cache``: sessions map the user's prepacked weights.
    """

    workload: str
    threads: int
    batches: tuple[tuple[int, ...], ...] = ()
    bundle: str = ""
    task: str | None = None
    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    n_labels: int = 2
    model: str | None = None
    vocab_size: int = 0
    pad_id: int = 0
    seed: int = 0
    cache: bool = True

    def batch(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Ids and mask of batch ``index``, both [batch, longest]; equal in every worker."""
        return _batch(self.batches[index], self.vocab_size, self.pad_id, self.seed + index)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Job:
        """The job that ``to_json`` wrote."""
        document = json.loads(line)
        document["batches"] = tuple(tuple(batch) for batch in document["batches"])
        return cls(**document)


@cache
def _batch(lengths: tuple[int, ...], vocab_size: int, pad_id: int, seed: int) -> dict[str, NDArray[np.int64]]:
    # Cached: drawing ids must not be part of what is timed after the first use.
    return random_batch(lengths, vocab_size=vocab_size, pad_id=pad_id, seed=seed)
