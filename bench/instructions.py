"""Instructions of one text on an emulated Cortex-A72, by each form that a task's graph can run in there.

    EDGEPEFT_ARM64_ROOT=ROOT python -m bench.instructions --backbone all-MiniLM-L6-v2 --length 32 --length 128

``bench/README.md`` says what ROOT is.  Caches, bandwidth and what a processor does at once are not in the figures: they
are no times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import onnx
import typer
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor

from bench.suites._random_bundle import Structure, write_bundle
from edgepeft.bench.planning.job import random_batch
from edgepeft.bench.qemu import CPU, Guest, find_guest, instructions_of
from edgepeft.bundle.bundle import Bundle
from edgepeft.cli._main import main
from edgepeft.common.errors import UsageError
from edgepeft.graph.cut import prune
from edgepeft.graph.joined_row import join_attention
from edgepeft.graph.one_row import for_one_row
from edgepeft.graph.protos import copied, replace
from edgepeft.graph.quantise import integer_products, lower_integers

_TASK = "task"
_ONE_ROW = "for one row"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def forms_of(graph: onnx.ModelProto, weights: Path) -> Iterator[tuple[str, onnx.ModelProto]]:
    """What ONNX Runtime can be given for a spliced graph: as it is stored, and each way to lower it."""

    def joined(parts: Sequence[TensorProto], axis: int, name: str) -> TensorProto:
        """Tensors of ``weights`` side by side."""
        whole = [copied(each) for each in parts]
        for each in whole:
            load_external_data_for_tensor(each, str(weights.parent))
        return numpy_helper.from_array(np.concatenate([*map(numpy_helper.to_array, whole)], axis), name)

    yield "as stored", graph
    join = partial(join_attention, join=joined)
    lowerings: dict[str, list[Callable[[onnx.ModelProto], object]]] = {_ONE_ROW: [for_one_row]}
    if not any(True for _ in integer_products(graph.graph)):
        lowerings[f"{_ONE_ROW}, joined"] = [for_one_row, join]
    else:
        lowerings |= {
            "lowered": [lower_integers],
            f"lowered, {_ONE_ROW}": [for_one_row, lower_integers],
            f"lowered, {_ONE_ROW}, joined (QAttention)": [for_one_row, join, lower_integers],
            f"a scale a call, {_ONE_ROW}": [for_one_row, _one_scale],
        }
    for name, passes in lowerings.items():
        lowered = copied(graph)
        for each in passes:
            each(lowered)
        yield name, lowered


def _one_scale(model: onnx.ModelProto) -> None:
    """Have every product in integers give all rows of x one scale, as ONNX Runtime's dynamic quantisation does."""
    made = {
        y: helper.make_node("DynamicQuantizeMatMul", [x, matrix, scale], [y], domain="com.microsoft")
        for x, matrix, scale, y, _ in integer_products(model.graph)
    }
    replace(model.graph.node, [made.get(node.output[0], node) for node in model.graph.node])
    prune(model.graph)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


@app.command()
def table(
    *,
    backbone: Annotated[str, typer.Option(help="A named architecture, or a folder in Hugging Face layout.")],
    length: Annotated[list[int], typer.Option(min=1, help="Tokens of the text; may repeat.")],
    method: Annotated[str, typer.Option(help="A PE method.")] = "pfeiffer",
) -> None:
    """Print millions of instructions as Markdown, in float32 and in 8 bits."""
    guest = find_guest()
    if not isinstance(guest, Guest):
        raise UsageError(f"instructions cannot be counted here: {guest}.")
    print(f"Millions of instructions on a {CPU}, onnxruntime {guest.runtime}, one thread\n")
    print(f"| weights | graph | nodes | {' | '.join(f'{each} tokens' for each in length)} |")
    print(f"|---|---|---|{'---|' * len(length)}")
    for weights in ("fp32", "int8"):
        with TemporaryDirectory() as work:
            folder = write_bundle(Path(work, "b"), backbone, [Structure(method, [_TASK])], weights=weights)
            bundle = Bundle(folder)
            sizes = bundle.architecture
            texts = [random_batch([n], vocab_size=sizes.vocab_size, pad_id=sizes.pad_token_id, seed=0) for n in length]
            for name, graph in forms_of(bundle.graph(_TASK), bundle.weights):
                row = [instructions_of(guest, graph, bundle.weights, text) for text in texts]
                shown = " | ".join(f"{each / 1e6:.1f}" for each in row)
                print(f"| {weights} | {name} | {len(graph.graph.node)} | {shown} |", flush=True)


if __name__ == "__main__":
    main(app)
