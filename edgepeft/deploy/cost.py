"""What a bundle's task, or its bare backbone, costs to run: the operators of its graph at given sizes.

Where text is written, all rows are as long as each other and write as many tokens as they may: the most that an answer
costs.  Letters: R rows, S tokens of each (a prompt's too), n beams, N = R n texts, L tokens written before.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.text import CROSS, CROSS_BIAS, IDS, ORDER, TextGraphs
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import TaskCard
from edgepeft.common.errors import UsageError
from edgepeft.common.operators import OperatorClass, Work, product_flops
from edgepeft.graph.cost import Costs, count_run, peak_bytes
from edgepeft.graph.shapes import Spec, Walked
from edgepeft.runtime.decoding import GREEDY, Decoding

LENGTH = 128  # of the papers' throughput tables
_LONGEST_READ = 1 << 20  # tokens of a passage in windows
# Pieces of powers of two, and holes: measured on MiniLM and roberta-base, 1 x 16 to 8 x 128 and 2 x 512 tokens.
ARENA = 1.4  # of what is alive; 1.1 to 1.7
_FLOAT_BYTES = 4
_MAX_TOKENS = 1 << 20  # the distances to all of them are computed
_MAX_PLACES = 1 << 28  # rows times tokens of all rows: which token is whose is computed
_SIZES = ("flops", "read_bytes", "written_bytes", "weight_bytes")  # of an operator's work
Inputs = Mapping[str, NDArray[np.int64]]


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
        """Operations of all operators."""
        return sum(work.flops for work in self.works)

    @property
    def product_flops(self) -> int:
        """Operations of matrix products and convolutions."""
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
        """Sums over the whole run."""
        return _sums(self.works)


def bundle_cost(
    bundle: Bundle, task: str | None, batch_size: int = 1, length: int | None = None, decoding: Decoding = GREEDY
) -> Cost:
    """Count a task's graph, or the bare backbone's for None; weights are not read.

    Without a length it is 128, or as many tokens as the model takes.  Of a task that writes text, answers of as many
    tokens as ``decoding`` allows.
    """
    entry = None if task is None else bundle.entry(task)
    length = checked_length(bundle.architecture, entry, batch_size, length)
    precision, (each, tokens) = bundle.manifest.backbone.weights_dtype, read_as(bundle, task, length)
    if batch_size > (most := max(1, math.isqrt(_MAX_PLACES // tokens) // each)):
        raise UsageError(f"--batch {batch_size}: of {length} tokens each, at most {most:,} texts are counted in a run.")
    inputs = example_inputs(bundle, batch_size * each, tokens)
    if task is not None and entry is not None and entry.writes:
        from edgepeft.runtime.label_words import decoding_in

        decoding = decoding_in(bundle, task, decoding)
        counted = _count_answer(bundle.text_graphs_of(task), inputs, bundle.prompt_length(task), decoding)
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
    model: Architecture, card: TaskCard | None, batch_size: int, length: int | None, own: int | None = None
) -> int:
    """The tokens of each text: ``length``, or 128, or as many as the model, or the task's ``own`` limit, takes."""
    if batch_size < 1:
        raise UsageError(f"--batch must be at least 1; found {batch_size}.")
    prompt = 0 if card is None else card.prompt_length
    windows = card is not None and card.task_kind.windows
    longest = model.max_length - prompt
    length = min(LENGTH, longest, own or longest) if length is None else length
    if not 1 <= length <= (_LONGEST_READ if windows else longest):
        also = f" beside the task's prompt of {prompt}" if prompt else ""
        most = f"a passage has 1 to {_LONGEST_READ:,}" if windows else f"this backbone takes 1 to {longest}"
        raise UsageError(f"--length {length}: {most} tokens{'' if windows else also}.")
    return length


def example_inputs(bundle: Bundle, batch_size: int, length: int) -> dict[str, NDArray[np.int64]]:
    """What graphs read, [batch, length], of rows without padding."""
    shape = (batch_size, length)
    values = {
        "input_ids": np.full(shape, bundle.architecture.placeholder_token_id, np.int64),
        "attention_mask": np.ones(shape, np.int64),
        "token_type_ids": np.zeros(shape, np.int64),
    }
    return {name: values[name] for name in bundle.architecture.inputs}


