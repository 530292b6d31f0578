"""What a bundle's task, or its bare backbone, costs to run: the operators of its graph at given sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UsageError
from edgepeft.common.operators import OperatorClass, Work, product_flops
from edgepeft.deploy.text_sizes import count_answer
from edgepeft.graph.cost import count_run
from edgepeft.runtime.decoding import GREEDY, Decoding

__all__ = ["Cost", "bundle_cost", "checked_length", "example_inputs", "read_as"]

LENGTH = 128  # of the papers' throughput tables
_LONGEST_READ = 1 << 20  # tokens of a passage in windows


@dataclass(frozen=True)
class Cost:
    """One run of ``batch_size`` rows of ``length`` tokens, none of them padding, in one pass."""

    task: str | None
    batch_size: int
    length: int
    precision: str  # of the backbone's products
    works: tuple[Work, ...]
    unknown: tuple[str, ...]
    decoding: Decoding | None = None  # of a task that writes text: as many tokens as it allows
    read_as: tuple[int, int] | None = None  # token rows that each text is, and their tokens, where it is not one row

    @property
    def flops(self) -> int:
        """Of all operators."""
        return sum(work.flops for work in self.works)

    @property
    def product_flops(self) -> int:
        """Of matrix products and convolutions."""
        return product_flops(self.works)

    def by_operator(self) -> list[dict[str, Any]]:
        """A row for each type of operator that does something, the most FLOPs first; bookkeeping is one row."""
        groups: dict[tuple[str, str], list[Work]] = {}
        for work in self.works:
            if work.flops or work.n_bytes:
                op = "integers" if work.kind is OperatorClass.INDEX else work.op
                groups.setdefault((op, work.kind.value), []).append(work)
        rows = [{"op": op, "class": kind, **_sums(works)} for (op, kind), works in groups.items()]
        return sorted(rows, key=lambda row: (-row["flops"], -row["read_bytes"], row["op"]))

    def totals(self) -> dict[str, int]:
        """Of the whole run."""
        return _sums(self.works)


def bundle_cost(
    bundle: Bundle, task: str | None, batch_size: int = 1, length: int | None = None, decoding: Decoding = GREEDY
) -> Cost:
    """Count a task's graph, or the bare backbone's for None; weights are not read.

    Without a length it is 128, or as many tokens as the model takes.  Of a task that writes text, answers of as many
    tokens as ``decoding`` allows.

    Raises:
        UnknownName: no such task.
        UsageError: no rows, or longer ones than the model takes.
        BundleError: a damaged bundle.
    """
    length = checked_length(bundle, task, batch_size, length)
    precision, (each, tokens) = bundle.manifest.backbone.weights_dtype, read_as(bundle, task, length)
    inputs = example_inputs(bundle, task, batch_size * each, tokens)
    if task is not None and bundle.entry(task).writes:
        counted = count_answer(bundle.text_graphs_of(task), inputs, bundle.prompt_length(task), decoding)
        return Cost(task, batch_size, length, precision, *counted, decoding)
    counted = count_run(bundle.graph(task), inputs)
    shown = None if (each, tokens) == (1, length) else (each, tokens)
    return Cost(task, batch_size, length, precision, *counted, read_as=shown)


def read_as(bundle: Bundle, task: str | None, length: int) -> tuple[int, int]:
    """The token rows that a text of that length is to a task, and the tokens of each."""
    if task is None:
        return 1, length
    entry = bundle.entry(task)
    return entry.task_kind.read_as(length, entry.max_length)


def checked_length(
    bundle: Bundle, task: str | None, batch_size: int, length: int | None, own: int | None = None
) -> int:
    """The tokens of each text: ``length``, or 128, or as many as the model, or the task's ``own`` limit, takes.

    Raises:
        UnknownName: no such task.
        UsageError: no rows, or longer ones than the model takes.
    """
    if batch_size < 1:
        raise UsageError(f"--batch must be at least 1; found {batch_size}.")
    entry = None if task is None else bundle.entry(task)
    prompt = 0 if entry is None else entry.prompt_length
    windows = entry is not None and entry.task_kind.windows
    longest = bundle.architecture.max_length - prompt
    length = min(LENGTH, longest, own or longest) if length is None else length
    if not 1 <= length <= (_LONGEST_READ if windows else longest):
        also = f" beside the task's prompt of {prompt}" if prompt else ""
        most = f"a passage has 1 to {_LONGEST_READ:,}" if windows else f"this backbone takes 1 to {longest}"
        raise UsageError(f"--length {length}: {most} tokens{'' if windows else also}.")
    return length


def example_inputs(bundle: Bundle, task: str | None, batch_size: int, length: int) -> dict[str, NDArray[np.int64]]:
    """Token ids, mask and token types [batch, length] of rows without padding, as the graph names them."""
    shape = (batch_size, length)
    values = {
        "input_ids": np.full(shape, bundle.architecture.placeholder_token_id, np.int64),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }
    writes = task is not None and bundle.entry(task).writes
    graph = (bundle.text_graphs_of(task).encoder if writes else bundle.graph(task)).graph
    return {value.name: values[value.name] for value in graph.input if value.name in values}


def _sums(works: Iterable[Work]) -> dict[str, int]:
    works = list(works)
    return {
        "n": len(works),
        "flops": sum(work.flops for work in works),
        "read_bytes": sum(work.read_bytes for work in works),
        "written_bytes": sum(work.written_bytes for work in works),
        "weight_bytes": sum(work.weight_bytes for work in works),
    }
