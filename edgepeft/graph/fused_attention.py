"""Pass: queries, keys, values and attention of one row, in 8 bits, as one operator: ONNX Runtime's ``QAttention``.

Its threads share all heads' products at once, where three products and the steps between them each wait for all
threads: a short text takes 6 to 8 % less time on two of them (MiniLM), and up to 7 % on one.  It has the three
matrices side by side, a copy of their own.  The bytes, scales and sums are those of the separate products.

Letters: T tokens, d hidden, h heads, e = d / h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.backbones.emit import Writer
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.joined import joined_name
from edgepeft.graph.protos import CONTRIB, attributes, constant, either_way, floats, matched, put, use_contrib, writers
from edgepeft.graph.quantise import IntegerProduct, integer_products

# Three tensors [d, d] side by side, under a name; None where there is no such copy.
Made = Callable[[Sequence[TensorProto], str], TensorProto | None]

# How ``graph.one_row`` splits heads, (T, 1, h, e) -> (1, h, T, e) or (1, h, e, T), and merges them, -> (1, T, h, e).
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
        split = matched(value, writer, "Transpose", "Reshape", "Add")
        if not split or list(attributes(split[0])["perm"]) != list(perm):
            return None
        target = constant(graph, split[1].input[1])
        shape = [] if target is None else target.ravel().tolist()
        found = [(products[y], b, shape) for y, b in either_way(split[2]) if y in products and b in vectors]
        return found[0] if found and len(shape) == 4 and found[0][0].rounded is not None else None

    for node in graph.node:
        chain = matched(node.output[0], writer, "Reshape", "Transpose", "MatMul", "Softmax", "MatMul", "Mul")
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
def fuse_attention(model: onnx.ModelProto, made: Made) -> None:
    """Rewrite attention of a graph of ``for_one_row`` wherever ``made`` has the matrices."""
    if (add := _fused(model, [*_fusible(model.graph)], made)).nodes:
        put(model.graph, add.nodes)
        model.graph.initializer.extend(add.initializers.values())
        prune(model.graph)


@Contract(requires=[well_formed], ensures=[well_formed], mutates=True)
def add_fused_attention(model: onnx.ModelProto, row: onnx.ModelProto, made: Made) -> None:
    """Have ``model`` give what that makes of ``row``, a graph of ``for_one_row`` with the same values, as outputs."""
    found = [each._replace(context=f"cache/{each.context}") for each in _fusible(row.graph)]
    _fused(model, found, made).add_to(model.graph)
    written = {name for node in model.graph.node for name in node.output}
    model.graph.output.extend(floats(each.context, None) for each in found if each.context in written)


def _fused(model: onnx.ModelProto, found: Sequence[_Attended], made: Made) -> Writer:
    """The operators; the model is given the matrices that they read."""
    add, stored = Writer("fused."), {each.name: each for each in model.graph.initializer}
    of = {each: tuple(product.matrix for product in each.products) for each in found}
    joined = {names: made([stored[name] for name in names], joined_name(names)) for names in dict.fromkeys(of.values())}
    # Layers may share theirs.
    model.graph.initializer.extend(matrix for matrix in joined.values() if matrix is not None)
    for each in found:
        if (matrix := joined[of[each]]) is not None:
            each.write(add, matrix.name)
    if add.nodes:
        use_contrib(model)
    return add
