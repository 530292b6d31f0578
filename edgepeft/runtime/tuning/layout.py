"""How a run's steps are computed: from which hidden states on, how many rows at a time, and whether that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepeft.data.batches import Encoded
from edgepeft.errors import DoesNotFit, UsageError
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.tuning.hidden import SplitGraphs, split_at_lowest
from edgepeft.runtime.tuning.memory import Demand, MemoryBudget, allowed_memory
from edgepeft.runtime.tuning.options import TuneOptions
from edgepeft.runtime.tuning.subject import TuningSubject, deployed_graph

__all__ = ["StepLayout", "demand_of", "lay_out"]


@dataclass(frozen=True)
class StepLayout:
    """``split`` is None where no hidden states are kept, ``in_file`` says that memory has no room for them.

    ``predicted_bytes`` is the peak of resident memory; ``notes`` are for people.
    """

    micro_batch: int
    split: SplitGraphs | None
    in_file: bool
    predicted_bytes: int
    notes: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """What a resumed run must have too, for its last digits to be the same."""
        return {"micro_batch": self.micro_batch, "prefix_cache": self.split is not None}


def lay_out(
    bundle: Bundle, subject: TuningSubject, options: TuneOptions, rows: Mapping[str, Encoded], batch_size: int
) -> StepLayout:
    """Decide before anything is opened.

    Raises:
        UsageError: more rows at once than a step has.
        DoesNotFit: no step, or not the one that was asked for, fits the memory that is allowed.
    """
    asked, notes = options.micro_batch, []
    if asked is not None and asked > batch_size:
        raise UsageError(f"--micro-batch {asked} is more than the {batch_size} rows of a step.")
    allowed = allowed_memory(options.profile, options.memory)
    longest = max(rows["train"].lengths)
    demand, split = demand_of(bundle, subject, longest, prefix_cache=options.prefix_cache)
    if options.prefix_cache and split is None:
        notes.append(
            f"{subject.method} trains or adapts the embeddings or what follows them at once: no hidden state stays the "
            "same from step to step, so none is kept."
        )
    states = sum(split.n_bytes(rows[part]) for part in ("train", "eval")) if split else 0
    in_file = states > 0 and demand.n_bytes(asked or batch_size, states) > allowed.n_bytes
    if in_file:
        states = 0
        notes.append("hidden states are kept in a file: memory has no room for them.")
    micro_batch = demand.most_rows(allowed.n_bytes, states, asked or batch_size)
    if micro_batch < (asked or 1):
        raise DoesNotFit(_refusal(demand.n_bytes(asked or 1, states), asked or 1, micro_batch, longest, allowed))
    if micro_batch < batch_size and asked is None:
        notes.append(
            f"a step of {batch_size} rows is computed {micro_batch} at a time, to fit {_megabytes(allowed.n_bytes)}."
        )
    return StepLayout(micro_batch, split, in_file, demand.n_bytes(micro_batch, states), tuple(notes))


def demand_of(
    bundle: Bundle, subject: TuningSubject, longest: int, *, prefix_cache: bool
) -> tuple[Demand, SplitGraphs | None]:
    """What a run on rows of at most ``longest`` tokens takes, and where its graphs are cut."""
    whole = deployed_graph(bundle, subject)
    split = split_at_lowest(bundle, subject, whole) if prefix_cache else None
    demand = Demand(
        training=split.training if split else subject.training,
        deployed=split.deployed if split else whole,
        below=split.below if split else None,
        whole=whole,
        architecture=bundle.architecture,
        trained_bytes=sum(tensor.nbytes for tensor in subject.tensors().values()),
        n_outputs=subject.n_outputs,
        longest=longest,
    )
    return demand, split


def _refusal(n_bytes: int, asked: int, fits: int, longest: int, allowed: MemoryBudget) -> str:
    needed = _megabytes(n_bytes)
    given = f"{_megabytes(allowed.n_bytes)} are allowed by {allowed.by}"
    if fits:
        return (
            f"a step of {asked} rows of {longest} tokens at once takes about {needed}; {given}. "
            f"--micro-batch {fits} fits, and gives the same result."
        )
    return (
        f"even one row of {longest} tokens takes about {needed}; {given}. No batch size fits. Allow more memory, or "
        "tune a method that leaves the lower layers alone (skip_layers, top-k), whose weights are then not needed."
    )


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB"
