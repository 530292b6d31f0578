"""Passes: a graph of packed tokens, rewritten for a batch of one row without padding.

``for_one_row``: all tokens of such a row are real, so nothing has to be looked up: heads are split and merged by
transposes, positions are the first of their table, no token is left out of the attention, a mean is a mean over all,
and the last layer's output is the row's hidden states.  A product with a task's matrix adds what is added to it (one
thread writes that first, which a batch would wait for), and LoRA's updates of what reads one x share a product:

    y_i + s_i (x A_i^T) B_i^T = y_i + (x [s_1 A_1; s_2 A_2; ...]^T) [0 B_i 0]^T

The result equals the packed graph's to float32's rounding.

``join_attention``: queries, keys and values as one product, of the three matrices side by side, a copy of their own:
each product waits for all threads, so a short text takes 2 to 6 % less time.  In 8 bits ONNX Runtime's ``QAttention``
takes usual attention too (MiniLM: 5 to 8 % less).  Bytes, scales and sums are those of the separate products.

Letters: T tokens, d hidden, h heads, e = d / h, r rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import attrgetter
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex, Role
from edgepeft.backbones.emit import Writer
from edgepeft.backbones.packing import COLUMN, INDEX, MERGE, N_HEADS, SPLIT
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import STATES, joined_name, names_in, without_prefix
from edgepeft.graph.protos import (
    CONTRIB,
    attributes,
    constant,
    copied,
    either_way,
    external_tensors,
    floats,
    match_chain,
    readers,
    replace_nodes,
    replace_reads,
    trace_back,
    use_contrib,
    values_read,
    writers,
)
from edgepeft.graph.quantise import integer_products


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
    _add_in_products(graph)
    rewriter = _Rewriter(graph, writers(graph), int(heads))
    for node in list(graph.node):
        rewriter.take(node)
    rewriter.write()
    return True


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

    def write(self) -> None:
        replace_nodes(self._graph, self.nodes)
        instead = {old: self._instead.get(new, new) for old, new in self._instead.items() if old not in self._outputs}
        replace_reads(self._graph, instead)
        self._graph.initializer.extend(self.initializers.values())
        prune(self._graph)


class _Update(NamedTuple):
    """What a task adds to a value: ``factors`` (x A^T) B^T."""

    total: onnx.NodeProto  # the sum
    rest: str  # what it is added to
    x: str
    a: str
    b: str
    factors: tuple[str, ...]


def _add_in_products(graph: onnx.GraphProto) -> None:
    """Have products with a task's own matrices add what is added to them; updates of one x share the first product."""
    writer, times, add = writers(graph), values_read(graph), Writer("delta/one_row.")
    scalars = {each.name for each in graph.initializer if not each.dims}
    stored = {each.name for each in graph.initializer}  # and what is made of nothing else
    for node in graph.node:
        if stored.issuperset(node.input):
            stored.update(node.output)
        if node.op_type == "Constant" and (value := constant(graph, node.output[0])) is not None and value.size == 1:
            scalars.add(node.output[0])
    ranks = {each.name: each.dims[0] for each in graph.initializer if len(each.dims) == 2}
    outputs = {output.name for output in graph.output}
    updates: dict[str, list[_Update]] = {}

    def is_own(node: onnx.NodeProto | None) -> TypeGuard[onnx.NodeProto]:
        """Whether it multiplies tokens, [T, .], by a task's matrix."""
        if node is None or node.op_type != "Gemm" or len(node.input) != 2 or attributes(node).get("beta", 1) != 1:
            return False
        return node.input[1].startswith("delta/") and node.input[0] not in stored

    def update_of(total: onnx.NodeProto, value: str, rest: str) -> _Update | None:
        matrices, factors = list[str](), list[str]()
        while times[value] == 1 and (node := writer.get(value)) is not None:
            numbers = [name for name in node.input if name in scalars]
            if is_own(node) and node.input[1] in ranks and _is_x_w(node):
                matrices.append(node.input[1])
                value = node.input[0]
                if len(matrices) == 2:
                    return _Update(total, rest, value, matrices[1], matrices[0], tuple(factors))
            elif node.op_type == "Mul" and len(numbers) == 1:
                factors += numbers
                value = next(name for name in node.input if name not in numbers)
            else:
                return None
        return None

    for node in graph.node:
        if node.op_type != "Add" or node.output[0] in outputs:  # logits: their number is no task's own
            continue
        for value, rest in either_way(node):
            if (update := update_of(node, value, rest)) is not None:
                updates.setdefault(update.x, []).append(update)
                break
            if is_own(product := writer.get(value)) and times[value] == 1:
                product = copied(product)
                product.input.append(rest)
                product.name, product.output[:] = node.name, node.output
                add.nodes.append(product)
                break
    for x, found in updates.items():
        a = [reduce(partial(add.op, "Mul"), update.factors, update.a) for update in found]
        low = add.op("Gemm", x, a[0] if len(a) == 1 else add.op("Concat", *a, axis=0), transB=1)  # (T, all r)
        before, total = 0, sum(ranks[update.a] for update in found)
        for update in found:
            after = total - before - (own := ranks[update.a])
            b = add.op("Pad", update.b, add.ints(0, before, 0, after)) if len(found) > 1 else update.b
            add.op("Gemm", low, b, update.rest, output=update.total.output[0], transB=1)
            before += own
    replace_nodes(graph, add.nodes)
    graph.initializer.extend(add.initializers.values())


