"""Passes: texts of unequal lengths in one step of a decoder.

``in_place``: a step as one graph of prompts and steps, whose keys and values grow in one buffer a layer.  The stored
step copies: it joins a text's new key to those before, and attends to these and to its prompt's.  ONNX
Runtime's ``GroupQueryAttention`` (Ainslie et al., 2023, arXiv:2305.13245) turns new keys by their places, writes them
behind the others of their row, and reads as many as the row has.  Of row n, whose last token is at PLACE[n] = p:

    K[n, p] = key[n];   context[n] = softmax(query[n] K[n, :p + 1]^T / sqrt(e)) V[n, :p + 1]

Texts of any lengths stand in one step.  A prompt is the same with S tokens a row from place 0 on, padding behind: what
lies beyond PLACE is never read.  Logits are those of each row's LAST token.  So one session, with one copy of the
matrices in its kernels' layout, reads and writes, and the last token of a prompt is computed once.

``hide_fronts``, of a decoder beside an encoder: cached keys and values end together, the newest last, so how far back a
token lies is the same number in each row and the bias by distance stays what it is; what stands before a shorter text's
first token is hidden from it:

    softmax(q k^T + b + h),   h [N, 1, 1, L + 1] of 0, and of the lowest number in front of a text

Letters: N texts, L tokens of the longest before this step, S tokens of each, h heads, k heads of keys, e a head's
width, C places of a buffer.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgepeft.backbones.base import PACKED_INDICES, Role
from edgepeft.backbones.emit import Writer
from edgepeft.backbones.text import CACHED, CROSS, CROSS_BIAS, IDS, ORDER, PAST, PRESENT, caches
from edgepeft.graph.contract import Contract, all_used, standard, values_stay, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.mix import ROW_COUNTS, TOKEN_COUNTS, slotted
from edgepeft.graph.names import LAST, PLACE, TEXTS
from edgepeft.graph.protos import (
    CONTRIB,
    attributes,
    constant,
    copied,
    floats,
    integers,
    match_chain,
    readers,
    reads,
    replace,
    trace_back,
    use_contrib,
    writers,
)

HIDDEN = "past.bias"  # float [N, 1, 1, L + 1]
_WIDTHS = 16  # of a head, a multiple: all that ONNX Runtime's operator turns


class InPlace(NamedTuple):
    """A lowered step, and the frequencies [e / 2] of each kind of layer, of which ``tables`` are to be made."""

    model: onnx.ModelProto
    frequencies: tuple[NDArray[np.float32], ...]


def tables(kind: int) -> tuple[str, str]:
    """The inputs that hold cosines and sines of places for a kind of layer, float [C or more, e / 2]."""
    return f"cosines.{kind}", f"sines.{kind}"


def n_layers(step: onnx.GraphProto) -> int:
    """How many layers' keys a step is given."""
    return sum(value.name.startswith(f"{PAST}.key.") for value in step.input)


