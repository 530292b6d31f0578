"""Pass: a decoder's step as one graph of prompts and steps, as optimum's ``ORTModelForCausalLM`` reads it.

    input_ids, position_ids [B, S], attention_mask [B, L + S],
    past_key_values.I.key, .value [B, k, L, e]                  -> logits [B, S, v], present.I.* [B, k, L + S, e]

Tokens see those before them that the mask shows.  It has standard operators alone.

Letters: B rows, S tokens of each, L tokens so far, h heads, k heads of keys, g = h / k, e a head's width, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.base import HELPERS, Helper
from edgepeft.backbones.text import CACHED, IDS, LOGITS, PAST, PRESENT, caches
from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import Contract, all_used, standard, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.in_place import Attention, OtherForm, Reader
from edgepeft.graph.protos import copied, replace, set_aside
from edgepeft.graph.seq2seq import floats, ints, nodes

INPUT_IDS, MASK, PLACES = "input_ids", "attention_mask", "position_ids"
_Steps = Iterator[tuple[str, list[str], str, dict[str, Any]]]


@Contract(requires=[well_formed], ensures=[well_formed, all_used, standard])
def optimum_causal(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """Of a spliced step.

    Raises:
        BundleError: its attention has another form than ``llama`` writes.
    """
    model, reader = copied(decoder), Reader(decoder.graph)
    graph = model.graph
    n = sum(value.name.startswith(f"{PAST}.key.") for value in graph.input)
    try:
        layers = [reader.attention(i) for i in range(n)]
    except OtherForm:
        raise BundleError("the bundle's graph of a step has a form that is not known; export it again.") from None
    gone = {name for i, layer in enumerate(layers) for name in (layer.context, *caches(PRESENT, i))}
    gone |= {CACHED, *HELPERS.values()}
    replace(graph.node, [node for node in graph.node if gone.isdisjoint(node.output)])
    set_aside(graph, LOGITS, "causal/logits")
    logits = next(each for each in graph.output if each.name == LOGITS)
    vocabulary = logits.type.tensor_type.shape.dim[1].dim_value
    graph.node.extend(nodes([*_of_tokens(), *_mask()]))
    for i, layer in enumerate(layers):
        graph.node.extend(nodes([*_attention(i, layer)]))
    k, g, e = layers[0].heads
    sizes = {"queries": (k, g, e), "keys": (k, e), "tokens": (-1, k * g * e)}
    numbers = {**sizes, "flat": (-1,), "first": (1,), "second": (2,), "both": (1, 2), "words": (vocabulary,)}
    graph.initializer.extend(ints(f"causal/{name}", *values) for name, values in numbers.items())
    scalars = {"zero": np.int64(0), "one": np.int64(1), "shown": np.float32(0), "hidden": np.finfo(np.float32).min}
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), f"causal/{name}") for name, v in scalars.items())
    _interface(graph, n, (k, e), vocabulary)
    prune(graph)
    return model


def _of_tokens() -> _Steps:
    """The tokens of all rows one behind the other, as a step's texts are, and their logits as rows again."""
    yield ("Reshape", [INPUT_IDS, "causal/flat"], IDS, {})
    yield ("Reshape", [PLACES, "causal/flat"], HELPERS[Helper.POSITION], {})
    yield ("Shape", [INPUT_IDS], "causal/shape", {})
    yield ("Shape", [INPUT_IDS], "causal/length", {"start": 1, "end": 2})
    yield ("Squeeze", ["causal/length"], "causal/S", {})
    yield ("Size", [INPUT_IDS], "causal/T", {})
    yield ("Range", ["causal/zero", "causal/T", "causal/one"], "causal/places", {})
    yield ("Div", ["causal/places", "causal/S"], HELPERS[Helper.ROW], {})
    yield ("Range", ["causal/zero", "causal/T", "causal/S"], HELPERS[Helper.FIRST_TOKEN], {})
    for name in ("queries", "keys"):
        yield ("Concat", ["causal/shape", f"causal/{name}"], f"causal/{name}/shape", {"axis": 0})
    yield ("Concat", ["causal/shape", "causal/words"], "causal/logits/shape", {"axis": 0})
    yield ("Reshape", ["causal/logits", "causal/logits/shape"], LOGITS, {})