# Tensors side by side along an axis, under a name; None where there is no such copy.
TryJoin = Callable[[Sequence[TensorProto], int, str], TensorProto | None]

FOR_ATTENTION = ":attention"  # how the name of a matrix ends that ``QAttention`` reads: packed copies are an operator's
_MIDDLE = "zero_point_128"  # the byte of 0 of what has one step for all rows
# How ``for_one_row`` splits heads, (T, 1, h, e) -> (1, h, T, e) or (1, h, e, T), and merges them, -> (1, T, h, e).
_SPLIT, _SPLIT_KEYS, _MERGED = [1, 2, 0, 3], [1, 2, 3, 0], [0, 2, 1, 3]


class _Heads(NamedTuple):
    """``heads``, ``transposed`` as keys are, of a product of ``x``, in 8 bits its bytes, with a stored matrix."""

    heads: str
    transposed: bool
    shape: tuple[int, ...]  # before they are transposed, (-1, 1, h, e)
    x: str
    matrix: str
    scale: str  # of the matrix' columns in 8 bits, or ""
    bias: str  # or ""
    update: tuple[str, str] | None  # what a task adds: a value (T, r), and a matrix [d, r]

    @property
    def common(self) -> tuple[Any, ...]:
        """What is the same of all that one product gives."""
        return self.x, self.shape, bool(self.scale), bool(self.bias)