@Contract(requires=[well_formed], ensures=[well_formed, all_used])
def in_place(decoder: onnx.ModelProto) -> InPlace | None:
    """Lower a spliced step, with slots or without; None where its attention has another form than ``llama`` writes.

    Of the backbone's ``PACKED_INDICES`` those alone are inputs that a task's nodes read.
    """
    reader, model = Reader(decoder.graph), copied(decoder)
    graph = model.graph
    try:
        layers = [reader.attention(i) for i in range(n_layers(decoder.graph))]
        kinds = list(dict.fromkeys(layer.frequencies for layer in layers))
        frequencies = tuple(reader.constant(name).astype(np.float32) for name in kinds)
        hidden = reader.up(Role.POOLED_LABELS, "Gemm").input[0]
    except OtherForm:
        return None
    if not layers or any(layer.heads[2] % _WIDTHS for layer in layers):
        return None
    presents = [caches(PRESENT, i) for i in range(len(layers))]
    gone = {layer.context for layer in layers} | {name for pair in presents for name in pair}
    gone |= {CACHED, *PACKED_INDICES.values()}
    add, shapes = Writer("known."), dict[int, str]()
    add.op("Shape", PLACE, output=TEXTS)
    total = add.op("Add", add.op("ReduceMax", PLACE, keepdims=0), add.number(1, np.int32))
    for i, layer in enumerate(layers):  # one node in the place of each layer's attention
        k, g, e = layer.heads
        rows = []  # (N, S, heads e)
        for part, heads in (("query", k * g), ("key", k), ("value", k)):
            if heads not in shapes:
                shapes[heads] = add.op("Concat", TEXTS, add.ints(-1, heads * e), axis=0)
            rows.append(add.op("Reshape", getattr(layer, part), shapes[heads], output=f"{layer.context}/{part}"))
        read = [*rows, *caches(PAST, i), PLACE, total, *tables(kinds.index(layer.frequencies))]
        how: dict[str, Any] = {"num_heads": k * g, "kv_num_heads": k, "do_rotary": 1, "scale": layer.scale}
        result = f"{layer.context}/rows"
        attend = helper.make_node("GroupQueryAttention", read, [result, *presents[i]], result, domain=CONTRIB, **how)
        add.nodes.append(attend)
        add.op("Reshape", result, add.ints(-1, k * g * e), output=layer.context)
    replace(graph.node, [node for node in graph.node if gone.isdisjoint(node.output)])
    add.add_to(graph)
    _take_buffers(graph, len(kinds))
    prune(graph)
    if not _of_last_rows(graph, layers[-1].context) and not _of_last_rows(graph, hidden):
        return None
    prune(graph)
    unread = {*PACKED_INDICES.values()}.difference(name for node in graph.node for name in reads(node))
    replace(graph.input, [value for value in graph.input if value.name not in unread])
    use_contrib(model)
    return InPlace(model, frequencies)


class OtherForm(Exception):
    """What a pass looks for is written in a form that it does not know."""


class StoredAttention(NamedTuple):
    """A layer's attention, by the names of its values (N, heads e): what it reads before turning, and its result.

    ``turned`` are the scaled query and the key past that, (N, heads, e).
    """

    query: str
    key: str
    value: str
    context: str
    heads: tuple[int, int, int]  # k, h / k, e
    scale: float
    frequencies: str  # a constant's name
    turned: tuple[str, str]


class Reader:
    """Finds in a stored step what its attention is made of."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph, self._writer, self._readers = graph, writers(graph), readers(graph)

    def attention(self, layer: int) -> StoredAttention:
        """A layer's; ``OtherForm`` is raised where it is not what ``llama`` writes."""
        keys, values = caches(PRESENT, layer)
        new_key, new_value = (self.up(present, "Concat").input[1] for present in (keys, values))
        turned = self.up(new_key, "Reshape").input[0]
        key, frequencies = self._before_turning(turned)
        value = self.up(new_value, "Reshape").input[0]
        context = self._down(values, "MatMul", "Add", "Reshape").output[0]
        scores = self.up(context, "Reshape", "Add", "MatMul", "Slice", "Softmax", "Concat", "Add", "MatMul")
        if self.up(scores.input[1], "Transpose").input[0] != caches(CROSS, layer)[0]:
            raise OtherForm
        rows = self.up(scores.input[0], "Reshape")
        scaled = self.up(rows.input[0], "Mul")
        query, same = self._before_turning(scaled.input[0])
        _, *heads = self.constant(rows.input[1]).tolist()
        if same != frequencies or len(heads) != 3:
            raise OtherForm
        k, g, e = heads
        scale = self.constant(scaled.input[1]).item()
        return StoredAttention(query, key, value, context, (k, g, e), scale, frequencies, (rows.input[0], turned))

    def constant(self, name: str) -> NDArray[np.generic]:
        """What a constant holds."""
        found = constant(self._graph, name)
        if found is None:
            raise OtherForm
        return found

    def _before_turning(self, turned: str) -> tuple[str, str]:
        """x and the constant w, of a value that is x cos(p w) + swap(x) sin(p w)."""
        total = self.up(turned, "Add")
        kept, swapped = self.up(total.input[0], "Mul"), self.up(total.input[1], "Mul", "Reshape", "Gather")
        if self.constant(swapped.input[1]).tolist() != [1, 0] or attributes(swapped).get("axis") != 2:
            raise OtherForm
        angles = self.up(kept.input[1], "Unsqueeze", "Concat", "Cos", "Mul")
        return trace_back(kept.input[0], self._writer, {"Reshape"})[-1], angles.input[1]

    def up(self, value: str, *operators: str) -> onnx.NodeProto:
        """The last of the nodes that give a value, each from its first input."""
        if not (found := match_chain(value, self._writer, *operators)):
            raise OtherForm
        return found[-1]

    def _down(self, value: str, *operators: str) -> onnx.NodeProto:
        """The last of the nodes that read a value, each the only one of its operator."""
        for operator in operators:
            found = [node for node in self._readers.get(value, ()) if node.op_type == operator]
            if len(found) != 1:
                raise OtherForm
            (node,) = found
            value = node.output[0]
        return node


