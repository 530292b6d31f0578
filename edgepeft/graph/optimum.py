"""Passes: the graphs that write text, as optimum reads them: two of encoder and decoder, or one of a decoder alone.

``ORTModelForSeq2SeqLM``:

    encoder  input_ids, attention_mask [B, S]                  -> last_hidden_state [B, P + S, d]
    decoder  input_ids [N, 1], encoder_attention_mask [N, S],
             encoder_hidden_states [N, P + S, d],
             use_cache_branch [1], past_key_values.I.*         -> logits [N, 1, v], present.I.*

The keys and values of the encoder's tokens are the decoder's there: computed in its first step, and read again in the
others (``If``).  Weights stay in their file, of which both graphs read their parts.

``ORTModelForCausalLM``, a graph of prompts and steps in standard operators, whose tokens see those before them that the
mask shows:

    input_ids, position_ids [B, S], attention_mask [B, L + S],
    past_key_values.I.key, .value [B, k, L, e]                 -> logits [B, S, v], present.I.* [B, k, L + S, e]

Letters: B rows, N texts, S tokens of each, P a prompt's, T real tokens, d hidden, h heads, k heads of keys, g = h / k,
e a head's width, L tokens so far, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex
from edgepeft.backbones.packing import REAL
from edgepeft.backbones.text import CACHED, CROSS, CROSS_BIAS, IDS, LOGITS, ORDER, PAST, PRESENT, caches
from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import Contract, all_used, standard, weights_outside, well_formed
from edgepeft.graph.cut import above, below, prune, rename_values
from edgepeft.graph.in_place import Attention, OtherForm, Reader, n_layers
from edgepeft.graph.names import STATES, adapted
from edgepeft.graph.protos import (
    Steps,
    add_constants,
    ancestors,
    copied,
    external_tensors,
    floats,
    nodes,
    replace,
    set_aside,
    writers,
)

INPUT_IDS, MASK, PLACES = "input_ids", "attention_mask", "position_ids"
_HIDDEN, _OUTPUT, _INDEX = "encoder_hidden_states", "encoder.output", "token.index"
_ENCODER_MASK, _CACHED = "encoder_attention_mask", "use_cache_branch"
_STEP, _ENCODER = "step/", "encoder/"


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, standard])
def optimum_encoder(encoder: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Make optimum's encoder of a spliced one; ``width`` is d."""
    value = _encoded(encoder)
    model = below(encoder, value)
    steps: Steps = [
        ("Shape", [REAL], "hidden/rows", {}),
        ("Concat", ["hidden/rows", "hidden/width"], "hidden/shape", {"axis": 0}),
        ("ReduceProd", ["hidden/rows"], "hidden/places", {"keepdims": 1}),
        ("Concat", ["hidden/places", "hidden/width"], "hidden/flat", {"axis": 0}),
        ("ConstantOfShape", ["hidden/flat"], "hidden/none", {}),
        ("Unsqueeze", [_INDEX, "hidden/one"], "hidden/index", {}),
        ("ScatterND", ["hidden/none", "hidden/index", value], "hidden/padded", {}),
        ("Reshape", ["hidden/padded", "hidden/shape"], STATES, {}),
    ]
    model.graph.node.extend(nodes(steps))
    model.graph.initializer.extend([_ints("hidden/width", width), _ints("hidden/one", 1)])
    replace(model.graph.output, [floats(STATES, ("batch", "length", width))])
    prune(model.graph)
    return model


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, standard])
def optimum_decoder(encoder: onnx.ModelProto, decoder: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Make optimum's decoder of both spliced graphs; ``width`` is d."""
    indexed = copied(encoder)
    indexed.graph.output.append(helper.make_tensor_value_info(_INDEX, TensorProto.INT64, ("tokens",)))
    upper = above(indexed, {_encoded(encoder): ("tokens", width)})
    value = _prefixed(upper.graph, _ENCODER)
    step = above(decoder, {})
    _prefixed(step.graph, _STEP)
    past = next(each for each in decoder.graph.input if each.name == caches(PAST, 0)[0])
    heads, size = (past.type.tensor_type.shape.dim[axis].dim_value for axis in (1, 3))
    layers = range(n_layers(decoder.graph))
    outside, inside = _parted(upper.graph)
    all_nodes = [*nodes(_read(value(_encoded(encoder)))), *outside, _cross(inside, layers)]
    all_nodes += [*nodes(_steps(layers)), *step.graph.node]
    numbers = {"width": width, "all": -1, "one": 1, "heads": heads, "size": size}
    constants = [_ints(f"ints/{name}", number) for name, number in numbers.items()]
    constants += [helper.make_tensor(f"ints/{i}", TensorProto.INT64, [], [i]) for i in (0, 1)]
    weights = {tensor.name: tensor for part in (upper, step) for tensor in part.graph.initializer}
    inputs, outputs = _inputs_and_outputs(step, layers, (heads, size), width)
    graph = helper.make_graph(all_nodes, "decoder", inputs, outputs, [*weights.values(), *constants])
    prune(graph)
    return helper.make_model(graph, opset_imports=decoder.opset_import, ir_version=decoder.ir_version)


def _encoded(encoder: onnx.ModelProto) -> str:
    """What attention to the encoder reads: its output, or what a delta makes of it."""
    return adapted(_OUTPUT) if adapted(_OUTPUT) in writers(encoder.graph) else _OUTPUT


def _prefixed(graph: onnx.GraphProto, prefix: str) -> Callable[[str], str]:
    """Rename all values but weights in a file, whose names are their keys; returns how."""
    stored = {tensor.name for tensor in external_tensors(graph)}

    def name_of(name: str) -> str:
        return name if name in stored else prefix + name

    rename_values(graph, name_of)
    for node in graph.node:
        node.name = node.name and prefix + node.name
    return name_of


def _parted(graph: onnx.GraphProto) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """What each step runs, for what hides padding, and what the first one alone does."""
    writer, seen = writers(graph), set[str]()
    always = {id(node) for node in ancestors([_ENCODER + CROSS_BIAS, _ENCODER + _INDEX], writer, seen)}
    return [n for n in graph.node if id(n) in always], [n for n in graph.node if id(n) not in always]


def _read(encoded: str) -> Steps:
    """The encoder's real tokens, out of the padded rows."""
    yield ("Identity", [_ENCODER_MASK], f"{_ENCODER}{INPUT_IDS}", {})  # of which the shape alone is read
    yield ("Identity", [_ENCODER_MASK], f"{_ENCODER}{MASK}", {})
    yield ("Concat", ["ints/all", "ints/width"], "hidden/shape", {"axis": 0})
    yield ("Reshape", [_HIDDEN, "hidden/shape"], "hidden/flat", {})
    yield ("Gather", ["hidden/flat", f"{_ENCODER}{_INDEX}"], encoded, {})


def _cross(inside: Sequence[onnx.NodeProto], layers: range) -> onnx.NodeProto:
    """Keys and values of the encoder's tokens: those of the past, or new ones."""
    names = [name for i in layers for name in caches(CROSS, i)]
    pasts = [past for i in layers for past in _known(f"past_key_values.{i}.encoder")]
    known = nodes(("Identity", [past], f"known/{name}", {}) for past, name in zip(pasts, names, strict=True))
    given, new = ([floats(prefix + name, None) for name in names] for prefix in ("known/", _ENCODER))
    branches = {
        "then_branch": helper.make_graph(known, "cached", [], given),
        "else_branch": helper.make_graph(list(inside), "first", [], new),
    }
    return helper.make_node("If", [_CACHED], [_STEP + name for name in names], name="cross", **branches)


def _steps(layers: range) -> Steps:
    """What stands around the decoder's own step."""
    yield ("Squeeze", [INPUT_IDS, "ints/one"], _STEP + IDS, {})  # fails where several tokens are given at once
    yield ("Shape", [INPUT_IDS], "texts", {"start": 0, "end": 1})
    yield ("Squeeze", ["texts"], "texts/number", {})
    yield ("Range", ["ints/0", "texts/number", "ints/1"], _STEP + ORDER, {})
    yield ("Identity", [_ENCODER + CROSS_BIAS], _STEP + CROSS_BIAS, {})
    yield ("Unsqueeze", [_STEP + LOGITS, "ints/one"], LOGITS, {})
    for i in layers:
        for part, past, present, cross in zip(
            ("key", "value"), caches(PAST, i), caches(PRESENT, i), caches(CROSS, i), strict=True
        ):
            name = f"past_key_values.{i}.decoder.{part}"
            # In the first step optimum takes e for d / h, which it need not be; there is nothing in it.
            yield ("Shape", [name], f"{name}/length", {"start": 2, "end": 3})
            yield ("Concat", ["texts", "ints/heads", f"{name}/length", "ints/size"], f"{name}/shape", {"axis": 0})
            yield ("Reshape", [name, f"{name}/shape"], _STEP + past, {"allowzero": 1})
            yield ("Identity", [_STEP + present], f"present.{i}.decoder.{part}", {})
            yield ("Identity", [_STEP + cross], f"present.{i}.encoder.{part}", {})


def _inputs_and_outputs(
    step: onnx.ModelProto, layers: range, heads: tuple[int, int], width: int
) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    rows: dict[str, tuple[str | int, ...]] = {INPUT_IDS: ("texts", 1), _ENCODER_MASK: ("texts", "source")}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in rows.items()]
    inputs.append(floats(_HIDDEN, ("texts", "length", width)))
    logits = next(each for each in step.graph.output if each.name == _STEP + LOGITS)
    outputs = [floats(LOGITS, ("texts", 1, logits.type.tensor_type.shape.dim[1].dim_value))]
    for i in layers:
        for stack in ("decoder", "encoder"):
            past = ("texts", heads[0], f"{stack}_past", f"{stack}_size")
            inputs += [floats(name, past) for name in _known(f"past_key_values.{i}.{stack}")]
            present = ("texts", heads[0], f"{stack}_length", heads[1])
            outputs += [floats(name, present) for name in _known(f"present.{i}.{stack}")]
    return [*inputs, helper.make_tensor_value_info(_CACHED, TensorProto.BOOL, [1])], outputs


