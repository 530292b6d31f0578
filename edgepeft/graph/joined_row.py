"""Pass: queries, keys and values of a row alone as one product, of the three matrices side by side.

They are a copy of their own.  Each product waits for all threads, so a short text takes 2 to 6 % less time.  In 8 bits
ONNX Runtime's ``QAttention`` takes usual attention too (MiniLM: 5 to 8 % less).  Bytes, scales and sums are those of
the separate products.  What LoRA adds (``one_row``) is one product more, block-diagonal as in ``joined``.

Letters: T tokens, d hidden, h heads, e = d / h, r rank.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.emit import Writer
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import joined_name, without_prefix
from edgepeft.graph.one_row import MERGED, SPLIT_HEADS, SPLIT_KEYS, is_x_w
from edgepeft.graph.protos import (
    CONTRIB,
    attributes,
    constant,
    either_way,
    external_tensors,
    floats,
    match_chain,
    place_of,
    replace_nodes,
    use_contrib,
    writers,
)
from edgepeft.graph.quantise import integer_products

# Tensors side by side along an axis, under a name.
JoinTensors = Callable[[Sequence[TensorProto], int, str], TensorProto]

FOR_ATTENTION = ":attention"  # how the name of a matrix ends that ``QAttention`` reads: packed copies are an operator's
_MIDDLE = "zero_point_128"  # the byte of 0 of what has one step for all rows


class _Heads(NamedTuple):
    """``heads``, ``transposed`` as keys are, of a product of ``x``, in 8 bits its bytes, with a stored matrix."""

    heads: str
    transposed: bool
    shape: tuple[int, ...]  # before they are transposed, (-1, 1, h, e)
    x: str
    matrix: str
    scale: str  # of the matrix' columns in 8 bits, or ""
    bias: str  # or ""
    update: "_Update | None"

    @property
    def common(self) -> tuple[Any, ...]:
        """Equal for heads that one product can give."""
        return self.x, self.shape, bool(self.scale), bool(self.bias)


class _Update(NamedTuple):
    """What a task adds: the columns of ``low`` (T, all r), ``before`` first ones aside, by ``matrix`` [d, r]."""

    low: str
    matrix: str
    before: int = 0
    after: int = 0


class _Attended(NamedTuple):
    """Queries, keys and values of one x; ``context`` (T, d) is of the usual attention in 8 bits, or ""."""

    parts: tuple[_Heads, ...]
    context: str

    def tensors(self) -> Iterator[tuple[Sequence[str], int, str]]:
        """Matrix, scale and bias: names of what to join, along which axis, and the result's, "" where there is none."""
        for kind in ("matrix", "scale", "bias"):
            names = [getattr(part, kind) for part in self.parts]
            axis = 1 if kind == "matrix" and self.parts[0].scale else 0
            name = joined_name(names) if all(names) else ""
            yield names, axis, name + FOR_ATTENTION if self.context and kind == "matrix" else name

    def write(self, add: Writer) -> str:
        """Write the joined product; returns the context, or all three values with biases (T, 3 d)."""
        x, (*_, h, _) = self.parts[0].x, self.parts[0].shape
        matrix, scale, bias = (name for *_, name in self.tensors())
        if self.context:
            rows, unit = add.op("Unsqueeze", x, first := add.ints(0)), add.number(1, np.float32)
            inputs = [rows, matrix, bias, unit, scale, "", add.number(128, np.uint8), add.number(0, np.int8)]
            return add.op("Squeeze", add.op("QAttention", *inputs, domain=CONTRIB, num_heads=h), first)
        if scale:
            sums = add.op("Cast", add.op("MatMulInteger", x, matrix, _MIDDLE), to=TensorProto.FLOAT)
            value = add.op("Mul", sums, scale)
        else:
            value = add.op("Gemm", x, matrix, transB=1)
        return add.op("Add", value, bias) if bias else value

    def split(self, add: Writer, own: Writer, value: str) -> None:
        """Heads of what ``write`` gives; ``own`` takes what follows from a task's values alone."""
        if self.context:
            add.op("Identity", value, output=self.context)
            return
        if updates := [part.update for part in self.parts if part.update]:
            wide = [
                own.op("Pad", update.matrix, own.ints(0, update.before, 0, update.after))
                if update.before or update.after
                else update.matrix
                for update in updates
            ]
            zeros, of_update = own.op("Mul", wide[0], own.number(0, np.float32)), iter(wide)
            side_by_side = own.op("Concat", *(next(of_update) if p.update else zeros for p in self.parts), axis=0)
            value = add.op("Gemm", updates[0].low, side_by_side, value, transB=1)
        *_, h, e = self.parts[0].shape
        n = len(self.parts)
        heads = add.op("Transpose", add.op("Reshape", value, add.ints(-1, 1, n * h, e)), perm=SPLIT_HEADS)
        names = [f"{part.heads}/rows" if part.transposed else part.heads for part in self.parts]
        add.nodes.append(helper.make_node("Split", [heads, add.ints(*[h] * n)], names, axis=1))
        for part, name in zip(self.parts, names, strict=True):
            if part.transposed:
                add.op("Transpose", name, output=part.heads, perm=(0, 1, 3, 2))