class _Attended(NamedTuple):
    """Queries, keys and values of one x; ``context`` (T, d) is of the usual attention in 8 bits, or ""."""

    parts: tuple[_Heads, ...]
    context: str

    def write(self, add: Writer, join: Callable[[str, int], str]) -> str:
        """What the joined matrix gives, or "" where there is none: the context, or products with biases (T, 3 d)."""
        x, (*_, h, _), in_bytes, has_bias = self.parts[0].common
        if not (matrix := join("matrix", 1 if in_bytes else 0)):
            return ""
        if self.context:
            rows, unit = add.op("Unsqueeze", x, first := add.ints(0)), add.number(1, np.float32)
            inputs = [rows, matrix, join("bias", 0), unit, join("scale", 0), "", add.number(128, np.uint8)]
            attended = add.op("QAttention", *inputs, add.number(0, np.int8), domain=CONTRIB, num_heads=h)
            return add.op("Squeeze", attended, first)
        value = add.op("Gemm", x, matrix, transB=1) if not in_bytes else add.op("MatMulInteger", x, matrix, _MIDDLE)
        if in_bytes:
            value = add.op("Mul", add.op("Cast", value, to=TensorProto.FLOAT), join("scale", 0))
        return add.op("Add", value, join("bias", 0)) if has_bias else value

    def split(self, add: Writer, own: Writer, value: str) -> None:
        """Heads of what ``write`` gives; ``own`` takes what follows from a task's values alone."""
        if self.context:
            add.op("Identity", value, output=self.context)
            return
        if updates := [part.update for part in self.parts if part.update]:
            (low, b), *_ = updates
            none = own.op("Mul", b, own.number(0, np.float32))
            side_by_side = own.op("Concat", *(part.update[1] if part.update else none for part in self.parts), axis=0)
            value = add.op("Gemm", low, side_by_side, value, transB=1)
        *_, h, e = self.parts[0].shape
        n = len(self.parts)
        heads = add.op("Transpose", add.op("Reshape", value, add.ints(-1, 1, n * h, e)), perm=_SPLIT)
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
        if not chain or list(attributes(chain[1])["perm"]) != _MERGED or attributes(chain[3]).get("axis", -1) != -1:
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
        if len(group) != 3 or len({part.update[0] for part in group if part.update}) > 1:
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
        target = constant(graph, split[1].input[1]) if perm in (_SPLIT, _SPLIT_KEYS) else None
        if target is None or target.size != 4:
            continue
        value, update, bias = split[1].input[0], None, ""
        above = writer.get(value)
        if above is not None and above.op_type == "Gemm" and len(above.input) == 3:  # of ``_add_in_products``
            update, value = (above.input[0], above.input[1]), above.input[2]
        if total := match_chain(value, writer, "Add"):
            value, bias = next((pair for pair in either_way(total[0]) if stored.get(pair[1]) == 1), (value, ""))
        product, of_floats = products.get(value), writer.get(value)
        if product is not None and product.rounded is not None:
            x, matrix, scale = product.rounded, product.matrix, product.scale
        elif of_floats is not None and _is_x_w(of_floats) and len(of_floats.input) == 2:
            (x, matrix), scale = of_floats.input, ""
        else:
            continue
        if stored.get(matrix) == 2 and stored.get(scale, 1) == 1:
            yield _Heads(node.output[0], perm == _SPLIT_KEYS, tuple(target.tolist()), x, matrix, scale, bias, update)


def _is_x_w(node: onnx.NodeProto) -> bool:
    """Whether it is x W^T, and what is added to it."""
    given = attributes(node)
    return (
        node.op_type == "Gemm" and given.get("transB") == 1 and not given.get("transA") and given.get("alpha", 1) == 1
    )


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def join_attention(model: onnx.ModelProto, join: TryJoin) -> None:
    """Rewrite queries, keys and values of a graph of ``for_one_row`` wherever ``join`` has the matrices."""
    add, own = Writer("joined."), Writer("delta/joined.")
    for each, value in _joined(model, [*_attended(model.graph)], join, add):
        each.split(add, own, value)
    if add.nodes:
        for writer in (add, own):
            replace_nodes(model.graph, writer.nodes)
            model.graph.initializer.extend(writer.initializers.values())
        prune(model.graph)


@Contract(requires=[well_formed], ensures=[well_formed], mutates=True)
def add_joined(model: onnx.ModelProto, row: onnx.ModelProto, join: TryJoin) -> list[str]:
    """Have ``model`` give as outputs what joined matrices give in ``row``, a graph of ``for_one_row`` with the same
    values; returns these tensors' names.
    """
    add, known = Writer("joined."), {each.name for each in model.graph.initializer}
    values = [value for _, value in _joined(model, [*_attended(row.graph)], join, add)]
    add.add_to(model.graph)
    model.graph.output.extend(floats(value, None) for value in values)
    return [each.name for each in model.graph.initializer if each.name not in known and len(names_in(each.name)) > 1]


def _joined(
    model: onnx.ModelProto, found: Sequence[_Attended], join: TryJoin, add: Writer
) -> Iterator[tuple[_Attended, str]]:
    """What joined matrices give of each; the model is given the tensors that are read."""
    stored = {each.name: each for each in model.graph.initializer}
    made: dict[str, TensorProto | None] = {}  # layers may share theirs
    for each in found:

        def joined(kind: str, axis: int, each: _Attended = each) -> str:
            names = [getattr(part, kind) for part in each.parts]
            name = joined_name(names) + (FOR_ATTENTION if each.context and kind == "matrix" else "")
            if name not in made:
                made[name] = join([stored[name] for name in names], axis, name)
                model.graph.initializer.extend(filter(None, [made[name]]))
            return name if made[name] is not None else ""

        if value := each.write(add, joined):
            yield each, value
    if any(node.domain == CONTRIB for node in add.nodes):
        use_contrib(model)