def _ints(name: str, *values: int) -> onnx.TensorProto:
    """A constant [n], int64."""
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


@Contract(requires=[well_formed], ensures=[well_formed, all_used, standard])
def optimum_causal(decoder: onnx.ModelProto) -> onnx.ModelProto:
    """Make optimum's graph of a spliced step; refused where its attention has another form than ``llama`` writes."""
    model, reader = copied(decoder), Reader(decoder.graph)
    graph = model.graph
    try:
        layers = [reader.attention(i) for i in range(n_layers(graph))]
    except OtherForm:
        raise BundleError("the bundle's graph of a step has a form that is not known; export it again.") from None
    gone = {name for i, layer in enumerate(layers) for name in (layer.context, *caches(PRESENT, i))}
    gone |= {CACHED, *PACKED_INDICES.values()}
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
    graph.initializer.extend(_ints(f"causal/{name}", *values) for name, values in numbers.items())
    add_constants(graph, {"causal/zero": 0, "causal/one": 1})
    add_constants(graph, {"causal/shown": 0, "causal/hidden": np.finfo(np.float32).min}, np.float32)
    _interface(graph, len(layers), (k, e), vocabulary)
    prune(graph)
    return model


def _of_tokens() -> Steps:
    """The tokens of all rows one behind the other, as a step's texts are, and their logits as rows again."""
    yield ("Reshape", [INPUT_IDS, "causal/flat"], IDS, {})
    yield ("Reshape", [PLACES, "causal/flat"], PACKED_INDICES[PackedIndex.POSITION], {})
    yield ("Shape", [INPUT_IDS], "causal/shape", {})
    yield ("Shape", [INPUT_IDS], "causal/length", {"start": 1, "end": 2})
    yield ("Squeeze", ["causal/length"], "causal/S", {})
    yield ("Size", [INPUT_IDS], "causal/T", {})
    yield ("Range", ["causal/zero", "causal/T", "causal/one"], "causal/places", {})
    yield ("Div", ["causal/places", "causal/S"], PACKED_INDICES[PackedIndex.ROW], {})
    yield ("Range", ["causal/zero", "causal/T", "causal/S"], PACKED_INDICES[PackedIndex.FIRST_TOKEN], {})
    for name in ("queries", "keys"):
        yield ("Concat", ["causal/shape", f"causal/{name}"], f"causal/{name}/shape", {"axis": 0})
    yield ("Concat", ["causal/shape", "causal/words"], "causal/logits/shape", {"axis": 0})
    yield ("Reshape", ["causal/logits", "causal/logits/shape"], LOGITS, {})