def _attended(graph: onnx.GraphProto) -> Iterator[_Attended]:
    """Each three of a graph of ``for_one_row`` that one product can take the place of."""
    parts = {part.heads: part for part in _heads(graph)}
    writer = writers(graph)
    usual: dict[frozenset[str], tuple[tuple[str, ...], str]] = {}  # heads -> they in order, and the context
    for node in graph.node:
        chain = match_chain(node.output[0], writer, "Reshape", "Transpose", "MatMul", "Softmax", "MatMul", "Mul")
        if not chain or list(attributes(chain[1])["perm"]) != MERGED or attributes(chain[3]).get("axis", -1) != -1:
            continue
        scale, read = constant(graph, chain[5].input[1]), (chain[5].input[0], chain[4].input[1], chain[2].input[1])
        if (query := parts.get(read[0])) is None or not (query.scale and query.bias):
            continue
        if scale is not None and scale.size == 1 and np.isclose(scale.item(), query.shape[-1] ** -0.5, rtol=1e-6):
            usual[frozenset(read)] = read, node.output[0]
    groups: dict[tuple[Any, ...], list[_Heads]] = {}
    for part in parts.values():
        groups.setdefault(part.common, []).append(part)
    for group in groups.values():
        if len(group) != 3 or len({part.update.low for part in group if part.update}) > 1:
            continue
        ordered, context = usual.get(frozenset(part.heads for part in group), ((), ""))
        if ordered and not any(part.update for part in group):
            yield _Attended(tuple(parts[name] for name in ordered), context)
        else:
            yield _Attended(tuple(sorted(group, key=attrgetter("matrix"))), "")  # whatever a task does to their order


def _heads(graph: onnx.GraphProto) -> Iterator[_Heads]:
    """Heads of products with the backbone's matrices."""
    writer, products = writers(graph), {product.y: product for product in integer_products(graph)}
    # A large task's own tensors lie in a file too.
    backbones = (t for t in external_tensors(graph) if not (t.name.startswith("delta/") or without_prefix(t.name)[0]))
    stored = {each.name: len(each.dims) for each in backbones}
    for node in graph.node:
        split = match_chain(node.output[0], writer, "Transpose", "Reshape")
        perm = list(attributes(split[0])["perm"]) if split else []
        target = constant(graph, split[1].input[1]) if perm in (SPLIT_HEADS, SPLIT_KEYS) else None
        if target is None or target.size != 4:
            continue
        value, update, bias = split[1].input[0], None, ""
        above = writer.get(value)
        if above is not None and is_x_w(above) and len(above.input) == 3:
            update, value = _update(graph, above, writer), above.input[2]
        if total := match_chain(value, writer, "Add"):
            value, bias = next((pair for pair in either_way(total[0]) if stored.get(pair[1]) == 1), (value, ""))
        product, of_floats = products.get(value), writer.get(value)
        if product is not None and product.rounded is not None:
            x, matrix, scale = product.rounded, product.matrix, product.scale
        elif of_floats is not None and is_x_w(of_floats) and len(of_floats.input) == 2:
            (x, matrix), scale = of_floats.input, ""
        else:
            continue
        if stored.get(matrix) == 2 and stored.get(scale, 1) == 1:
            yield _Heads(node.output[0], perm == SPLIT_KEYS, tuple(target.tolist()), x, matrix, scale, bias, update)


def _update(graph: onnx.GraphProto, node: onnx.NodeProto, writer: Mapping[str, onnx.NodeProto]) -> _Update:
    """What a product of ``one_row`` adds to ``node``'s third input."""
    low, matrix, _ = node.input
    split = writer.get(low)
    if split is None or split.op_type != "Split" or (sizes := constant(graph, split.input[1])) is None:
        return _Update(low, matrix)
    place = list(split.output).index(low)
    return _Update(split.input[0], matrix, int(sizes[:place].sum()), int(sizes[place + 1 :].sum()))


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def join_attention(model: onnx.ModelProto, join: JoinTensors, known: Container[str] | None = None) -> None:
    """Rewrite queries, keys and values of a graph of ``for_one_row``, those alone whose joined matrix is ``known``."""
    add, own = Writer("joined."), Writer("delta/joined.")
    found = [each for each in _attended(model.graph) if known is None or next(each.tensors())[2] in known]
    _join_tensors(model, found, join)
    for each in found:
        each.split(add, own, each.write(add))
    if found:
        for writer in (add, own):
            replace_nodes(model.graph, writer.nodes)
            model.graph.initializer.extend(writer.initializers.values())
        prune(model.graph)


def joined_bytes(row: onnx.ModelProto) -> int:
    """Bytes of what ``join_attention`` joins in a graph of ``for_one_row``, which lies in the file a second time."""
    stored = {tensor.name: int(place_of(tensor)["length"]) for tensor in external_tensors(row.graph)}
    return sum(stored.get(part, 0) for each in _attended(row.graph) for parts, *_ in each.tensors() for part in parts)


@Contract(requires=[well_formed], ensures=[well_formed], mutates=True)
def add_joined(model: onnx.ModelProto, row: onnx.ModelProto, join: JoinTensors) -> list[str]:
    """Have ``model`` give as outputs what joined matrices give in ``row``, a graph of ``for_one_row`` with the same
    values; returns these tensors' names.
    """
    add, found, n_known = Writer("joined."), [*_attended(row.graph)], len(model.graph.initializer)
    _join_tensors(model, found, join)
    names = [each.name for each in model.graph.initializer[n_known:]]
    values = [each.write(add) for each in found]
    add.add_to(model.graph)
    model.graph.output.extend(floats(value, None) for value in values)
    return names


def _join_tensors(model: onnx.ModelProto, found: Sequence[_Attended], join: JoinTensors) -> None:
    """Give the model the joined tensors of each; layers may share theirs."""
    stored = {each.name: each for each in model.graph.initializer}
    known = {*stored}
    for parts, axis, name in (tensors for each in found for tensors in each.tensors()):
        if name and name not in known:
            known.add(name)  # and not the tensor, whose values the model has
            model.graph.initializer.append(join([stored[part] for part in parts], axis, name))
    if any(each.context for each in found):
        use_contrib(model)
