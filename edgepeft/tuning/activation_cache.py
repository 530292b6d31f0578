"""The hidden states below what is trained: computed once for each row by the deployed graph, read in every epoch.

They are stored without padding, in memory or in a file that has no name, so that nothing is left of it when the run
is killed; or, where a process does few steps and the next goes on, in a file that all of them read.
"""

import hashlib
import os
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.packing import LONGER
from edgepeft.common.atomic import replacing
from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.common.resources import checksum
from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.training_loop.engine import SCORED_ROWS
from edgepeft.graph.cut import above, below
from edgepeft.graph.gradient.rule import Backward, measured
from edgepeft.graph.gradient.training import TrainingFacts, with_gradients, with_loss
from edgepeft.graph.protos import ancestors, reads, trace_back, writers
from edgepeft.graph.validate import check_standard
from edgepeft.runtime.inputs import passes
from edgepeft.runtime.session import failing_as, open_session

_KEPT = ".hidden"
_FLOAT_BYTES = 4
_PRODUCTS = {"Gemm", "MatMul", "MatMulInteger"}
_SAME = {"Identity", "Reshape"}
_SHAPES = {"Shape", "Size"}  # what they give does not depend on the values that they read


@dataclass(frozen=True)
class HiddenState:
    """One value of the graph; ``by_row`` where a row of data has one of it, and not each of its tokens."""

    name: str
    by_row: bool
    width: int


@dataclass(frozen=True)
class SplitGraphs:
    """The deployed graph from ``states`` on, and what computes these."""

    states: tuple[HiddenState, ...]
    below: onnx.ModelProto
    deployed: onnx.ModelProto

    def n_bytes(self, rows: Encoded) -> int:
        """Bytes of the states of these rows."""
        lengths = rows.token_lengths
        counts = {False: sum(lengths), True: len(lengths)}
        return sum(_FLOAT_BYTES * state.width * counts[state.by_row] for state in self.states)


def training_graph(
    deployed: onnx.ModelProto,
    facts: TrainingFacts,
    checkpoint: Checkpoint,
    *,
    prefix_cache: bool,
    backward: Backward = "int8",
) -> tuple[onnx.ModelProto, SplitGraphs | None]:
    """Make what steps run, and cut it and the deployed graph, whose trained tensors are inputs.

    The cut is None where the embeddings, or what follows them at once, are trained or adapted: there is nothing to
    compute once; and where a decoder has several states for a row, one for each node of its labels.
    """
    try:
        check_standard(deployed)
    except onnx.checker.ValidationError as error:
        raise BundleError(f"the task's graph is damaged: {str(error).strip():.200}") from error
    forward = with_loss(deployed, facts)
    samples = measured(forward)
    live = set(facts.leaves)  # values that depend on these; nodes are sorted, as ``prune`` leaves them
    for node in deployed.graph.node:
        if node.op_type not in _SHAPES and not live.isdisjoint(reads(node)):
            live.update(node.output)
    frozen = _frozen_states(deployed.graph, live, checkpoint.tensors)
    lowest = _lowest_states(deployed.graph, live, {name for name in frozen if not name.endswith(LONGER)})
    if not (prefix_cache and lowest):
        return with_gradients(forward, facts, samples, backward), None
    rows = [sample["attention_mask"].shape[0] for sample in samples]
    shapes = {name: [sample[name].shape for sample in samples] for name in lowest}
    for shape in shapes.values():
        times = {divmod(size[0], n) for size, n in zip(shape, rows, strict=True)}  # tokens are not alike in all samples
        if len(times) == 1 and times != {(1, 0)} and next(iter(times))[1] == 0:
            return with_gradients(forward, facts, samples, backward), None
    states = tuple(HiddenState(n, [s[0] for s in shapes[n]] == rows, shapes[n][0][-1]) for n in lowest)
    axes: dict[str, tuple[str | int, ...]] = {s.name: ("batch" if s.by_row else "tokens", s.width) for s in states}
    training = with_gradients(above(forward, axes), facts, samples, backward)
    return training, SplitGraphs(states, below(deployed, *lowest), above(deployed, axes))


