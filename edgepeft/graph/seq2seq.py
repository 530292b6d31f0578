"""Passes: the two graphs that write text, as optimum's ``ORTModelForSeq2SeqLM`` reads them.

    encoder  input_ids, attention_mask [B, S]                  -> last_hidden_state [B, P + S, d]
    decoder  input_ids [N, 1], encoder_attention_mask [N, S],
             encoder_hidden_states [N, P + S, d],
             use_cache_branch [1], past_key_values.I.*         -> logits [N, 1, v], present.I.*

The keys and values of the encoder's tokens are the decoder's there: computed in its first step, and read again in the
others (``If``).  Weights stay in their file, of which both graphs read their parts.

Letters: B rows, N texts, S their padded length, P a prompt's, T real tokens, d hidden, h heads, e a head's width, L
tokens so far, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.packing import REAL
from edgepeft.backbones.text import CROSS, CROSS_BIAS, IDS, LOGITS, ORDER, PAST, PRESENT, caches
from edgepeft.graph.contract import Contract, standard, weights_outside, well_formed
from edgepeft.graph.cut import above, below, prune, rename_values
from edgepeft.graph.names import adapted
from edgepeft.graph.protos import ancestors, copied, writers

_HIDDEN, _OUTPUT, _INDEX = "encoder_hidden_states", "encoder.output", "token.index"
_IDS, _MASK, _CACHED = "input_ids", "encoder_attention_mask", "use_cache_branch"
_STEP, _ENCODER = "step/", "encoder/"


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, standard])
def optimum_encoder(encoder: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Of a spliced encoder's graph; ``width`` is d."""
    value = _encoded(encoder)
    model = below(encoder, value)
    steps: list[Any] = [
        ("Shape", [REAL], "hidden/rows", {}),
        ("Concat", ["hidden/rows", "hidden/width"], "hidden/shape", {"axis": 0}),
        ("ReduceProd", ["hidden/rows"], "hidden/places", {"keepdims": 1}),
        ("Concat", ["hidden/places", "hidden/width"], "hidden/flat", {"axis": 0}),
        ("ConstantOfShape", ["hidden/flat"], "hidden/none", {}),
        ("Unsqueeze", [_INDEX, "hidden/one"], "hidden/index", {}),
        ("ScatterND", ["hidden/none", "hidden/index", value], "hidden/padded", {}),
        ("Reshape", ["hidden/padded", "hidden/shape"], "last_hidden_state", {}),
    ]
    model.graph.node.extend(nodes(steps))
    model.graph.initializer.extend([ints("hidden/width", width), ints("hidden/one", 1)])
    del model.graph.output[:]
    model.graph.output.append(floats("last_hidden_state", ("batch", "length", width)))
    prune(model.graph)
    return model


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, standard])
def optimum_decoder(encoder: onnx.ModelProto, decoder: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Of both spliced graphs; ``width`` is d."""
    indexed = copied(encoder)
    indexed.graph.output.append(helper.make_tensor_value_info(_INDEX, TensorProto.INT64, ("tokens",)))
    upper = above(indexed, {_encoded(encoder): ("tokens", width)})
    value = _prefixed(upper.graph, _ENCODER)
    step = above(decoder, {})
    _prefixed(step.graph, _STEP)
    past = next(each for each in decoder.graph.input if each.name == caches(PAST, 0)[0])
    heads, size = (past.type.tensor_type.shape.dim[axis].dim_value for axis in (1, 3))
    layers = range(sum(each.name.startswith(f"{PAST}.key.") for each in decoder.graph.input))
    outside, inside = _parted(upper.graph)
    nodes = [*_read(value(_encoded(encoder))), *outside, _cross(inside, layers)]
    nodes += [*_steps(layers), *step.graph.node]
    numbers = {"width": width, "all": -1, "one": 1, "heads": heads, "size": size}
    constants = [ints(f"ints/{name}", number) for name, number in numbers.items()]
    constants += [helper.make_tensor(f"ints/{i}", TensorProto.INT64, [], [i]) for i in (0, 1)]
    weights = {tensor.name: tensor for part in (upper, step) for tensor in part.graph.initializer}
    inputs, outputs = _inputs(layers, heads, width), _outputs(step, layers, heads, size)
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, [*weights.values(), *constants])
    prune(graph)
    return helper.make_model(graph, opset_imports=decoder.opset_import, ir_version=decoder.ir_version)


def _encoded(encoder: onnx.ModelProto) -> str:
    """What attention to the encoder reads: its output, or what a delta makes of it."""
    return adapted(_OUTPUT) if adapted(_OUTPUT) in writers(encoder.graph) else _OUTPUT


def _prefixed(graph: onnx.GraphProto, prefix: str) -> Any:
    """Rename all values but weights in a file, whose names are their keys; returns how."""
    stored = {t.name for t in graph.initializer if t.data_location == TensorProto.EXTERNAL}

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


def _read(encoded: str) -> Iterator[onnx.NodeProto]:
    """The encoder's real tokens, out of the padded rows."""
    yield from nodes(
        [
            ("Identity", [_MASK], f"{_ENCODER}{_IDS}", {}),  # of which the shape alone is read
            ("Identity", [_MASK], f"{_ENCODER}attention_mask", {}),
            ("Concat", ["ints/all", "ints/width"], "hidden/shape", {"axis": 0}),
            ("Reshape", [_HIDDEN, "hidden/shape"], "hidden/flat", {}),
            ("Gather", ["hidden/flat", f"{_ENCODER}{_INDEX}"], encoded, {}),
        ]
    )


def _cross(inside: Sequence[onnx.NodeProto], layers: range) -> onnx.NodeProto:
    """Keys and values of the encoder's tokens: those of the past, or new ones."""
    names = [name for i in layers for name in caches(CROSS, i)]
    known = []
    for name in names:
        _, part, i = name.rsplit(".", 2)
        known += nodes([("Identity", [f"past_key_values.{i}.encoder.{part}"], f"known/{name}", {})])
    given, new = ([floats(prefix + name, None) for name in names] for prefix in ("known/", _ENCODER))
    branches = {
        "then_branch": helper.make_graph(known, "cached", [], given),
        "else_branch": helper.make_graph(list(inside), "first", [], new),
    }
    return helper.make_node("If", [_CACHED], [_STEP + name for name in names], name="cross", **branches)


def _steps(layers: range) -> Iterator[onnx.NodeProto]:
    """Around the decoder's own step."""
    steps: list[Any] = [
        ("Squeeze", [_IDS, "ints/one"], _STEP + IDS, {}),  # fails where several tokens are given at once
        ("Shape", [_IDS], "texts", {"start": 0, "end": 1}),
        ("Squeeze", ["texts"], "texts/number", {}),
        ("Range", ["ints/0", "texts/number", "ints/1"], _STEP + ORDER, {}),
        ("Identity", [_ENCODER + CROSS_BIAS], _STEP + CROSS_BIAS, {}),
        ("Unsqueeze", [_STEP + LOGITS, "ints/one"], LOGITS, {}),
    ]
    for i in layers:
        for part, past, present, cross in zip(
            ("key", "value"), caches(PAST, i), caches(PRESENT, i), caches(CROSS, i), strict=True
        ):
            name = f"past_key_values.{i}.decoder.{part}"
            # In the first step optimum takes e for d / h, which it need not be; there is nothing in it.
            steps += [
                ("Shape", [name], f"{name}/length", {"start": 2, "end": 3}),
                ("Concat", ["texts", "ints/heads", f"{name}/length", "ints/size"], f"{name}/shape", {"axis": 0}),
                ("Reshape", [name, f"{name}/shape"], _STEP + past, {"allowzero": 1}),
                ("Identity", [_STEP + present], f"present.{i}.decoder.{part}", {}),
                ("Identity", [_STEP + cross], f"present.{i}.encoder.{part}", {}),
            ]
    yield from nodes(steps)


def _inputs(layers: range, heads: int, width: int) -> list[onnx.ValueInfoProto]:
    rows: dict[str, tuple[str | int, ...]] = {_IDS: ("texts", 1), _MASK: ("texts", "source")}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in rows.items()]
    inputs.append(floats(_HIDDEN, ("texts", "length", width)))
    for i in layers:
        for stack in ("decoder", "encoder"):
            shape = ("texts", heads, f"{stack}_past", f"{stack}_size")
            inputs += [floats(f"past_key_values.{i}.{stack}.{part}", shape) for part in ("key", "value")]
    return [*inputs, helper.make_tensor_value_info(_CACHED, TensorProto.BOOL, [1])]


def _outputs(step: onnx.ModelProto, layers: range, heads: int, size: int) -> list[onnx.ValueInfoProto]:
    logits = next(each for each in step.graph.output if each.name == _STEP + LOGITS)
    outputs = [floats(LOGITS, ("texts", 1, logits.type.tensor_type.shape.dim[1].dim_value))]
    for i in layers:
        for stack in ("decoder", "encoder"):
            shape = ("texts", heads, f"{stack}_length", size)
            outputs += [floats(f"present.{i}.{stack}.{part}", shape) for part in ("key", "value")]
    return outputs


def nodes(steps: Sequence[tuple[str, list[str], str, dict[str, Any]]]) -> list[onnx.NodeProto]:
    """Of operator, inputs, output and attributes each."""
    return [helper.make_node(op, inputs, [out], name=out, **attributes) for op, inputs, out, attributes in steps]


def ints(name: str, *values: int) -> onnx.TensorProto:
    """A constant [n], int64."""
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def floats(name: str, shape: Sequence[str | int] | None) -> onnx.ValueInfoProto:
    """An input or output, float32."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