def _sums(works: Iterable[Work]) -> dict[str, int]:
    works = list(works)
    return {"n": len(works), **{name: sum(getattr(work, name) for work in works) for name in _SIZES}}


def _count_answer(graphs: TextGraphs, inputs: Inputs, prompt: int, decoding: Decoding) -> Costs:
    """The operators of the encoder, and those of the decoder, each summed over all steps."""
    rows, length = inputs["input_ids"].shape
    encoder, steps = count_run(graphs.encoder, inputs), decoding.max_new_tokens

    def counted(texts: int, written: int) -> Costs:
        return count_run(graphs.decoder, _step(graphs.decoder, rows, texts, length + prompt, written))

    first, texts = counted(rows, 0), rows * decoding.beams
    # From the second step on everything grows by the same with each token: as many means of the first and the last.
    second, last = (counted(texts, at) for at in (1, max(1, steps - 1)))
    named = [replace(work, name=f"encoder: {work.name}") for work in encoder.works]
    for works in zip(first.works, second.works, last.works, strict=True):
        sizes = {size: [getattr(work, size) for work in works] for size in _SIZES}  # in these three steps
        sums: dict[str, Any] = {size: int(a + (steps - 1) * (b + c) // 2) for size, (a, b, c) in sizes.items()}
        # By the last step's kind: what has nothing to read in the first one does no work there.
        named.append(replace(works[-1], name=f"decoder: {works[-1].name}", **sums))
    return Costs(tuple(named), tuple(sorted({*encoder.unknown, *first.unknown})))


def written_bytes(graphs: TextGraphs, inputs: Inputs, prompt: int, decoding: Decoding) -> dict[str, int]:
    """Bytes of texts that are written at once: caches, and a pass of the decoder, or of the encoder beyond them."""
    rows, length = inputs["input_ids"].shape
    last = _step(graphs.decoder, rows, rows * decoding.beams, length + prompt, decoding.max_new_tokens - 1)
    # Keys and values that are kept between the last steps, by whose tokens they are; ``length`` has a prompt in it.
    sizes = {name: value.n_bytes for name, value in last.items() if isinstance(value, Spec)}
    cross = sum(size for name, size in sizes.items() if name.startswith(f"{CROSS}."))
    caches = {"keys and values of the texts": cross, "of what is written": sum(sizes.values()) - cross}
    encoder = peak_bytes(graphs.encoder.graph, Walked(graphs.encoder, inputs).specs, in_place=False)
    specs = Walked(graphs.decoder, last).specs
    # Logits of several beams are held three times more while a step's tokens are chosen.
    chosen = 3 * _FLOAT_BYTES * int(np.prod(specs["logits"].shape)) if decoding.beams > 1 else 0
    step = peak_bytes(graphs.decoder.graph, specs, in_place=False) + chosen
    return {**caches, "a pass": int(max(ARENA * encoder - sum(caches.values()), ARENA * step))}


def _step(
    decoder: onnx.ModelProto, rows: int, texts: int, length: int, written: int
) -> dict[str, NDArray[np.int64] | Spec]:
    """The inputs of a step that continues as many texts."""
    if written > _MAX_TOKENS:
        raise UsageError(f"{written + 1} tokens are too many to be counted; at most {_MAX_TOKENS:,} are.")
    taken = next(value for value in decoder.graph.input if value.name == CROSS_BIAS).type.tensor_type.shape.dim[0]
    rows = texts if taken.dim_param == "texts" else rows
    given: dict[str, NDArray[np.int64] | Spec] = {
        IDS: np.zeros(texts, np.int64),
        ORDER: np.zeros(texts, np.int64),
        CROSS_BIAS: Spec(onnx.TensorProto.FLOAT, (rows, 1, 1, length)),
    }
    for value in (value for value in decoder.graph.input if value.name not in given):
        dims = value.type.tensor_type.shape.dim
        heads, width = dims[1].dim_value, dims[3].dim_value
        of_texts = value.name.startswith(f"{CROSS}.")
        shape = (rows, heads, length, width) if of_texts else (texts, heads, written, width)
        given[value.name] = Spec(onnx.TensorProto.FLOAT, shape)
    return given
