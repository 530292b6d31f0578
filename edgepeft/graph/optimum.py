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

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex
from edgepeft.backbones.emit import Writer
from edgepeft.backbones.packing import REAL
from edgepeft.backbones.text import CACHED, CROSS, CROSS_BIAS, IDS, LOGITS, ORDER, PAST, PRESENT, caches
from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import Contract, all_used, standard, weights_outside, well_formed
from edgepeft.graph.cut import above, below, prune, rename_values
from edgepeft.graph.in_place import OtherForm, Reader, n_layers
from edgepeft.graph.names import STATES, adapted_name
from edgepeft.graph.protos import ancestors, copied, external_tensors, floats, integers, replace, set_aside, writers

INPUT_IDS, MASK, PLACES = "input_ids", "attention_mask", "position_ids"
_HIDDEN, _OUTPUT, _INDEX = "encoder_hidden_states", "encoder.output", "token.index"
_ENCODER_MASK, _CACHED = "encoder_attention_mask", "use_cache_branch"
_STEP, _ENCODER = "step/", "encoder/"


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, standard])
def optimum_encoder(encoder: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Make optimum's encoder of a spliced one; ``width`` is d."""
    value = _encoded(encoder)
    model, add = below(encoder, value), Writer("hidden/")
    rows = add.op("Shape", REAL)
    flat = add.op("Concat", add.op("ReduceProd", rows, keepdims=1), add.ints(width), axis=0)
    index = add.op("Unsqueeze", _INDEX, add.ints(1))
    padded = add.op("ScatterND", add.op("ConstantOfShape", flat), index, value)
    add.op("Reshape", padded, add.op("Concat", rows, add.ints(width), axis=0), output=STATES)
    add.add_to(model.graph)
    replace(model.graph.output, [floats(STATES, ("batch", "length", width))])
    prune(model.graph)
    return model


@Contract(requires=[well_formed, weights_outside], ensures=[well_formed, weights_outside, standard])
def optimum_decoder(encoder: onnx.ModelProto, decoder: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Make optimum's decoder of both spliced graphs; ``width`` is d."""
    indexed = copied(encoder)
    indexed.graph.output.append(integers(_INDEX, ("tokens",)))
    upper = above(indexed, {_encoded(encoder): ("tokens", width)})
    value = _prefixed(upper.graph, _ENCODER)
    step = above(decoder, {})
    _prefixed(step.graph, _STEP)
    past = next(each for each in decoder.graph.input if each.name == caches(PAST, 0)[0])
    heads, size = (past.type.tensor_type.shape.dim[axis].dim_value for axis in (1, 3))
    layers = range(n_layers(decoder.graph))
    # What each step runs, for what hides padding; all else the first one alone does.
    hides = ancestors([_ENCODER + CROSS_BIAS, _ENCODER + _INDEX], writers(upper.graph), set[str]())
    always = {node.output[0] for node in hides}
    outside = [node for node in upper.graph.node if node.output[0] in always]
    inside = [node for node in upper.graph.node if node.output[0] not in always]
    add = Writer("optimum/")
    for name in (INPUT_IDS, MASK):  # of the ids the shape alone is read
        add.op("Identity", _ENCODER_MASK, output=_ENCODER + name)
    real = add.op("Reshape", _HIDDEN, add.ints(-1, width))  # real tokens, out of the padded rows
    add.op("Gather", real, _ENCODER + _INDEX, output=value(_encoded(encoder)))
    _around_the_step(add, layers, heads, size)
    all_nodes = [*add.nodes, *outside, _cross(inside, layers), *step.graph.node]
    weights = {tensor.name: tensor for part in (upper, step) for tensor in part.graph.initializer}
    inputs = [integers(INPUT_IDS, ("texts", 1)), integers(_ENCODER_MASK, ("texts", "source"))]
    inputs.append(floats(_HIDDEN, ("texts", "length", width)))
    outputs = [floats(LOGITS, ("texts", 1, _vocabulary(step.graph, _STEP + LOGITS)))]
    for i, stack in ((i, stack) for i in layers for stack in ("decoder", "encoder")):
        past, present = ("texts", heads, f"{stack}_past", f"{stack}_size"), ("texts", heads, f"{stack}_length", size)
        inputs += [floats(name, past) for name in _known(f"past_key_values.{i}.{stack}")]
        outputs += [floats(name, present) for name in _known(f"present.{i}.{stack}")]
    inputs.append(helper.make_tensor_value_info(_CACHED, TensorProto.BOOL, [1]))
    graph = helper.make_graph(all_nodes, "decoder", inputs, outputs, [*weights.values(), *add.initializers.values()])
    prune(graph)
    return helper.make_model(graph, opset_imports=decoder.opset_import, ir_version=decoder.ir_version)


def _encoded(encoder: onnx.ModelProto) -> str:
    """What attention to the encoder reads: its output, or what a delta makes of it."""
    return adapted_name(_OUTPUT) if adapted_name(_OUTPUT) in writers(encoder.graph) else _OUTPUT


def _prefixed(graph: onnx.GraphProto, prefix: str) -> Callable[[str], str]:
    """Rename all values but weights in a file, whose names are their keys; returns how."""
    stored = {tensor.name for tensor in external_tensors(graph)}

    def name_of(name: str) -> str:
        return name if name in stored else prefix + name

    rename_values(graph, name_of)
    for node in graph.node:
        node.name = node.name and prefix + node.name
    return name_of


def _cross(inside: Sequence[onnx.NodeProto], layers: range) -> onnx.NodeProto:
    """Keys and values of the encoder's tokens: those of the past, or new ones."""
    names = [name for i in layers for name in caches(CROSS, i)]
    pasts = [past for i in layers for past in _known(f"past_key_values.{i}.encoder")]
    pairs = zip(pasts, names, strict=True)
    known = [helper.make_node("Identity", [past], [f"known/{name}"]) for past, name in pairs]
    given, new = ([floats(prefix + name, None) for name in names] for prefix in ("known/", _ENCODER))
    branches = {
        "then_branch": helper.make_graph(known, "cached", [], given),
        "else_branch": helper.make_graph(list(inside), "first", [], new),
    }
    return helper.make_node("If", [_CACHED], [_STEP + name for name in names], name="cross", **branches)


def _around_the_step(add: Writer, layers: range, heads: int, size: int) -> None:
    add.op("Squeeze", INPUT_IDS, add.ints(1), output=_STEP + IDS)  # fails where several tokens are given at once
    texts = add.op("Shape", INPUT_IDS, start=0, end=1)
    add.op("Range", add.number(0), add.op("Squeeze", texts), add.number(1), output=_STEP + ORDER)
    add.op("Identity", _ENCODER + CROSS_BIAS, output=_STEP + CROSS_BIAS)
    add.op("Unsqueeze", _STEP + LOGITS, add.ints(1), output=LOGITS)
    for i in layers:
        for part, past, present, cross in zip(
            ("key", "value"), caches(PAST, i), caches(PRESENT, i), caches(CROSS, i), strict=True
        ):
            name = f"past_key_values.{i}.decoder.{part}"
            # In the first step optimum takes e for d / h, which it need not be; there is nothing in it.
            length = add.op("Shape", name, start=2, end=3)
            shape = add.op("Concat", texts, add.ints(heads), length, add.ints(size), axis=0)
            add.op("Reshape", name, shape, output=_STEP + past, allowzero=1)
            add.op("Identity", _STEP + present, output=f"present.{i}.decoder.{part}")
            add.op("Identity", _STEP + cross, output=f"present.{i}.encoder.{part}")


def _vocabulary(graph: onnx.GraphProto, logits: str) -> int:
    found = next(each for each in graph.output if each.name == logits)
    return int(found.type.tensor_type.shape.dim[1].dim_value)


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
    vocabulary = _vocabulary(graph, LOGITS)
    add, (k, g, e) = Writer("causal/"), layers[0].heads
    # The tokens of all rows one behind the other, as a step's texts are, and their logits as rows again.
    add.op("Reshape", INPUT_IDS, add.ints(-1), output=IDS)
    add.op("Reshape", PLACES, add.ints(-1), output=PACKED_INDICES[PackedIndex.POSITION])
    zero, n = add.number(0), add.op("Size", INPUT_IDS)
    length = add.op("Squeeze", add.op("Shape", INPUT_IDS, start=1, end=2))
    add.op("Div", add.op("Range", zero, n, add.number(1)), length, output=PACKED_INDICES[PackedIndex.ROW])
    add.op("Range", zero, n, length, output=PACKED_INDICES[PackedIndex.FIRST_TOKEN])
    batch = add.op("Shape", INPUT_IDS)
    shape_of_queries, shape_of_keys, shape_of_logits = (
        add.op("Concat", batch, add.ints(*sizes), axis=0) for sizes in ((k, g, e), (k, e), (vocabulary,))
    )
    add.op("Reshape", "causal/logits", shape_of_logits, output=LOGITS)
    bias = _mask(add)
    for i, layer in enumerate(layers):  # attention in place of the step's own
        read = []  # (B, k, 1, L + S, e)
        names = zip((layer.turned[1], layer.value), _known(f"past_key_values.{i}"), _known(f"present.{i}"), strict=True)
        for value, past, present in names:
            new = add.op("Transpose", add.op("Reshape", value, shape_of_keys), perm=[0, 2, 1, 3])
            read.append(add.op("Unsqueeze", add.op("Concat", past, new, output=present, axis=2), add.ints(2)))
        queries = add.op("Reshape", layer.turned[0], shape_of_queries)
        queries = add.op("Transpose", queries, perm=[0, 2, 3, 1, 4])  # (B, k, g, S, e)
        scores = add.op("MatMul", queries, add.op("Transpose", read[0], perm=[0, 1, 2, 4, 3]))
        heads = add.op("MatMul", add.op("Softmax", add.op("Add", scores, bias), axis=-1), read[1])
        context = add.op("Transpose", heads, perm=[0, 3, 1, 2, 4])
        add.op("Reshape", context, add.ints(-1, k * g * e), output=layer.context)
    add.add_to(graph)
    shapes = {INPUT_IDS: ("batch", "sequence"), MASK: ("batch", "total_sequence"), PLACES: ("batch", "sequence")}
    pasts, presents = (
        [floats(name, ("batch", k, length, e)) for i in range(len(layers)) for name in _known(f"{of}.{i}")]
        for of, length in (("past_key_values", "past_sequence"), ("present", "total_sequence"))
    )
    replace(graph.input, [*(integers(name, shape) for name, shape in shapes.items()), *pasts])
    replace(graph.output, [floats(LOGITS, ("batch", "sequence", vocabulary)), *presents])
    prune(graph)
    return model


def _mask(add: Writer) -> str:
    """(B, 1, 1, S, L + S): 0, or the lowest number for padding and what comes later."""
    values = _known("past_key_values.0")[0], _known("present.0")[0]
    before, after = (add.op("Squeeze", add.op("Shape", value, start=2, end=3)) for value in values)
    columns = add.op("Range", add.number(0), after, add.number(1))
    rows = add.op("Unsqueeze", add.op("Range", before, after, add.number(1)), add.ints(1))
    later = add.op("Greater", columns, rows)  # (S, L + S)
    padding = add.op("Not", add.op("Cast", MASK, to=TensorProto.BOOL))
    unseen = add.op("Or", later, add.op("Unsqueeze", padding, add.ints(1)))  # (B, S, L + S)
    shown, hidden = add.number(0, np.float32), add.number(float(np.finfo(np.float32).min), np.float32)
    return add.op("Unsqueeze", add.op("Where", unseen, hidden, shown), add.ints(1, 2))


def _known(of: str) -> tuple[str, str]:
    """Keys and values, as optimum names them."""
    return f"{of}.key", f"{of}.value"