def _mask() -> _Steps:
    """(B, 1, 1, S, L + S): 0, or the lowest number for padding and what comes later."""
    for name, value in (("causal/before", _known("past_key_values", 0)[0]), ("causal/after", _known("present", 0)[0])):
        yield ("Shape", [value], f"{name}/one", {"start": 2, "end": 3})
        yield ("Squeeze", [f"{name}/one"], name, {})
    yield ("Range", ["causal/zero", "causal/after", "causal/one"], "causal/columns", {})
    yield ("Range", ["causal/before", "causal/after", "causal/one"], "causal/rows", {})
    yield ("Unsqueeze", ["causal/rows", "causal/first"], "causal/rows/each", {})
    yield ("Greater", ["causal/columns", "causal/rows/each"], "causal/later", {})  # (S, L + S)
    yield ("Cast", [MASK], "causal/real", {"to": TensorProto.BOOL})
    yield ("Not", ["causal/real"], "causal/padding", {})
    yield ("Unsqueeze", ["causal/padding", "causal/first"], "causal/padding/rows", {})  # (B, 1, L + S)
    yield ("Or", ["causal/later", "causal/padding/rows"], "causal/unseen", {})  # (B, S, L + S)
    yield ("Where", ["causal/unseen", "causal/hidden", "causal/shown"], "causal/bias/rows", {})
    yield ("Unsqueeze", ["causal/bias/rows", "causal/both"], "causal/bias", {})


def _attention(i: int, layer: Attention) -> _Steps:
    """A layer's, in the place of the step's own."""
    name = layer.context
    for part, value, past, present in zip(
        ("keys", "values"),
        (layer.turned[1], layer.value),
        _known("past_key_values", i),
        _known("present", i),
        strict=True,
    ):
        yield ("Reshape", [value, "causal/keys/shape"], f"{name}/{part}/rows", {})
        yield ("Transpose", [f"{name}/{part}/rows"], f"{name}/{part}/new", {"perm": [0, 2, 1, 3]})
        yield ("Concat", [past, f"{name}/{part}/new"], present, {"axis": 2})
        yield ("Unsqueeze", [present, "causal/second"], f"{name}/{part}", {})  # (B, k, 1, L + S, e)
    yield ("Transpose", [f"{name}/keys"], f"{name}/keys/turned", {"perm": [0, 1, 2, 4, 3]})
    yield ("Reshape", [layer.turned[0], "causal/queries/shape"], f"{name}/queries/rows", {})
    yield ("Transpose", [f"{name}/queries/rows"], f"{name}/queries", {"perm": [0, 2, 3, 1, 4]})  # (B, k, g, S, e)
    yield ("MatMul", [f"{name}/queries", f"{name}/keys/turned"], f"{name}/scores", {})
    yield ("Add", [f"{name}/scores", "causal/bias"], f"{name}/seen", {})
    yield ("Softmax", [f"{name}/seen"], f"{name}/shares", {"axis": -1})
    yield ("MatMul", [f"{name}/shares", f"{name}/values"], f"{name}/heads", {})
    yield ("Transpose", [f"{name}/heads"], f"{name}/rows", {"perm": [0, 3, 1, 2, 4]})
    yield ("Reshape", [f"{name}/rows", "causal/tokens"], name, {})


def _known(kind: str, layer: int) -> tuple[str, str]:
    return f"{kind}.{layer}.key", f"{kind}.{layer}.value"


def _interface(graph: onnx.GraphProto, n: int, heads: tuple[int, int], vocabulary: int) -> None:
    shapes = {INPUT_IDS: ("batch", "sequence"), MASK: ("batch", "total_sequence"), PLACES: ("batch", "sequence")}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in shapes.items()]
    outputs = [floats(LOGITS, ("batch", "sequence", vocabulary))]
    for i in range(n):
        inputs += [
            floats(name, ("batch", heads[0], "past_sequence", heads[1])) for name in _known("past_key_values", i)
        ]
        outputs += [floats(name, ("batch", heads[0], "total_sequence", heads[1])) for name in _known("present", i)]
    replace(graph.input, inputs)
    replace(graph.output, outputs)
