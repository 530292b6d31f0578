"""Pass: rows that no head reads do not pass the last layer's row-wise operators.

A head on one token of each row of the batch picks it from the last hidden state.  The pick moves up through every
operator that makes a row of its result from the same row of what it reads, and through the attention's queries, to
where a value is needed whole: what keys and values are made of.  The last feed-forward then has B rows and not T.

Which operators do so follows from the extents that ONNX infers: beside a result whose first axis counts rows, an
operand's first axis counts them too where it is open, for what is repeated over the rows has a first extent of one, or
none.

Letters: B batch, S padded length, T real tokens, d hidden, h heads, e = d / h.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import onnx
from onnx import TensorProto, helper, shape_inference

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex
from edgepeft.backbones.packing import ATTENTION, LAST, MERGE, SPLIT
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.protos import (
    ancestors,
    attributes,
    constant,
    copied,
    match_chain,
    reads,
    remade,
    replace_reads,
    writers,
)
from edgepeft.graph.quantise import integer_products
from edgepeft.graph.splice import prompt_in

Extents = tuple[int | None, ...]  # of a value's axes; None where it is known in a run only

_SMALL = 64  # numbers of an integer constant from which extents may follow
# How a row of the batch is looked up, and the extents of its index.
_LOOKUPS: Mapping[str, Extents] = {"Gather": (None,), "GatherND": (None, 1)}
# What an export puts around such an index, and how many operands leave it what it was.
_AROUND_AN_INDEX = {"Add": 2, "Concat": 1, "Expand": 2, "Identity": 1, "Max": 1, "Unsqueeze": 2}


# What gives the picked rows of a value, and the values of which it reads picked rows.
_Part = tuple[list[onnx.NodeProto], list[str]]


def picked_rows_name(value: str) -> str:
    """Name a value's picked rows, [B, ...]."""
    return f"read/{value}"


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def drop_unread_rows(model: onnx.ModelProto) -> None:
    """Move the pick of a spliced graph, or of its upper part, to where all rows are needed.

    A graph that picks no rows, or whose picked value nothing makes row by row, stays as it is; so does one that breaks
    ONNX's rules, which ONNX Runtime refuses in its own words.
    """
    picks = [node for node in model.graph.node if node.op_type in _LOOKUPS and len(node.input) == 2]
    writer, prompt = writers(model.graph), prompt_in(model.graph)
    picks = [
        node for node in picks if node.input[0] in writer and _is_of_its_row(node.input[1], model.graph, writer, prompt)
    ]
    if not picks:
        return
    try:
        sizes = _extents(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return
    outputs = {output.name for output in model.graph.output}
    picks = [  # those that look along the first axis, not in a batch of indices
        node
        for node in picks
        if not any(attributes(node).values()) and sizes.get(node.input[1]) == _LOOKUPS[node.op_type]
        if node.output[0] not in outputs
    ]
    if picks:
        mover = _Mover(model.graph, sizes, picks)
        for node in reversed(model.graph.node):
            mover.take(node)
        mover.write()


def _is_of_its_row(index: str, graph: onnx.GraphProto, writer: Mapping[str, onnx.NodeProto], prompt: int) -> bool:
    """Whether it is each row's first token, or the first one behind so many placeholders of a prompt, or the last."""
    while index not in (PACKED_INDICES[PackedIndex.FIRST_TOKEN], LAST):
        node = writer.get(index)
        if node is None or not 0 < len(node.input) <= _AROUND_AN_INDEX.get(node.op_type, 0):
            return False
        if node.op_type == "Add":
            skipped = constant(graph, node.input[-1]) if prompt else None
            if skipped is None or skipped.ravel().tolist() != [prompt]:
                return False
        index = node.input[0]
    return True


class _Mover:
    """Takes a sorted graph's nodes from its outputs up; ``write`` then changes it."""

    def __init__(self, graph: onnx.GraphProto, sizes: Mapping[str, Extents], picks: Sequence[onnx.NodeProto]) -> None:
        self.graph, self._sizes, self._writer = graph, sizes, writers(graph)
        self._pick = copied(picks[-1])
        self._rounded = {product.y: product.x for product in integer_products(graph)}
        same = (self._pick.op_type, self._pick.input[1])
        self._picked = {pick.output[0]: pick.input[0] for pick in picks if (pick.op_type, pick.input[1]) == same}
        # What is read of a value: all of it, or the picked rows.
        self._whole, self._rows = {output.name for output in graph.output}, set[str]()
        self._parts: dict[str, list[onnx.NodeProto]] = {}  # by the value whose rows they give
        self._targets: dict[str, onnx.TensorProto] = {}  # of reshapes

    def take(self, node: onnx.NodeProto) -> None:
        """Note what a node needs of what it reads; all that read its results were taken."""
        is_whole = not self._whole.isdisjoint(node.output)
        if not is_whole and self._rows.isdisjoint(node.output):
            return  # what read it reads rows of what is above it
        if node.output[0] in self._picked:
            self._rows.update(node.input[:1])
            self._whole.update(node.input[1:])
            return
        part = None if is_whole else self._part(node)
        if part is None:
            self._whole.update(reads(node))
            return
        nodes, rows = part
        self._parts[node.output[0]] = nodes
        self._rows.update(rows)
        inside = {*map(picked_rows_name, rows), *self._targets, *(name for each in nodes for name in each.output)}
        self._whole.update(name for each in nodes for name in reads(each) if name not in inside)

    def write(self) -> None:
        """Put the parts in the place of the nodes whose rows they give."""
        if self._parts.keys().isdisjoint(self._picked.values()):
            return
        replace_reads(self.graph, {pick: picked_rows_name(value) for pick, value in self._picked.items()})
        for value in sorted(self._rows - self._parts.keys()):
            pick = _renamed(self._pick, {self._pick.input[0]: value}, picked_rows_name(value))
            pick.name = pick.output[0]
            self.graph.node.append(pick)
        # Two products in integers round one value for both.
        self.graph.node.extend({node.output[0]: node for nodes in self._parts.values() for node in nodes}.values())
        self.graph.initializer.extend(self._targets.values())
        prune(self.graph)

    def _part(self, node: onnx.NodeProto) -> _Part | None:
        """What gives the rows of a node's result; None where one may depend on more than its own, or is not known."""
        if node.output[0] in self._rounded:
            return self._in_integers(node.output[0])
        if node.op_type == "Reshape":
            return self._reshaped(node)
        if node.op_type == "Gather" and node.input[1] == MERGE:
            return self._attended(node)
        values, rule = [name for name in (*node.input, *node.output) if name], _RULES.get(node.op_type)
        if rule is None or len(node.output) > 1 or any(name not in self._sizes for name in values):
            return None
        sizes = [self._sizes[name] if name else () for name in node.input]
        at = _At(node, self.graph, sizes, self._sizes[node.output[0]])
        if not _is_open(at.result) or not rule(at):
            return None
        operands = list(dict.fromkeys(name for name in node.input if name and _is_open(self._sizes[name])))
        return ([_of_rows(node, operands)], operands) if operands else None

    def _reshaped(self, node: onnx.NodeProto) -> _Part | None:
        """Where no number leaves its row: [T, ...] -> [T, ...]."""
        old, new = map(self._row, (node.input[0], node.output[0]))
        if old is None or new is None or math.prod(old) != math.prod(new):
            return None
        return [self._reshape(picked_rows_name(node.input[0]), new, node)], [node.input[0]]

    def _in_integers(self, result: str) -> _Part:
        """A product of rounded rows; the rounding of all rows stays where others need it."""
        inner = list(ancestors([result], self._writer, {self._rounded[result]}))
        rows = [self._rounded[result], *(name for node in inner for name in node.output)]
        return [_of_rows(node, rows) for node in inner], rows[:1]

    def _attended(self, node: onnx.NodeProto) -> _Part | None:
        """What ``Packing.attend`` makes of its query: [T, h, e], merged from [B, h, S, e]."""
        chain = match_chain(node.output[0], self._writer, *ATTENTION)
        if not chain:
            return None
        _, _, weighted, shares, masked, scores, split, flat = chain
        query, mask = flat.input[0], self._sizes.get(masked.input[1], ())
        if split.input[1] != SPLIT or attributes(shares).get("axis", -1) != -1 or len(mask) != 4 or mask[2] != 1:
            return None  # not the packing's; shares that are not of keys; or a bias of each query
        row, head = self._row(query), self._row(flat.output[0])
        if not row or not head:
            return None
        h, e = row[0] // head[0], head[0]
        nodes = [self._reshape(picked_rows_name(query), (h, 1, e), split)]  # (B, h, 1, e)
        nodes += [_of_rows(each, each.input[:1]) for each in (scores, masked, shares, weighted)]
        nodes.append(self._reshape(nodes[-1].output[0], (h, e), node))  # (B, h, e)
        return nodes, [query]

    def _row(self, value: str) -> tuple[int, ...] | None:
        """The extents of one row, of a value whose first axis alone is open."""
        first, *others = self._sizes.get(value) or (0,)
        fixed = tuple(size for size in others if size)
        return fixed if first is None and len(fixed) == len(others) else None

    def _reshape(self, value: str, row: tuple[int, ...], like: onnx.NodeProto) -> onnx.NodeProto:
        """Rows of these extents, under the name of the rows of another node's result."""
        target = f"read/{'x'.join(map(str, row))}"
        self._targets[target] = helper.make_tensor(target, TensorProto.INT64, [1 + len(row)], [0, *row])
        output = picked_rows_name(like.output[0])
        return helper.make_node("Reshape", [value, target], [output], name=like.name and f"{like.name}/read")


def _of_rows(node: onnx.NodeProto, values: Iterable[str]) -> onnx.NodeProto:
    """The node that reads the rows of ``values`` and gives those of its result."""
    return _renamed(node, {value: picked_rows_name(value) for value in values}, picked_rows_name(node.output[0]))


def _renamed(node: onnx.NodeProto, inputs: Mapping[str, str], output: str) -> onnx.NodeProto:
    copy = copied(node)
    copy.input[:] = [inputs.get(name, name) for name in node.input]
    copy.output[:], copy.name = [output], node.name and f"{node.name}/read"
    return copy


def _extents(model: onnx.ModelProto) -> dict[str, Extents]:
    """Extents of every value whose rank ONNX can tell; no weight is copied."""
    graph = model.graph
    small = {t.name: t for t in graph.initializer if t.data_type == TensorProto.INT64 and math.prod(t.dims) <= _SMALL}
    others = [t for t in graph.initializer if t.name not in small]
    inputs = [*graph.input, *(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in others)]
    light = helper.make_graph(graph.node, graph.name, inputs, graph.output, list(small.values()))
    onnx.checker.check_model(whole := remade(model, light))
    inferred = shape_inference.infer_shapes(whole, data_prop=True).graph
    sizes: dict[str, Extents] = {name: tuple(tensor.dims) for name, tensor in small.items()}
    for value in (*inferred.input, *inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            sizes[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
    return sizes


class _At(NamedTuple):
    """A node and the extents around it."""

    node: onnx.NodeProto
    graph: onnx.GraphProto
    operands: list[Extents]
    result: Extents


def _is_open(size: Extents) -> bool:
    return size[:1] == (None,)


def _fits(at: _At, sizes: Sequence[Extents] | None = None) -> bool:
    """Whether each operand has the rows of the result, or is the same for every row."""
    rank = len(at.result)
    return all(
        len(size) == rank if _is_open(size) else None not in size and (len(size) < rank or size[0] == 1)
        for size in (at.operands if sizes is None else sizes)
    )


def _product(at: _At) -> bool:
    """Rows times one matrix for all of them."""
    a, b, *others = at.operands
    return _is_open(a) and not attributes(at.node).get("transA") and len(b) == 2 and None not in b and _fits(at, others)


def _along_axis(usual: int) -> Callable[[_At], bool]:
    """By an attribute, or its usual value, and operands that are the same for every row."""

    def rule(at: _At) -> bool:
        first, *others = at.operands
        return _spare_rows([attributes(at.node).get("axis", usual)], first) and not any(None in each for each in others)

    return rule


def _along_axes(position: int) -> Callable[[_At], bool]:
    """By a constant operand; they are the result's, or the first operand's, whichever has more."""

    def rule(at: _At) -> bool:
        axes = constant(at.graph, at.node.input[position]) if len(at.node.input) > position else None
        given = [] if axes is None or axes.dtype.kind != "i" else axes.reshape(-1).tolist()
        return _is_open(at.operands[0]) and _spare_rows(given, max(at.operands[0], at.result, key=len))

    return rule


def _spare_rows(axes: Sequence[int], size: Extents) -> bool:
    """Whether these are axes of what has rows, and do not count them."""
    return _is_open(size) and bool(axes) and all(axis % len(size) for axis in axes)


_RULES: Mapping[str, Callable[[_At], bool]] = {
    **dict.fromkeys(("Add", "And", "Cast", "CastLike", "Clip", "Div", "Equal", "Exp", "Gelu", "Greater"), _fits),
    **dict.fromkeys(("GreaterOrEqual", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Max", "Mish"), _fits),
    **dict.fromkeys(("Mod", "Mul", "Not", "Pow", "Relu", "Sigmoid", "Sqrt", "Sub", "Tanh", "Where"), _fits),
    **dict.fromkeys(("Gemm", "MatMul"), _product),
    **dict.fromkeys(("LayerNormalization", "Softmax"), _along_axis(-1)),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Squeeze", "Unsqueeze"), _along_axes(1)),
    "Concat": lambda at: all(_spare_rows([attributes(at.node)["axis"]], size) for size in at.operands),
    "Gather": _along_axis(0),
    "Slice": _along_axes(3),
    "Transpose": lambda at: list(attributes(at.node).get("perm", ())[:1]) == [0],
}
