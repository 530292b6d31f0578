"""A step on a board: a training graph in ONNX Runtime gives the loss and the gradients of a batch, then AdamW in NumPy.

AdamW (Loshchilov & Hutter, 2019, arXiv:1711.05101, algorithm 2), step by step as PyTorch's:

theta <- theta (1 - eta lambda)
m <- b1 m + (1 - b1) g        v <- b2 v + (1 - b2) g^2
theta <- theta - eta / (1 - b1^t)  m / (sqrt(v) / sqrt(1 - b2^t) + eps)
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.common.frozen_random import map_ahead
from edgepeft.data.columns import NO_TARGET
from edgepeft.data.row_grouping import RowGrouping, mean_matrix, members, places_of
from edgepeft.data.training_loop.engine import Arrays
from edgepeft.deploy.verify import run_in_groups
from edgepeft.device.machine import thread_count
from edgepeft.graph.external_data import generator_of
from edgepeft.graph.gradient.training import TrainingFacts
from edgepeft.graph.names import LABELS, LOGITS, LOSS, PLACES, POOLING, SHARES, with_prefix
from edgepeft.graph.splice import prompt_in
from edgepeft.runtime.inputs import PASS_TOKENS, pack_tokens, unpack_tokens
from edgepeft.runtime.session import failing_as, session_options

Told: TypeAlias = Callable[[NDArray[Any], dict[str, Any]], dict[str, Any]]

# Folding would put what the 8 bits stand for beside every mapped matrix, where products go back in float32
# (roberta-base, pfeiffer, 8 x 64 tokens: 751 MiB resident against 459).
_COPIES_WEIGHTS = ["ConstantFolding"]
_WORDS = 2**23  # logits of a part's targets: 32 MB, of which a step holds a few copies
WRITTEN_ROWS = 16  # of an evaluation, at once: beside the step's own memory, a row of t5-base has caches of 40 MB


class StepResult(NamedTuple):
    """The loss, and ``gradients`` by tensor."""

    loss: float
    gradients: Arrays


def rows_at_once(longest: int) -> int:
    """How many rows of so many tokens a part of a step has at most."""
    return max(1, PASS_TOKENS // longest)


def targets_at_once(longest: int, words: int) -> int:
    """How many targets of so many tokens a part of a step has at most, for a decoder that knows so many words."""
    return max(1, _WORDS // (longest * words))


def _parts(lengths: Sequence[int], most_rows: int, counts: Sequence[int]) -> Iterator[list[int]]:
    """Rows that are computed at once: all, or those of like length; ``counts`` are the token rows of each."""
    order = list(range(len(lengths)))
    if len(order) > most_rows or sum(counts) > rows_at_once(max(lengths)):
        order.sort(key=lambda i: lengths[i])
    part: list[int] = []
    n_read = 0
    for i in order:
        if part and (len(part) + 1 > most_rows or n_read + counts[i] > rows_at_once(lengths[i])):
            yield part
            part, n_read = [], 0
        part.append(i)
        n_read += counts[i]
    yield part


@dataclass(frozen=True)
class StepRows:
    """A batch as a step takes it."""

    inputs: Mapping[str, Any]  # token ids and masks [token rows, length], int64
    labels: Any  # [batch, ...]
    masks: Sequence[Any]  # [token rows, width], one for each dropout; of tokens also [token rows, length, width]
    shares: NDArray[np.float32] | None = None  # [batch], of the rows in the loss; None for its mean
    most_rows: int | None = None  # of a part
    per_row: NDArray[np.int64] | None = None  # [batch], how many token rows each row is, where it may be several
    read: NDArray[np.bool_] | None = None  # [token rows, length], what the loss is over, in windows of passages
    windows: Sequence[NDArray[np.int64]] | None = None  # of each row's texts, where their logits are pooled
    # What else the graph takes of some rows: hidden states [tokens, width], where it starts from these.
    states: Callable[[Sequence[int]], Mapping[str, NDArray[Any]]] = lambda _: {}

    @property
    def counts(self) -> NDArray[np.int64]:
        """[batch], of token rows."""
        return np.ones(len(self.labels), np.int64) if self.per_row is None else self.per_row

    def parts(self, told: Told) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """The token rows of each part, and what the graph takes of it: ``told`` makes that of (mask, by row)."""
        n = len(self.labels)
        shares = np.full(n, 1 / n, np.float32) if self.shares is None else self.shares
        of_rows = {LABELS: self.labels, SHARES: shares} | ({} if self.read is None else {PLACES: self.read})
        lengths, counts = self.inputs["attention_mask"].sum(1), self.counts
        longest = np.maximum.reduceat(lengths, np.cumsum(counts) - counts).tolist()
        for part in _parts(longest, self.most_rows or n, counts.tolist()):
            read, end = members(counts, part), max(longest[i] for i in part)
            given = {name: np.ascontiguousarray(values[read, :end]) for name, values in self.inputs.items()}
            by_row = {name: values[part] for name, values in of_rows.items()}
            by_row |= {with_prefix("dropout", i): mask[read] for i, mask in enumerate(self.masks)}
            given |= told(given["attention_mask"], by_row)
            texts = counts[part]
            if self.windows is not None:
                own = [self.windows[i] for i in part]
                given[POOLING], texts = mean_matrix(np.concatenate(own)), np.array([*map(len, own)])
            given |= {} if self.per_row is None else {PLACES: places_of(texts)}
            yield read, {**given, **self.states(part)}


class TrainingStep:
    """A training graph opened over a bundle's weights; the tensors that it has gradients of are its inputs."""

    def __init__(self, graph: onnx.ModelProto, facts: TrainingFacts, folder: Path, threads: int | None = None) -> None:
        self.facts = facts
        options = session_options(threads)
        # Packed, each matrix is there twice: forward and backward read it in two layouts, neither of them the file's.
        # (roberta-base, pfeiffer, 8 x 64 tokens: 1,029 MB resident against 731, and 1.9 s a step against 1.2.)
        options.add_session_config_entry("session.disable_prepacking", "1")
        # A pattern is a block for a whole run, beside what the first run of that shape took (949 MB, for 10 % of the
        # step's time), and lengths differ from step to step.
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
        with failing_as("cannot open the training graph"):
            self._session = ort.InferenceSession(
                graph.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=_COPIES_WEIGHTS,
            )
        self._prompt = prompt_in(graph.graph)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = [LOSS, *(with_prefix("gradient", leaf) for leaf in self.facts.leaves)]

    def __call__(
        self, tensors: Mapping[str, Any], rows: StepRows, *, back: Callable[[Arrays], Arrays] = lambda found: found
    ) -> StepResult:
        """Loss and gradients of a batch, summed over parts of at most ``PASS_TOKENS`` tokens, padding included.

        ``tensors`` are those that the graph gives a gradient of; ``back`` says what to sum of a part's gradients.
        """
        loss, total, whole = 0.0, dict[str, NDArray[Any]](), None
        if self.facts.kind.whole_batch:
            whole, rows = self._slopes(tensors, rows)
        for _, given in rows.parts(self._told):
            results = self.run(self._outputs, tensors, given)
            loss += float(results.pop(0))
            found = back({name: results.pop(0) for name in self.facts.leaves})  # taken out: they are let go one by one
            for name, new in found.items():
                total[name] = np.add(total[name], new, out=new) if name in total else new
        return StepResult(loss if whole is None else whole, total)

    def loss(self, tensors: Mapping[str, Any], rows: StepRows) -> float:
        """The loss of ``__call__``, without the way back."""
        if self.facts.kind.whole_batch:
            return self._slopes(tensors, rows)[0]
        return sum(float(self.run([LOSS], tensors, given)[0]) for _, given in rows.parts(self._told))

    def logits(
        self, tensors: Mapping[str, Any], inputs: Mapping[str, NDArray[np.int64]], most_rows: int
    ) -> NDArray[np.float32]:
        """Logits [rows, (length,) outputs] as a step computes them from token ids, ``most_rows`` at once."""

        def group(given: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
            starts = range(0, len(given["input_ids"]), most_rows)
            parts = ({n: values[i : i + most_rows] for n, values in given.items()} for i in starts)
            found = ((self.run([LOGITS], tensors, part)[0], part["attention_mask"]) for part in parts)
            per_token = self.facts.kind.per_token
            return np.concatenate([unpack_tokens(logits, mask) if per_token else logits for logits, mask in found])

        return run_in_groups(group, inputs)

    def _slopes(self, tensors: Mapping[str, Any], rows: StepRows) -> tuple[float, StepRows]:
        """The loss of a whole batch, and its rows for the way back: labels are the loss's derivatives by logits."""
        kind, n = self.facts.kind, len(rows.labels)
        texts = rows.counts if rows.windows is None else np.array([*map(len, rows.windows)])
        grouping = RowGrouping(None if rows.windows is None else np.concatenate(rows.windows), texts)
        nothing, ones = np.zeros((n, int(texts.max()), kind.n_outputs), np.float32), np.ones(n, np.float32)
        logits = np.empty((len(rows.inputs["input_ids"]), kind.n_outputs), np.float32)
        for read, given in replace(rows, labels=nothing, shares=ones).parts(self._told):
            (logits[read],) = self.run([LOGITS], tensors, given)
        loss, slopes = kind.slopes(grouping.by_row(logits, "mean"), rows.labels)
        return loss, replace(rows, labels=slopes.astype(np.float32), shares=ones)

    def _told(self, mask: NDArray[Any], by_row: dict[str, Any]) -> dict[str, Any]:
        """Give ``by_row`` as it is, or for each packed token where the task answers for these."""
        if not self.facts.kind.per_token:
            return by_row
        shape, found = mask.shape, dict[str, Any]()
        fills: dict[str, float] = {LABELS: NO_TARGET, SHARES: 0.0}
        if self.facts.kind.passages:  # labels are of their windows, and places of packed tokens
            found = {name: by_row.pop(name) for name in fills}
            starts = np.cumsum(mask.sum(1) + self._prompt) - mask.sum(1)
            there = by_row.pop(PLACES)[:, : shape[1]] & (mask != 0)
            found[PLACES] = np.where(there, starts[:, None] + np.arange(shape[1]), -1)
        for name, values in by_row.items():
            width = values.shape[-1:] if name not in fills else ()  # of dropout
            by_token = values if values.ndim == len(shape) + len(width) else values[:, None]
            cut = by_token[:, : shape[1]]
            found[name] = pack_tokens(np.broadcast_to(cut, (*shape, *width)), mask, self._prompt, fills.get(name, 1.0))
        return found

    def run(self, outputs: Sequence[str], tensors: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Some of the graph's outputs, of what it has as inputs; a deployed one has no more than its logits."""
        given, options = {**tensors, **inputs}, ort.RunOptions()
        options.only_execute_path_to_fetches = True
        rows, length = inputs["input_ids"].shape
        with failing_as(f"stops in the training graph, with {rows} rows of {length} tokens"):
            return list(self._session.run(outputs, {name: given[name] for name in self._inputs}, options))


class Expansion:
    """Between what is trained and what graphs take: one vector and its scales make every tensor of the backbone.

    By a delta graph's recipe; the identity where it has none.  Tensors are made before a step, and gradients go the way
    back after it and are let go, a few at a time: all of either kind are as large as the backbone.
    """

    def __init__(
        self, delta: onnx.ModelProto, facts: TrainingFacts, checkpoint: Checkpoint, threads: int | None = None
    ) -> None:
        self._generator = generator_of(delta) if facts.generated else None
        self._facts, self._checkpoint, self._threads = facts, checkpoint, thread_count(threads)

    def inputs(self, trained: Arrays) -> Arrays:
        """Make the inputs of graphs, by ``facts.leaves``."""
        generator, checkpoint = self._generator, self._checkpoint
        if generator is None:
            return trained
        names = self._facts.generated
        made = map_ahead(lambda name: generator.tensor(name, trained, checkpoint), names, self._threads)
        return {**trained, **dict(zip(names, made, strict=True))}

    def gradients(self, trained: Arrays, found: Arrays) -> Arrays:
        """Gradients of what is trained, from those of the graphs' inputs, which are taken out of ``found``."""
        generator = self._generator
        if generator is None:
            return found
        parts = map_ahead(
            lambda name: generator.back(name, found.pop(name), trained), self._facts.generated, self._threads
        )
        totals = {name: np.zeros_like(trained[name]) for name in (generator.vector, generator.scales)}
        for part in parts:
            for name, share in part.items():
                totals[name] += share
        return {**found, **totals}


_TINY = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm
_BETAS, _EPS = (0.9, 0.999), 1e-8  # PyTorch's defaults


@dataclass
class AdamW:
    """``rates`` and the moments by tensor; the moments start at zero with a tensor's first gradient."""

    rates: Mapping[str, float]
    weight_decay: float = 0.0
    steps: int = 0
    first: Arrays = field(default_factory=dict)
    second: Arrays = field(default_factory=dict)

    def update(self, trained: Arrays, gradients: Arrays, factor: float = 1.0) -> None:
        """One step, in place; ``factor`` multiplies every rate (the schedule)."""
        self.steps += 1
        b1, b2 = _BETAS
        for name, slope in gradients.items():
            rate, tensor = self.rates[name] * factor, trained[name]
            m = self.first.setdefault(name, np.zeros_like(tensor))
            v = self.second.setdefault(name, np.zeros_like(tensor))
            tensor *= np.float32(1 - rate * self.weight_decay)
            m += np.float32(1 - b1) * (slope - m)
            v *= np.float32(b2)
            v += np.float32(1 - b2) * slope * slope
            denominator = np.sqrt(v) / np.float32(math.sqrt(1 - b2**self.steps)) + np.float32(_EPS)
            tensor -= np.float32(rate / (1 - b1**self.steps)) * (m / denominator)


def clip(gradients: Arrays, most: float) -> float:
    """Scale all gradients, in place, so that their common norm is at most ``most``; the norm before."""
    norm = math.sqrt(sum(float(np.square(each, dtype=np.float64).sum()) for each in gradients.values()))
    if math.isfinite(norm) and norm + _TINY > most:
        scale = np.float32(most / (norm + _TINY))
        for each in gradients.values():
            np.multiply(each, scale, out=each)
    return norm
