"""Passes: queries, keys and values of a decoder's layer as one product, and what LoRA adds to them as one update.

ONNX Runtime's ``GroupQueryAttention`` takes the three side by side.  Of one x (T, K), with A side by side and B
block-diagonal (a value without an update has columns of zeros there):

    [q k v] = x [W_q; W_k; W_v]^T + (x [A_q; A_k; A_v]^T) diag(B_q, B_k, B_v)^T

So a layer has one product in place of three and three nodes of LoRA in place of nine.  Neither is done where something
stands between: biases, norms of queries and keys, a method of another form.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.emit import Writer
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.joined_row import JoinTensors
from edgepeft.graph.names import TEXTS, joined_name
from edgepeft.graph.parameters import StructuredTask
from edgepeft.graph.protos import (
    attributes,
    constant,
    copied,
    either_way,
    floats,
    match_chain,
    replace,
    replace_nodes,
    replace_reads,
    values_read,
    writers,
)

Feeds = Mapping[str, NDArray[np.float32]]

_ATTENTION = "GroupQueryAttention"
_MAX_ROWS = 48  # of A side by side, three of rank 16: the zeros of B are read too, and grow with the rank


class _Update(NamedTuple):
    """factor B A x."""

    a: str
    b: str
    factor: float


class _Value(NamedTuple):
    """Queries, keys or values: a product of the backbone, ``width`` wide, and what is added to it."""

    product: onnx.NodeProto
    width: int
    update: _Update | None = None


class _Attended:
    """Finds what attention reads in a graph of ``in_place``."""

    def __init__(self, graph: onnx.GraphProto, feeds: Feeds) -> None:
        self._graph, self._feeds, self._writer, self._readers = graph, feeds, writers(graph), values_read(graph)
        self._scalars = {t.name: t for t in graph.initializer if not t.dims and t.data_type == TensorProto.FLOAT}

    def values(self, attention: onnx.NodeProto) -> list[_Value]:
        """Queries, keys and values, in order, if all are of products of one x; else none."""
        found = [value for name in attention.input[:3] if (value := self._value(name)) is not None]
        one = len({value.product.input[0] for value in found}) == 1
        return found if one and len(found) == 3 else []

    def _value(self, rows: str) -> _Value | None:
        reshape = match_chain(rows, self._writer, "Reshape")
        shape = match_chain(reshape[0].input[1], self._writer, "Concat") if reshape else []
        extents = constant(self._graph, shape[0].input[-1]) if shape else None
        if extents is None or self._readers[rows] > 1 or self._readers[reshape[0].input[0]] > 1:
            return None
        width, node = int(extents[-1]), self._writer.get(reshape[0].input[0])
        if node is not None and _is_product(node):
            return None if node.input[1] in self._feeds else _Value(node, width)
        if node is None or node.op_type != "Add":
            return None
        for whole, part in either_way(node):
            product, update = self._writer.get(whole), self._update(part)
            if product and update and _is_product(product) and product.input[1] not in self._feeds:
                x, update_of = update
                return _Value(product, width, update_of) if x == product.input[0] else None
        return None

    def _update(self, value: str) -> tuple[str, _Update] | None:
        """x and what is made of it, of nodes that nothing else reads."""
        matrices, factor = list[str](), 1.0
        while self._readers[value] == 1 and (node := self._writer.get(value)) is not None:
            scalars = [name for name in node.input if name in self._scalars]
            if _is_product(node) and node.input[1] in self._feeds and self._readers[node.input[1]] == 1:
                matrices.append(node.input[1])
                factor *= attributes(node).get("alpha", 1.0)
                value = node.input[0]
                if len(matrices) == 2:
                    return value, _Update(matrices[1], matrices[0], factor)
            elif node.op_type == "Mul" and len(scalars) == 1:
                factor *= float(numpy_helper.to_array(self._scalars[scalars[0]]))
                value = next(name for name in node.input if name not in scalars)
            else:
                return None
        return None


def _is_product(node: onnx.NodeProto) -> bool:
    """Whether it is x W^T."""
    given = attributes(node)
    return node.op_type == "Gemm" and len(node.input) == 2 and given.get("transB") == 1 and not given.get("transA")


@Contract(requires=[well_formed], ensures=[well_formed])
def join_updates(structure: onnx.ModelProto, feeds: Feeds) -> StructuredTask:
    """Give a structure one update for each layer's queries, keys and values; it stays as it was where ranks are large.

    A factor goes into A, as ``by_row`` has it: tasks of other factors keep the structure.
    """
    model, values = copied(structure), dict(feeds)
    graph, sides = model.graph, _SideBySide()
    finder = _Attended(structure.graph, feeds)
    for node in graph.node:
        found = finder.values(node) if node.op_type == _ATTENTION else []
        if not 0 < sum(len(feeds[value.update.a]) for value in found if value.update) <= _MAX_ROWS:
            continue
        a, b, whole = (f"delta/{node.output[0]}/{part}" for part in ("A", "B", "whole"))
        updates = [value.update for value in found if value.update]
        values[a] = np.concatenate([np.float32(update.factor) * feeds[update.a] for update in updates])  # [sum r, K]
        values[b] = np.zeros((sum(value.width for value in found), len(values[a])), np.float32)  # [sum width, sum r]
        row = column = 0
        for value in found:
            if value.update:
                own = feeds[value.update.b]
                values[b][row : row + value.width, column : column + own.shape[1]] = own
                column += own.shape[1]
            row += value.width
        sides.op("Concat", *(value.product.output[0] for value in found), output=whole, axis=-1)
        update = sides.op("Gemm", sides.op("Gemm", found[0].product.input[0], a, transB=1), b, transB=1)
        sides.take(node, sides.op("Add", whole, update), sum(value.width for value in found))
    if not sides.nodes:
        return StructuredTask(model, values)
    sides.add_to(graph)
    prune(graph)
    read = values_read(graph)
    values = {name: value for name, value in values.items() if name in read}
    kept = [value for value in graph.input if value.name not in feeds or value.name in values]
    made = [name for name in values if name not in feeds]
    replace(graph.input, kept)
    graph.input.extend(floats(name, values[name].shape) for name in made)
    return StructuredTask(model, values)


class _SideBySide(Writer):
    """Has attention read its three values as one."""

    def __init__(self) -> None:
        super().__init__("known.side_by_side/")
        self._shapes: dict[int, str] = {}

    def take(self, attention: onnx.NodeProto, value: str, width: int) -> None:
        """Give attention [N S, width] as [N, S, width]."""
        if width not in self._shapes:
            self._shapes[width] = self.op("Concat", TEXTS, self.ints(-1, width), axis=0)
        rows = self.op("Reshape", value, self._shapes[width], output=f"{attention.output[0]}/side_by_side")
        attention.input[:3] = [rows, "", ""]


def attention_matrices(graph: onnx.GraphProto) -> Iterator[tuple[str, ...]]:
    """Names of each layer's matrices of queries, keys and values, where attention can read their products as one.

    ``graph`` is a bare one of ``in_place``.
    """
    finder, writer = _Attended(graph, {}), writers(graph)
    for node in graph.node:
        found = finder.values(node) if node.op_type == _ATTENTION else []
        unpacked = [writer.get(value.product.input[1]) for value in found]
        names = tuple(each.input[0] for each in unpacked if each is not None and each.op_type == "DequantizeLinear")
        if len(names) == 3:
            yield names


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def join_products(graph: onnx.GraphProto, groups: Iterable[Sequence[str]], join: JoinTensors) -> None:
    """Rewrite the products with each group of stored matrices as one, where all are of one value.

    Attention, and what ``join_updates`` put side by side, reads the result as it stands; anything else reads a part.
    """
    unpacking = {node.input[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    products = {node.input[1]: node for node in graph.node if _is_product(node)}
    times, stored = values_read(graph), {tensor.name: tensor for tensor in graph.initializer}
    whole: dict[tuple[str, ...], tuple[str, int]] = {}  # what products gave -> what one gives, and its width
    new: list[onnx.NodeProto] = []
    for group in groups:
        unpacked = [unpacking[name] for name in group if name in unpacking and times[unpacking[name].output[0]] == 1]
        found = [products[node.output[0]] for node in unpacked if node.output[0] in products]
        if len(found) < len(group) or len({node.input[0] for node in found}) > 1:
            continue
        parts = tuple(node.output[0] for node in found)
        sources = [[stored[node.input[i]] for node in unpacked] for i in range(2)]
        tensors = [join(each, 0, joined_name(tensor.name for tensor in each)) for each in sources]
        sizes = np.array([tensor.dims[0] for tensor in sources[0]], np.int64)
        graph.initializer.extend([*tensors, numpy_helper.from_array(sizes, f"{tensors[0].name}/sizes")])
        value, matrix = joined_name(parts), joined_name(node.output[0] for node in unpacked)
        whole[parts] = value, int(sizes.sum())
        zeros, names = f"{tensors[0].name}/zeros", [tensor.name for tensor in tensors]
        unpack = helper.make_node("DequantizeLinear", [*names, zeros], [matrix], matrix)
        unpack.attribute.extend(unpacked[0].attribute)
        new += [
            helper.make_node("Concat", [node.input[2] for node in unpacked], [zeros], axis=0),
            unpack,
            helper.make_node("Gemm", [found[0].input[0], matrix], [value], value, transB=1),
            helper.make_node("Split", [value, f"{names[0]}/sizes"], parts, f"{value}/parts", axis=-1),
        ]
    if whole:
        replace_nodes(graph, new)
        _read_whole(graph, whole)
        prune(graph)


def _read_whole(graph: onnx.GraphProto, whole: Mapping[tuple[str, ...], tuple[str, int]]) -> None:
    """Have whatever takes the parts side by side read what they are parts of."""
    writer, sides = writers(graph), _SideBySide()
    instead: dict[str, str] = {}
    for node in graph.node:
        if node.op_type == "Concat" and tuple(node.input) in whole and attributes(node)["axis"] == -1:
            instead[node.output[0]] = whole[tuple(node.input)][0]
        elif node.op_type == _ATTENTION:
            parts = tuple(writer[name].input[0] for name in node.input[:3] if name in writer)
            if parts in whole:
                sides.take(node, *whole[parts])
    replace_reads(graph, instead)
    sides.add_to(graph)