class HiddenStates:
    """Those of some token rows; ``folder`` is where the file lies, None keeps them in memory; ``kept`` is the file that
    is read where it is whole, and written else."""

    def __init__(self, states: Sequence[HiddenState], rows: Encoded, folder: Path | None, kept: Path | None = None):
        self._states, self._lengths = states, rows.token_lengths
        self._starts = [0, *accumulate(self._lengths)]
        counts = [len(self._lengths) if state.by_row else self._starts[-1] for state in states]
        sizes = [count * state.width for count, state in zip(counts, states, strict=True)]
        if kept is not None and _whole(kept, _FLOAT_BYTES * sum(sizes)):
            self._stored: NDArray[np.float32] = np.memmap(kept, np.float32, "r", shape=(sum(sizes),))
            self._there, self._kept = True, None
        else:  # ``kept`` is to be written
            self._stored, self._there, self._kept = _room(sum(sizes), folder), False, kept
        ends = [0, *accumulate(sizes)]
        self._values = [
            self._stored[begin:end].reshape(count, state.width)
            for begin, end, count, state in zip(ends, ends[1:], counts, states, strict=False)
        ]

    def fill(self, model: onnx.ModelProto, bundle: Path, rows: Encoded, threads: int | None) -> Iterator[int]:
        """Compute them, packed, by the split's ``below``, unless they were read; yields each batch's rows."""
        if self._there:
            yield len(rows.targets)
            return
        session = open_session(model, bundle, threads)
        known, outputs = [value.name for value in session.get_inputs()], [state.name for state in self._states]
        for chosen in sorted_batches(rows.lengths, SCORED_ROWS):
            inputs, _ = rows.batch(chosen)
            read = rows.token_rows(chosen)
            for part, given in passes(inputs):
                of = [read[i] for i in part]
                with failing_as("stops below the trained layers"):
                    computed = session.run(outputs, {name: given[name] for name in known})
                for state, values, packed in zip(self._states, self._values, computed, strict=True):
                    values[self._places(state, of)] = packed
            yield len(chosen)
        if self._kept is not None:
            with replacing(self._kept) as temporary:
                self._stored.tofile(temporary)
                written = checksum(temporary)
                with temporary.open("ab") as file:
                    file.write(written.encode())

    def packed(self, chosen: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """[tokens, width], or [token rows, width] of what a token row has one of."""
        return {
            state.name: values[self._places(state, chosen)]
            for state, values in zip(self._states, self._values, strict=True)
        }

    def _places(self, state: HiddenState, chosen: Sequence[int]) -> NDArray[np.intp]:
        if state.by_row:
            return np.array(chosen, np.intp)
        return np.concatenate([np.arange(self._starts[i], self._starts[i + 1]) for i in chosen])


def hidden_states(
    split: SplitGraphs, parts: Mapping[str, Encoded], weights_sha256: str, *, folder: Path | None, kept: Path | None
) -> dict[str, HiddenStates]:
    """Make the hidden states of each part's rows, to be filled; in the folder ``kept`` no file of others stays."""
    if kept is None:
        return {part: HiddenStates(split.states, rows, folder) for part, rows in parts.items()}
    files = {}
    for part, rows in parts.items():  # named by what the states follow from: the graph, the weights, the rows
        digest = hashlib.sha256(split.below.SerializeToString(deterministic=True))
        digest.update(weights_sha256.encode())
        for name, column in sorted(rows.columns.items()):
            digest.update(name.encode())
            for values in column:
                digest.update(np.asarray(values, "<i8").tobytes() + b"|")
        files[part] = kept / f"{digest.hexdigest()[:32]}{_KEPT}"
    for old in {*kept.glob(f"*{_KEPT}")} - {*files.values()}:
        old.unlink(missing_ok=True)
    return {part: HiddenStates(split.states, rows, folder, files[part]) for part, rows in parts.items()}


def _whole(kept: Path, n_bytes: int) -> bool:
    """Whether a file holds so many bytes of hidden states, as they were written, and their checksum after them."""
    if not n_bytes or not kept.is_file():
        return False
    with kept.open("rb") as file:
        file.seek(n_bytes)
        return file.read() == checksum(kept, n_bytes).encode()


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


def _frozen_states(graph: onnx.GraphProto, live: Container[str], tensors: Container[str]) -> set[str]:
    """Outputs of the backbone's maps and norms, inputs of maps, that are not live; ``tensors`` are the checkpoint's."""
    writer = writers(graph)
    states = set()
    for node in (node for node in graph.node if node.output[0] not in live):  # that add a bias of the checkpoint
        own = node.input if node.op_type == "Add" else node.input[2:3]
        if node.op_type in ("Add", "Gemm", "LayerNormalization") and any(name in tensors for name in own):
            states.add(node.output[0])
    for node in graph.node:  # those that multiply by a matrix of the checkpoint, forwards: [in, out]
        by_matrix = node.op_type == "Gemm" and trace_back(node.input[1], writer, {"Transpose"})[-1] in tensors
        if by_matrix and node.input[0] not in live:
            states.update({node.input[0]} if states.isdisjoint(trace_back(node.input[0], writer, _SAME)) else ())
    return states


def _lowest_states(graph: onnx.GraphProto, live: Container[str], states: Container[str]) -> tuple[str, ...]:
    """Choose of ``states`` those from which everything live follows without a product below it being computed again:
    none where only embeddings stand below.  Needs a graph without unused nodes."""
    writer = writers(graph)
    changed = [node for node in graph.node if any(value in live for value in node.output)]
    edge = [value for node in changed for value in reads(node) if value not in live]
    below = ancestors(edge, writer, {value for value in writer if value in states})
    met = {value for node in below for value in reads(node)} | set(edge)
    order = [value for node in graph.node for value in node.output if value in met and value in states]
    kept = set(order)
    for value in reversed(order):  # what follows from the others by sums and norms alone need not be kept
        if not any(node.op_type in _PRODUCTS for node in ancestors([value], writer, kept - {value})):
            kept.remove(value)
    return tuple(value for value in order if value in kept)
