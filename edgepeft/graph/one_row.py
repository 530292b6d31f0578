"""Passes: a graph of packed tokens, rewritten for a batch of one row without padding.

``for_one_row``: all tokens of such a row are real, so nothing has to be looked up: heads are split and merged by
transposes, positions are the first of their table, no token is left out of the attention, a mean is a mean over all,
and the last layer's output is the row's hidden states.  The result equals the packed graph's to float32's rounding.

``fuse_attention``: queries, keys, values and attention in 8 bits as one operator, ONNX Runtime's ``QAttention``.  Its
threads share all heads' products at once, where three products and the steps between them each wait for all threads: a
short text takes 6 to 8 % less time on two of them (MiniLM), and up to 7 % on one.  It has the three matrices side by
side, a copy of their own.  The bytes, scales and sums are those of the separate products.

Letters: T tokens, d hidden, h heads, e = d / h.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex, Role
from edgepeft.backbones.emit import Writer
from edgepeft.backbones.packing import COLUMN, INDEX, MERGE, N_HEADS, SPLIT
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import STATES, joined_name
from edgepeft.graph.protos import (
    CONTRIB,
    attributes,
    constant,
    either_way,
    floats,
    match_chain,
    readers,
    replace_nodes,
    replace_reads,
    trace_back,
    use_contrib,
    writers,
)
from edgepeft.graph.quantise import IntegerProduct, integer_products


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def for_one_row(model: onnx.ModelProto) -> bool:
    """Rewrite a spliced graph for input_ids [1, T] whose attention_mask is 1 throughout; returns whether it changed.

    What the graph has in another form than ``backbones.packing`` writes it stays as it is.
    """
    graph = model.graph
    heads = constant(graph, N_HEADS)
    writer = writers(graph)
    if heads is None or SPLIT not in writer or MERGE not in writer:
        return False
    rewriter = _Rewriter(graph, writer, int(heads))
    for node in list(graph.node):
        rewriter.take(node)
    return rewriter.write()


class _Rewriter(Writer):
    def __init__(self, graph: onnx.GraphProto, writer: Mapping[str, onnx.NodeProto], n_heads: int) -> None:
        super().__init__("one_row.")
        self._graph, self._writer, self._n_heads = graph, writer, n_heads
        self._readers = readers(graph)
        self._outputs = {output.name for output in graph.output}
        self._first, self._length = self.ints(0), ""  # [1], where the row begins; [1], T, where that can be told
        self._instead: dict[str, str] = {PACKED_INDICES[PackedIndex.FIRST_TOKEN]: self._first}
        if (row := writer.get(PACKED_INDICES[PackedIndex.ROW])) is not None and row.op_type == "Div":
            self._instead[COLUMN] = self.op("Range", "zero", row.input[1], "one", output=INDEX)  # 0 to T
            if shape := match_chain(row.input[1], writer, "Gather", "Shape"):
                self._length = self.op("Shape", shape[1].input[0], start=1, end=2)

    def take(self, node: onnx.NodeProto) -> None:
        result, writer = node.output[0], self._writer
        if node.op_type == "Gather" and not any(attributes(node).values()):
            if above := match_chain(node.input[0], writer, "Reshape"):
                self._gathered(node, *above)
            elif COLUMN in trace_back(node.input[1], writer, ["Identity"]) and self._length:
                self.op("Slice", node.input[0], self._first, self._length, self._first, output=result)
        elif node.op_type == "Add" and Role.ATTENTION_BIAS.value in node.input:
            scores = next((name for name in node.input if name != Role.ATTENTION_BIAS.value), "")
            bias = match_chain(Role.ATTENTION_BIAS.value, writer, "Unsqueeze", "Where")
            none = constant(self._graph, bias[1].input[1]) if bias and match_chain(scores, writer, "MatMul") else None
            if none is not None and not none.any():  # the packing's own: 0 for each token
                self._instead[result] = scores
        elif result == Role.POOLED_MEAN.value:
            if mean := match_chain(result, writer, "Div", "MatMul"):
                self.op("ReduceMean", mean[1].input[1], self.ints(0), output=result)
        elif result == STATES and (padded := match_chain(result, writer, "Mul", "Gather")):  # (T, d) -> (1, T, d)
            self.op("Unsqueeze", padded[1].input[0], self.ints(0), output=result)

    def _gathered(self, node: onnx.NodeProto, above: onnx.NodeProto) -> None:
        value, places, result = above.input[0], node.input[1], node.output[0]
        target = constant(self._graph, above.input[1])
        shape = [] if target is None else target.ravel().tolist()
        if places == INDEX and shape == [-1]:  # (1, T) -> (T)
            self._instead[result] = above.output[0]
        elif places == SPLIT and len(shape) == 2 and shape[0] == -1:
            self._split(value, result, shape[1])
        elif places == MERGE and len(shape) == 2 and self._is_flattened(result):
            self.op("Transpose", value, output=result, perm=(0, 2, 1, 3))  # (1, h, T, e) -> (1, T, h, e)

    def _split(self, value: str, result: str, e: int) -> None:
        """(T, d) -> (T, 1, h, e) -> (1, h, T, e), or at once (1, h, e, T), where only that is read.

        ONNX Runtime's products take these two orders, and a factor, as they lie (``FusedMatMul``): nothing is copied.
        """
        readers, scale = self._readers.get(result, []), match_chain(value, self._writer, "Mul")
        keys = readers[0] if len(readers) == 1 and result not in self._outputs else None
        number = constant(self._graph, scale[0].input[1]) if scale else None
        heads, perm, factor = result, (1, 2, 0, 3), ""
        if keys is not None and keys.op_type == "Transpose" and attributes(keys).get("perm") == [0, 1, 3, 2]:
            heads, perm = keys.output[0], (1, 2, 3, 0)
        elif number is not None and number.size == 1:
            (value, factor), heads = scale[0].input, f"{result}/heads"
        rows = self.op("Reshape", value, self.ints(-1, 1, self._n_heads, e), output=f"{result}/rows")
        self.op("Transpose", rows, output=heads, perm=perm)
        if factor:
            self.op("Mul", heads, factor, output=result)

    def _is_flattened(self, value: str) -> bool:
        """Whether all that reads the merged heads joins them, whatever stands before."""
        readers = self._readers.get(value, [])
        targets = [constant(self._graph, node.input[1]) for node in readers if node.op_type == "Reshape"]
        joined = all(target is not None and target.size == 2 and target.ravel()[0] == -1 for target in targets)
        return joined and len(targets) == len(readers) and value not in self._outputs

    def write(self) -> bool:
        replace_nodes(self._graph, self.nodes)
        instead = {old: self._instead.get(new, new) for old, new in self._instead.items() if old not in self._outputs}
        replace_reads(self._graph, instead)
        self._graph.initializer.extend(self.initializers.values())
        prune(self._graph)
        return bool(self.nodes)


# Three tensors [d, d] side by side, under a name; None where there is no such copy.
TryJoin = Callable[[Sequence[TensorProto], str], TensorProto | None]

# How ``for_one_row`` splits heads, (T, 1, h, e) -> (1, h, T, e) or (1, h, e, T), and merges them, -> (1, T, h, e).
_SPLIT, _SPLIT_KEYS, _MERGED = [1, 2, 0, 3], [1, 2, 3, 0], [0, 2, 1, 3]


class _Attended(NamedTuple):
    """What attention gives, ``context`` (T, d), of queries, keys and values that are products of the same bytes."""

    context: str
    n_heads: int
    products: tuple[IntegerProduct, ...]
    biases: tuple[str, ...]

    def write(self, add: Writer, matrix: str) -> None:
        """The operator, with the joined ``matrix`` [d, 3 d]."""
        first, unit = add.ints(0), add.number(1, np.float32)
        rows = add.op("Unsqueeze", str(self.products[0].rounded), first)
        # Of stored vectors: ONNX Runtime joins them once, when a session opens.
        scales = add.op("Concat", *(product.scale for product in self.products), axis=0)
        bias = add.op("Concat", *self.biases, axis=0)
        inputs = [rows, matrix, bias, unit, scales, "", add.number(128, np.uint8), add.number(0, np.int8)]
        result = add.op("QAttention", *inputs, domain=CONTRIB, num_heads=self.n_heads)
        add.op("Squeeze", result, first, output=self.context)


def _fusible(graph: onnx.GraphProto) -> Iterator[_Attended]:
    """Each attention of a graph of ``for_one_row`` that the operator can take the place of."""
    writer, products = writers(graph), {product.y: product for product in integer_products(graph)}
    vectors = {each.name for each in graph.initializer if len(each.dims) == 1}

    def product_of(value: str, perm: Sequence[int]) -> tuple[IntegerProduct, str, list[int]] | None:
        """The product whose sum with a stored bias is split so, the bias, and the shape of the split heads."""
        split = match_chain(value, writer, "Transpose", "Reshape", "Add")
        if not split or list(attributes(split[0])["perm"]) != list(perm):
            return None
        target = constant(graph, split[1].input[1])
        shape = [] if target is None else target.ravel().tolist()
        found = [(products[y], b, shape) for y, b in either_way(split[2]) if y in products and b in vectors]
        return found[0] if found and len(shape) == 4 and found[0][0].rounded is not None else None

    for node in graph.node:
        chain = match_chain(node.output[0], writer, "Reshape", "Transpose", "MatMul", "Softmax", "MatMul", "Mul")
        if not chain or list(attributes(chain[1])["perm"]) != _MERGED or attributes(chain[3]).get("axis", -1) != -1:
            continue
        _, _, weighted, _, scores, scaled = chain
        found = [product_of(scaled.input[0], _SPLIT), product_of(scores.input[1], _SPLIT_KEYS)]
        parts = [part for part in (*found, product_of(weighted.input[1], _SPLIT)) if part is not None]
        scale = constant(graph, scaled.input[1])
        if len(parts) < 3 or len({(product.rounded, *shape) for product, _, shape in parts}) > 1 or scale is None:
            continue
        _, _, h, e = parts[0][2]
        if scale.size == 1 and np.isclose(scale.item(), e**-0.5, rtol=1e-6):
            yield _Attended(node.output[0], h, tuple(part[0] for part in parts), tuple(part[1] for part in parts))


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def fuse_attention(model: onnx.ModelProto, join: TryJoin) -> None:
    """Rewrite attention of a graph of ``for_one_row`` wherever ``made`` has the matrices."""
    if (add := _fused(model, [*_fusible(model.graph)], join)).nodes:
        replace_nodes(model.graph, add.nodes)
        model.graph.initializer.extend(add.initializers.values())
        prune(model.graph)


@Contract(requires=[well_formed], ensures=[well_formed], mutates=True)
def add_fused_attention(model: onnx.ModelProto, row: onnx.ModelProto, join: TryJoin) -> None:
    """Have ``model`` give what that makes of ``row``, a graph of ``for_one_row`` with the same values, as outputs."""
    found = [each._replace(context=f"cache/{each.context}") for each in _fusible(row.graph)]
    _fused(model, found, join).add_to(model.graph)
    written = {name for node in model.graph.node for name in node.output}
    model.graph.output.extend(floats(each.context, None) for each in found if each.context in written)


def _fused(model: onnx.ModelProto, found: Sequence[_Attended], join: TryJoin) -> Writer:
    """The operators; the model is given the matrices that they read."""
    add, stored = Writer("fused."), {each.name: each for each in model.graph.initializer}
    of = {each: tuple(product.matrix for product in each.products) for each in found}
    joined = {names: join([stored[name] for name in names], joined_name(names)) for names in dict.fromkeys(of.values())}
    # Layers may share theirs.
    model.graph.initializer.extend(matrix for matrix in joined.values() if matrix is not None)
    for each in found:
        if (matrix := joined[of[each]]) is not None:
            each.write(add, matrix.name)
    if add.nodes:
        use_contrib(model)
    return add
