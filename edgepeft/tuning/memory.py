"""How much memory a run will take, predicted before its first step.

Counted are what the process has now, hidden states, each session's weights (the training graph reads them from the
mapped file, each once; the others pack a matrix once for each product that reads it), the values that are alive at
once, what AdamW keeps, and tensors that are generated from what is trained.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx
import psutil

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError, DoesNotFit, UsageError
from edgepeft.data.batches import Encoded, Writing
from edgepeft.deploy.cost import example_inputs, written_bytes
from edgepeft.device.machine import memory_bytes, thread_count
from edgepeft.graph.cost import packed_bytes, peak_bytes
from edgepeft.graph.gradient.rule import specs_of
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.inputs import PASS_TOKENS as PASS
from edgepeft.tuning.activation_cache import SplitGraphs, training_graph
from edgepeft.tuning.step import WRITTEN_ROWS, rows_at_once, targets_at_once
from edgepeft.tuning.target import TuningTarget, deployed_graph

# Measured on roberta-base, 1 x 64 to 16 x 128: the arena's rounding and holes take 6 to 12 % of what is alive, and an
# open session 10 to 20 MB besides weights.
_ARENA = 1.1
SESSION = 16_000_000
_FLOAT_BYTES = 4
# A task whose tensors are generated is opened when it is put in force: in the model, in its bytes, and in the session.
# (MiniLM's shape, 86 MiB of tensors: 355 MiB.)
_GENERATED_COPIES = 4
_LOGITS = 3  # of a product, past its shape, and as they are given
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_FEWEST = 10_000  # bytes without a unit: less holds no task, and a unit was forgotten


class Demand:
    """What a run takes, by what it does, on rows of at most ``longest`` tokens; ``each`` are the token rows of the row
    that has most: they are computed at once.

    ``training`` is what steps run; evaluations run the deployed graph, or what ``split`` leaves of it from the hidden
    states on.  ``target_tokens`` are those of the longest target, where text is taught, None as many as the task may
    write: of such a task no hidden states are kept.
    """

    def __init__(
        self,
        bundle: Bundle,
        target: TuningTarget,
        longest: int,
        options: TuneSettings,
        target_tokens: int | None = None,
        *,
        each: int = 1,
    ) -> None:
        """Build the graphs, and count what does not depend on the number of rows."""
        facts, writing = target.facts, target.writing
        if target_tokens is None:
            target_tokens = 0 if writing is None else writing.max_length
        whole = deployed_graph(target.delta, facts, bundle)
        cached = options.prefix_cache and writing is None
        try:
            found = training_graph(whole, facts, bundle.checkpoint, prefix_cache=cached, backward=options.backward)
        except BundleError as error:
            raise BundleError(f"task {target.task}, of {target.method}, cannot be tuned: {error}") from error
        self.training, self.split = training, split = found
        self._longest, self._target_tokens, most, written = longest, target_tokens, rows_at_once(longest), 0
        if writing is not None:  # an evaluation's memory is there beside the step's
            most = min(most, targets_at_once(target_tokens, writing.words))
            written = _written(bundle, target, writing, longest, target_tokens)
        self._rows_at_once = max(most, each)
        # The tensors themselves, their two moments, the best ones, a step's gradients.
        trained = sum(tensor.nbytes for tensor in target.tensors().values())
        self._base = int(psutil.Process().memory_info().rss) + 5 * trained
        # Alive in a pass of the deployed graph: two values of the feed-forward, a few of the model's width.
        sizes, tokens = bundle.architecture, max(3 * PASS // 2, longest)
        width, scores = 2 * sizes.intermediate_size + 4 * sizes.hidden_size, 2 * sizes.n_heads * min(longest, tokens)
        pass_bytes = int(_ARENA * _FLOAT_BYTES * tokens * (width + scores))
        packed = packed_bytes(training.graph, shared=True) + packed_bytes((split.deployed if split else whole).graph)
        self._step = packed + pass_bytes + 2 * SESSION + written
        # Made, and gone through backwards, in as many numbers as the next power of two.
        sized = {value.name: value.type.tensor_type.shape.dim for value in whole.graph.input}
        generated = [prod(dim.dim_value for dim in sized[name]) for name in target.facts.generated]
        transforms = sorted(_FLOAT_BYTES << (size - 1).bit_length() for size in generated)
        self._step += sum(transforms[-thread_count() :])
        others = [packed_bytes(graph.graph) for graph in ([split.below, whole] if split else [whole])]
        self._others: int = max(*others, _GENERATED_COPIES * _FLOAT_BYTES * sum(generated)) + pass_bytes + SESSION
        self._alive: dict[int, int] = {}

    def n_bytes(self, rows: int, states: int) -> int:
        """The peak, where up to ``rows`` of the longest length are computed at once and ``states`` bytes are kept."""
        rows = min(rows, self._rows_at_once)
        if rows not in self._alive:
            specs = specs_of(self.training, (self._longest,) * rows, self._target_tokens)
            fed = sum(specs[value.name].n_bytes for value in self.training.graph.input)
            self._alive[rows] = int(_ARENA * peak_bytes(self.training.graph, specs)) + fed
        return self._base + states + max(self._step + self._alive[rows], self._others)


def most_within(need: Callable[[int], int], limit: int, at_most: int) -> int:
    """The most rows, up to ``at_most``, whose ``need`` in bytes stays within a limit; 0 if not even one's does."""
    if need(at_most) <= limit:
        return at_most
    one, two = need(1), need(2)  # nearly along a line: what that says is tried before the search
    guess = min(at_most - 1, 1 + (limit - one) // (two - one)) if one <= limit and two > one else 0
    if guess and need(guess) <= limit < need(guess + 1):
        return guess
    return bisect_left(range(1, at_most), True, key=lambda rows: need(rows) > limit)


@dataclass(frozen=True)
class StepLayout:
    """How steps are computed."""

    micro_batch: int  # rows at a time
    training: onnx.ModelProto  # what steps run
    split: SplitGraphs | None  # None where no hidden states are kept
    in_file: bool  # hidden states, for which memory has no room
    predicted_bytes: int  # the peak of resident memory
    notes: tuple[str, ...]  # for people

    def plain(self) -> dict[str, Any]:
        """Facts that a resumed run must share, for its last digits to be the same."""
        return {"micro_batch": self.micro_batch, "prefix_cache": self.split is not None}


def lay_out(
    bundle: Bundle, target: TuningTarget, options: TuneSettings, rows: Mapping[str, Encoded], batch_size: int
) -> StepLayout:
    """Decide before anything is opened."""
    asked, notes = options.micro_batch, []
    if asked is not None and asked > batch_size:
        raise UsageError(f"--micro-batch {asked} is more than the {batch_size} rows of a step.")
    limit, by = allowed_memory(options.profile, options.memory)
    longest, target_tokens, each = max(rows["train"].lengths), rows["train"].longest_target, rows["train"].most
    demand = Demand(bundle, target, longest, options, target_tokens, each=each)
    most = asked or batch_size
    if target.writing is not None:
        most = min(most, targets_at_once(target_tokens, target.writing.words))
    elif options.prefix_cache and demand.split is None:
        notes.append(
            f"{target.method} trains or adapts the embeddings or what follows them at once: no hidden state stays the "
            "same from step to step, so none is kept."
        )
    states = sum(demand.split.n_bytes(rows[part]) for part in ("train", "eval")) if demand.split else 0
    in_file = states > 0 and demand.n_bytes(most * each, states) > limit
    if in_file:
        states = 0
        notes.append("hidden states are kept in a file: memory has no room for them.")
    micro_batch = most_within(lambda rows: demand.n_bytes(rows, states), limit, most * each) // each
    least = 1 if asked is None else most
    if micro_batch < least:
        needed = _megabytes(demand.n_bytes(least * each, states))
        given = f"takes about {needed}; {_megabytes(limit)} are allowed by {by}"
        if micro_batch:
            raise DoesNotFit(
                f"a step of {least} rows of {longest} tokens at once {given}. --micro-batch {micro_batch} fits, and "
                "gives the same result."
            )
        raise DoesNotFit(
            f"even one row of {longest} tokens {given}. No batch size fits. Allow more memory, or tune a method that "
            "leaves the lower layers alone (skip_layers, top-k), whose weights are then not needed."
        )
    if micro_batch < most:
        notes.append(f"a step of {batch_size} rows is computed {micro_batch} at a time, to fit {_megabytes(limit)}.")
    predicted = demand.n_bytes(micro_batch * each, states)
    return StepLayout(micro_batch, demand.training, demand.split, in_file, predicted, tuple(notes))


def _written(bundle: Bundle, target: TuningTarget, writing: Writing, longest: int, target_tokens: int) -> int:
    """Bytes of an evaluation: both graphs that write and what they take; logits of losses, which the arena keeps."""
    from edgepeft.runtime.generation import rows_at_once as rows_written

    graphs = bundle.text_graphs_with(target.delta)
    decoding, length = Decoding(max_new_tokens=writing.max_length), longest + target.prompt_length
    rows = rows_written(bundle, WRITTEN_ROWS, length, decoding, memory_bytes())
    inputs = example_inputs(bundle, rows, longest)
    caches = sum(written_bytes(graphs, inputs, target.prompt_length, decoding).values())
    logits = _LOGITS * _FLOAT_BYTES * targets_at_once(target_tokens, writing.words) * target_tokens * writing.words
    return sum(packed_bytes(graph.graph) + SESSION for graph in graphs) + caches + logits


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e6:.0f} MB"


def allowed_memory(profile: str | None, asked: str | None) -> tuple[int, str]:
    """Bytes, and who says so: the least of what profile, ``--memory``, and host and control groups give."""
    budgets = [(memory_bytes(), "this host or its control group")]
    if profile is not None:
        from edgepeft.device.profiles import load_profile

        budgets.append((load_profile(profile).memory_bytes, f"profile {profile}"))
    if asked is not None:
        budgets.append((amount_of(asked), "--memory"))
    return min(budgets, key=lambda each: each[0])


def amount_of(text: str, option: str = "--memory") -> int:
    """``"1.5GiB"`` in bytes."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text, re.IGNORECASE | re.ASCII)
    if match is None or match[2].upper() not in _UNITS or float(match[1]) <= 0:
        raise UsageError(f"{option} {text!r} is no amount of memory; give one such as 800MB or 1.5GiB.")
    if not match[2] and float(match[1]) < _FEWEST:
        raise UsageError(f"{option} {text} has no unit and would be {text} bytes; give one, such as 800MB or 1.5GiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])