def _of_last_rows(graph: onnx.GraphProto, cut: str) -> bool:
    """Have all behind a value of tokens run for each text's last one alone; False where the shape of others is read."""
    of_tokens, shapes, behind = {IDS, *PACKED_INDICES.values()}, set[str](), set[str]()
    last = {cut: f"{cut}/last"}
    reading: list[onnx.NodeProto] = []
    for node in graph.node:
        read = {*reads(node)}
        if read & behind or cut in read:
            before = read & of_tokens - behind
            if read & shapes or any(slotted("", 0)[:-1] in name for name in before):  # a part of the tokens
                return False
            last |= {name: f"{name}/last" for name in before}
            reading.append(node)
            behind.update(node.output)
        elif read & of_tokens and node.op_type != "Shape":
            of_tokens.update(node.output)
        elif read & (shapes | of_tokens):
            shapes.update(node.output)
    for node in reading:
        node.input[:] = [last.get(name, ROW_COUNTS if name == TOKEN_COUNTS else name) for name in node.input]
    graph.node.extend(helper.make_node("Gather", [name, LAST], [new], name=new) for name, new in last.items())
    return True


def _take_buffers(graph: onnx.GraphProto, n_kinds: int) -> None:
    """Give the graph the lowered interface, inputs that nothing reads included."""
    buffers = [value for value in (*graph.input, *graph.output) if value.name.startswith((f"{PAST}.", f"{PRESENT}."))]
    for value in buffers:
        texts, _, places, width = value.type.tensor_type.shape.dim
        texts.dim_param, places.dim_param = "texts", "places"
    inputs = [value for value in graph.input if not value.name.startswith((IDS, ORDER, f"{CROSS}.", f"{PAST}."))]
    numbers = {IDS: "tokens", LAST: "texts", **dict.fromkeys(PACKED_INDICES.values(), "of_helper")}
    inputs += [integers(name, (size,)) for name, size in numbers.items()]
    inputs.append(helper.make_tensor_value_info(PLACE, TensorProto.INT32, ("texts",)))
    inputs += [value for value in buffers if value.name.startswith(f"{PAST}.")]
    for kind in range(n_kinds):
        shape = ("turned_places", width.dim_value // 2)
        inputs += [floats(name, shape) for name in tables(kind)]
    replace(graph.input, inputs)


@Contract(requires=[well_formed, standard], ensures=[well_formed, standard], keeps=[values_stay])
def hide_fronts(decoder: onnx.ModelProto) -> onnx.ModelProto | None:
    """Give a decoder's graph the input ``HIDDEN``; None where its attention has a form that is not known here."""
    model = copied(decoder)
    writer, n = writers(model.graph), n_layers(model.graph)
    pairs = [match_chain(node.output[0], writer, "Softmax", "Add") for node in model.graph.node]
    sums = [pair[1] for pair in pairs if pair and not pair[1].name.startswith("delta/")]  # its nodes stay as they are
    itself = [node for node in sums if node.input[1] != CROSS_BIAS]
    biases = {node.input[1] for node in itself}
    if len(sums) != 2 * n or len(itself) != n or not biases <= set(writer):
        return None
    for node in itself:
        node.input[1] = f"{HIDDEN}/{node.input[1]}"
    nodes = []
    for node in model.graph.node:
        more = [f"{HIDDEN}/{name}" for name in node.output if name in biases]
        nodes += [node, *(helper.make_node("Add", [node.output[0], HIDDEN], [name], name=name) for name in more)]
    replace(model.graph.node, nodes)
    model.graph.input.append(floats(HIDDEN, ("texts", 1, 1, "written_and_one")))
    return model
