"""The hidden states below what is trained: computed once for each row by the deployed graph, read in every epoch.

They are stored without padding, in memory or in a file that has no name, so that nothing is left of it when the run
is killed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.metrics import SCORED_ROWS
from edgepeft.errors import BundleError, EdgepeftError
from edgepeft.graph.cut import above, below
from edgepeft.graph.frozen import frozen_states, live_values, lowest_states
from edgepeft.graph.names import LABELS, N_LABELS, dropout
from edgepeft.graph.shapes import Spec, sized
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.passes import passes
from edgepeft.runtime.session import failing_as, open_session
from edgepeft.runtime.tuning.subject import TuningSubject, given_names

__all__ = ["TOKENS_AXIS", "HiddenState", "HiddenStates", "SplitGraphs", "split_at_lowest"]

_FLOAT_BYTES = 4


_SIZES = {"batch": 3, "length": 5}  # to tell the axes of a value apart: no product of them is another's
TOKENS_AXIS = "tokens"  # the axis batch x length


@dataclass(frozen=True)
class HiddenState:
    """One hidden state: how the two graphs call it, and how the training graph lays it out."""

    training: str
    deployed: str
    axes: tuple[str | int, ...]

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return int(self.axes[-1])

    @property
    def flat(self) -> bool:
        """Whether the training graph has it as [batch length, width]."""
        return self.axes[0] == TOKENS_AXIS

    @property
    def by_row(self) -> bool:
        """Whether a row of data has one of it, and not each of its tokens."""
        return self.axes == ("batch", self.width)


@dataclass(frozen=True)
class SplitGraphs:
    """Both graphs from ``states`` on, and what computes these."""

    states: tuple[HiddenState, ...]
    below: onnx.ModelProto
    training: onnx.ModelProto
    deployed: onnx.ModelProto

    def n_bytes(self, rows: Encoded) -> int:
        """What the states of these rows take."""
        counts = {False: sum(rows.lengths), True: len(rows.lengths)}
        return sum(_FLOAT_BYTES * state.width * counts[state.by_row] for state in self.states)


def split_at_lowest(bundle: Bundle, subject: TuningSubject, deployed: onnx.ModelProto) -> SplitGraphs | None:
    """Cut the training graph, and the deployed one whose trained tensors are inputs, below what is trained.

    None where the embeddings, or what follows them at once, are trained or adapted: there is nothing to compute once.

    Raises:
        BundleError: the two graphs do not belong together.
    """
    facts, checkpoint = subject.facts, bundle.checkpoint
    changing = [*facts.trained, LABELS, *map(dropout, range(len(facts.dropouts)))]
    graph, specs = subject.training.graph, sized(subject.training, {**_SIZES, N_LABELS: subject.n_outputs})
    live = live_values(graph, changing)
    there = frozen_states(graph, live, checkpoint.tensors, specs)
    lowest = lowest_states(graph, live, there)
    if not lowest:
        return None
    changed = live_values(deployed.graph, given_names(facts.trained))
    here = frozen_states(deployed.graph, changed, checkpoint.tensors)
    missing = [state for state in lowest if state not in here]
    if missing:
        raise BundleError(f"task {subject.task}: its graph has nothing {missing[0]}, which its training graph reads.")
    states = tuple(HiddenState(there[name], here[name], _axes(specs[there[name]])) for name in lowest)
    return SplitGraphs(
        states,
        below(deployed, *(state.deployed for state in states)),
        above(subject.training, {state.training: state.axes for state in states}),
        above(deployed, {state.deployed: (f"{state.deployed}/rows", state.width) for state in states}),
    )


def _axes(spec: Spec) -> tuple[str | int, ...]:
    batch, length, width = _SIZES["batch"], _SIZES["length"], spec.shape[-1]
    known: dict[tuple[int, ...], tuple[str | int, ...]] = {
        (batch, length, width): ("batch", "length", width),
        (batch * length, width): (TOKENS_AXIS, width),
        (batch, width): ("batch", width),
    }
    if spec.shape not in known:
        raise BundleError(f"the training graph has a hidden state of shape {list(spec.shape)}, which is unknown here.")
    return known[spec.shape]


class HiddenStates:
    """Those of some rows; ``folder`` is where the file lies, None keeps them in memory."""

    def __init__(self, states: Sequence[HiddenState], rows: Encoded, folder: Path | None) -> None:
        self._states, self._lengths = states, rows.lengths
        self._starts = [0, *accumulate(self._lengths)]
        counts = [len(self._lengths) if state.by_row else self._starts[-1] for state in states]
        sizes = [count * state.width for count, state in zip(counts, states, strict=True)]
        stored = _room(sum(sizes), folder)
        ends = [0, *accumulate(sizes)]
        self._values = [
            stored[begin:end].reshape(count, state.width)
            for begin, end, count, state in zip(ends, ends[1:], counts, states, strict=False)
        ]

    def fill(self, model: onnx.ModelProto, bundle: Path, rows: Encoded, threads: int | None) -> Iterator[int]:
        """Compute them, packed, with ``below`` of the split; yields the number of rows after each batch."""
        session = open_session(model, bundle, threads)
        known, outputs = [value.name for value in session.get_inputs()], [state.deployed for state in self._states]
        for chosen in sorted_batches(self._lengths, SCORED_ROWS):
            inputs, _ = rows.batch(chosen)
            for part, given in passes(inputs):
                of = [chosen[i] for i in part]
                with failing_as("stops below the trained layers"):
                    computed = session.run(outputs, {name: given[name] for name in known})
                for state, values, packed in zip(self._states, self._values, computed, strict=True):
                    values[np.r_[*(slice(*span) for span in self._spans(state, of))]] = packed
            yield len(chosen)

    def padded(self, chosen: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """For the training graph: [batch, longest, width], zero where there is no token."""
        longest = max(self._lengths[i] for i in chosen)
        padded = {}
        for state, values in zip(self._states, self._values, strict=True):
            if state.by_row:
                padded[state.training] = np.ascontiguousarray(values[list(chosen)])
                continue
            batch = np.zeros((len(chosen), longest, state.width), np.float32)
            for place, (begin, end) in zip(batch, self._spans(state, chosen), strict=True):
                place[: end - begin] = values[begin:end]
            padded[state.training] = batch.reshape(-1, state.width) if state.flat else batch
        return padded

    def packed(self, chosen: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """For the deployed graph: [tokens, width]."""
        return {
            state.deployed: values[np.r_[*(slice(*span) for span in self._spans(state, chosen))]]
            for state, values in zip(self._states, self._values, strict=True)
        }

    def _spans(self, state: HiddenState, chosen: Sequence[int]) -> list[tuple[int, int]]:
        if state.by_row:
            return [(i, i + 1) for i in chosen]
        return [(self._starts[i], self._starts[i + 1]) for i in chosen]


def _room(size: int, folder: Path | None) -> NDArray[np.float32]:
    """[size], in memory or in a file; a disk without room for it is found out now: a mapped file would kill later."""
    if folder is None or not size:
        return np.empty(size, np.float32)
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size * _FLOAT_BYTES)
        except OSError as error:
            raise EdgepeftError(
                f"{folder} has no room for {size * _FLOAT_BYTES / 1e6:.0f} MB of hidden states ({error.strerror}); "
                "free some space, or give --no-prefix-cache."
            ) from error
        return np.memmap(file, np.float32, "r+", shape=(size,))