def _mask() -> Steps:
    """(B, 1, 1, S, L + S): 0, or the lowest number for padding and what comes later."""
    for name, value in (("causal/before", _known("past_key_values.0")[0]), ("causal/after", _known("present.0")[0])):
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


def _attention(i: int, layer: Attention) -> Steps:
    """A layer's attention, in place of the step's own."""
    name = layer.context
    for part, value, past, present in zip(
        ("keys", "values"),
        (layer.turned[1], layer.value),
        _known(f"past_key_values.{i}"),
        _known(f"present.{i}"),
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


def _known(of: str) -> tuple[str, str]:
    """Keys and values, as optimum names them."""
    return f"{of}.key", f"{of}.value"


def _interface(graph: onnx.GraphProto, n: int, heads: tuple[int, int], vocabulary: int) -> None:
    shapes = {INPUT_IDS: ("batch", "sequence"), MASK: ("batch", "total_sequence"), PLACES: ("batch", "sequence")}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in shapes.items()]
    outputs = [floats(LOGITS, ("batch", "sequence", vocabulary))]
    for i in range(n):
        past, present = (("batch", heads[0], length, heads[1]) for length in ("past_sequence", "total_sequence"))
        inputs += [floats(name, past) for name in _known(f"past_key_values.{i}")]
        outputs += [floats(name, present) for name in _known(f"present.{i}")]
    replace(graph.input, inputs)
    replace(graph.output, outputs)
