"""What writing text takes at given sizes: the operations of an answer, the memory of its caches and of a step.

All rows are as long as each other and write as many tokens as they may: the most that an answer costs.

Letters: R rows, S tokens of each (a prompt's too), n beams, N = R n texts, L tokens written before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.backbones.text import CROSS, CROSS_BIAS, IDS, ORDER, TextGraphs
from edgepeft.common.errors import UsageError
from edgepeft.common.operators import Work
from edgepeft.graph.cost import Costs, count_run
from edgepeft.graph.liveness import peak_bytes
from edgepeft.graph.shapes import Spec, walk
from edgepeft.runtime.decoding import Decoding

__all__ = ["count_answer", "written_bytes"]

_ARENA = 1.4  # pieces of powers of two, and holes, as ``fit`` has them
_FLOAT_BYTES = 4
_MOST_TOKENS = 1 << 20  # the distances to all of them are computed
Inputs = Mapping[str, NDArray[np.int64]]


def count_answer(graphs: TextGraphs, inputs: Inputs, prompt: int, decoding: Decoding) -> Costs:
    """The operators of the encoder, and those of the decoder, each summed over all steps.

    Raises:
        BundleError: a shape depends on weights.
        UsageError: more tokens than can be counted.
    """
    rows, length = inputs["input_ids"].shape
    encoder, steps = count_run(graphs.encoder, inputs), decoding.max_new_tokens

    def counted(texts: int, written: int) -> Costs:
        return count_run(graphs.decoder, _step(graphs.decoder, rows, texts, length + prompt, written))

    first, texts = counted(rows, 0), rows * decoding.beams
    # From the second step on everything grows by the same with each token: as many means of the first and the last.
    second, last = (counted(texts, at) for at in (1, max(1, steps - 1)))
    decoder = (_over(steps - 1, *works) for works in zip(first.works, second.works, last.works, strict=True))
    named = [replace(work, name=f"encoder: {work.name}") for work in encoder.works]
    named += [replace(work, name=f"decoder: {work.name}") for work in decoder]
    return Costs(tuple(named), tuple(sorted({*encoder.unknown, *first.unknown})))


def written_bytes(graphs: TextGraphs, inputs: Inputs, prompt: int, decoding: Decoding) -> dict[str, int]:
    """What texts that are written at once take: caches, and a pass of the decoder, or of the encoder beyond them."""
    rows, length = inputs["input_ids"].shape
    encoder, step = _pass_bytes(graphs, inputs, prompt, decoding)
    caches = _cache_bytes(graphs, rows, length + prompt, decoding)
    return {**caches, "a pass": int(max(_ARENA * encoder - sum(caches.values()), _ARENA * step))}


def _cache_bytes(graphs: TextGraphs, rows: int, length: int, decoding: Decoding) -> dict[str, int]:
    """Keys and values that are kept between the last steps, by whose tokens they are; ``length`` has a prompt in it."""
    specs = _step(graphs.decoder, rows, rows * decoding.beams, length, decoding.max_new_tokens - 1)
    sizes = {name: value.n_bytes for name, value in specs.items() if isinstance(value, Spec)}
    cross = sum(size for name, size in sizes.items() if name.startswith(f"{CROSS}."))
    return {"keys and values of the texts": cross, "of what is written": sum(sizes.values()) - cross}


def _pass_bytes(graphs: TextGraphs, inputs: Inputs, prompt: int, decoding: Decoding) -> tuple[int, int]:
    """The most that is alive while the encoder runs, and in the decoder's last step beside the caches.

    Logits of several beams are held three times more while a step's tokens are chosen.
    """
    rows, length = inputs["input_ids"].shape
    texts = rows * decoding.beams
    given = _step(graphs.decoder, rows, texts, length + prompt, decoding.max_new_tokens - 1)
    encoder = peak_bytes(graphs.encoder.graph, walk(graphs.encoder, inputs).specs, in_place=False)
    specs = walk(graphs.decoder, given).specs
    chosen = 3 * _FLOAT_BYTES * int(np.prod(specs["logits"].shape)) if decoding.beams > 1 else 0
    return encoder, peak_bytes(graphs.decoder.graph, specs, in_place=False) + chosen


def _step(
    decoder: onnx.ModelProto, rows: int, texts: int, length: int, written: int
) -> dict[str, NDArray[np.int64] | Spec]:
    """The inputs of a step that continues as many texts."""
    if written > _MOST_TOKENS:
        raise UsageError(f"{written + 1} tokens are too many to be counted; at most {_MOST_TOKENS:,} are.")
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


def _over(more: int, first: Work, second: Work, last: Work) -> Work:
    """The sum over the first step and ``more`` others."""

    def summed(name: str) -> int:
        of_first, of_second, of_last = (getattr(work, name) for work in (first, second, last))
        return int(of_first + more * (of_second + of_last) // 2)

    sizes = (summed(name) for name in ("flops", "read_bytes", "written_bytes", "weight_bytes"))
    # By the last step's kind: what has nothing to read in the first one does no work there.
    return Work(last.name, last.op, last.kind, *sizes)
