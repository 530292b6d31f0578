"""One worker's job: which workload, on what model, with which batches.  Plain data, sent as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import UsageError

if TYPE_CHECKING:
    from edgepeft.tasks.base import TaskType

Batches = tuple[tuple[int, ...], ...]  # token counts: [batch][row]


def batches_of(lengths: Sequence[int], batch_size: int) -> Batches:
    """Cut lengths into batches in arrival order; a remainder smaller than a batch is left out.

    Every sample then answers the same number of texts.  Fewer texts than one batch are one batch.
    """
    whole = len(lengths) // batch_size * batch_size
    return tuple(tuple(lengths[i : i + batch_size]) for i in range(0, whole, batch_size)) or (tuple(lengths),)


def random_batch(lengths: Sequence[int], *, vocab_size: int, pad_id: int, seed: int) -> dict[str, NDArray[np.int64]]:
    """Draw random ids, their mask and token types of zero, each [batch, longest]; rows end with ``pad_id``.

    Ids come from the upper part of the vocabulary, where no family keeps its special tokens.
    """
    width = max(lengths)
    mask = (np.arange(width) < np.asarray(lengths)[:, None]).astype(np.int64)
    low = min(1000, vocab_size // 2)  # BERT's [unused] and special entries lie below 1000
    drawn = np.random.default_rng(seed).integers(low, vocab_size - 1, mask.shape)
    drawn += drawn >= pad_id  # never the padding id: RoBERTa counts positions from it
    ids = np.where(mask == 1, drawn, pad_id)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


_drawn = cache(random_batch)  # drawing ids must not be part of what is timed after the first use
_ALWAYS = ("workload", "threads", "batches")  # sent to a worker; older versions require the last
StepFunction = Callable[[int], None]  # does one unit of work on batch number i


@dataclass(frozen=True)
class Prepared:
    """A workload that is loaded: its step, and what the result says about it."""

    step: StepFunction
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One unit under measurement."""

    workload: str  # a function's name in ``edgepeft/bench/workloads``, elsewhere with its module
    threads: int
    batches: Batches = ()
    bundle: str = ""  # the folder of the backbone and its tasks
    task: str | None = None  # None for the bare backbone
    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    n_labels: int = 2
    kind: str | None = None  # the task's
    new_tokens: int = 0  # that are written of each text
    model: str | None = None  # a peer's ONNX file
    vocab_size: int = 0
    pad_id: int = 0
    seed: int = 0
    cache: bool = True  # sessions map the user's prepacked weights
    package: str = ""  # the folder of another version of edgepeft, whose worker it is for; not sent to the worker

    def batch(self, index: int) -> dict[str, NDArray[np.int64]]:
        """Ids, mask and token types of batch ``index``, each [batch, longest]; equal in every worker."""
        seed = self.seed + index
        return _drawn(self.batches[index], vocab_size=self.vocab_size, pad_id=self.pad_id, seed=seed)

    def task_kind(self) -> TaskType:
        """The task's kind, with labels that are numbers; one label of several, or a number, where none is named."""
        from edgepeft.tasks.base import kind_from_card, kind_named  # most jobs have no task

        labels = tuple(map(str, range(self.n_labels)))
        if self.kind is None:
            return kind_from_card(None, labels if self.n_labels > 1 else None, "")
        kind = kind_named(self.kind)
        return kind(labels if kind.has_labels else None)

    def to_json(self) -> str:
        """One line of JSON; fields at their default are left out, so that older versions can read it."""
        usual, own = asdict(Job("", 0)), {name: value for name, value in asdict(self).items() if name != "package"}
        return json.dumps({name: value for name, value in own.items() if name in _ALWAYS or value != usual[name]})

    def known_to(self, names: Collection[str], version: str) -> Job:
        """Check that a worker of another version, whose Job has the fields ``names``, can do this job; return it."""
        sent = json.loads(self.to_json())
        if unknown := sorted(sent.keys() - set(names)):
            raise UsageError(f"--against {version}: its workers know no {', '.join(unknown)}; leave that option out.")
        return self

    @classmethod
    def from_json(cls, line: str) -> Job:
        """The job that ``to_json`` wrote."""
        document = json.loads(line)
        document["batches"] = tuple(tuple(batch) for batch in document.get("batches", ()))
        return cls(**document)
