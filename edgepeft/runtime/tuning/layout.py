"""How a run's steps are computed: from which hidden states on, how many rows at a time, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgepeft.data.batches import Encoded
from edgepeft.errors import UsageError
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.tuning.evaluation import deployed_graph
from edgepeft.runtime.tuning.hidden import Split, split_at_lowest
from edgepeft.runtime.tuning.options import TuneOptions
from edgepeft.runtime.tuning.subject import Subject

__all__ = ["Layout", "lay_out"]


@dataclass(frozen=True)
class Layout:
    """``split`` is None where nothing is kept; ``in_file`` says where it is kept; ``notes`` are for people."""

    micro_batch: int
    split: Split | None
    in_file: bool
    notes: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """What a resumed run must have too, for its last digits to be the same."""
        return {"micro_batch": self.micro_batch, "prefix_cache": self.split is not None}


def lay_out(
    bundle: Bundle, subject: Subject, options: TuneOptions, rows: Mapping[str, Encoded], batch_size: int
) -> Layout:
    """Decide before anything is opened."""
    if options.micro_batch is not None and options.micro_batch > batch_size:
        raise UsageError(f"--micro-batch {options.micro_batch} is more than the {batch_size} rows of a step.")
    notes = []
    split = split_at_lowest(bundle, subject, deployed_graph(bundle, subject)) if options.prefix_cache else None
    if options.prefix_cache and split is None:
        notes.append(
            f"{subject.method} trains or adapts the embeddings or what follows them at once: no hidden state stays the "
            "same from step to step, so none is kept."
        )
    return Layout(options.micro_batch or batch_size, split, False, tuple(notes))
