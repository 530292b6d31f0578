"""Passes: a graph of packed tokens, rewritten for a batch of one row without padding.

``for_one_row``: all tokens of such a row are real, so nothing has to be looked up: heads are split and merged by
transposes, positions are the first of their table, no token is left out of the attention, a mean is a mean over all,
and the last layer's output is the row's hidden states.  A product with a task's matrix adds what is added to it (one
thread writes that first, which a batch would wait for), and LoRA's updates of what reads one x share a product:

    [u_1 u_2 ...] = x [s_1 A_1; s_2 A_2; ...]^T        y_i + s_i (x A_i^T) B_i^T = y_i + u_i B_i^T

The result equals the packed graph's to float32's rounding.

Letters: T tokens, d hidden, h heads, e = d / h.
"""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import NamedTuple, TypeGuard

import onnx
from onnx import helper

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex, Role
from edgepeft.backbones.emit import Writer
from edgepeft.backbones.packing import COLUMN, INDEX, MERGE, N_HEADS, SPLIT
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import STATES
from edgepeft.graph.protos import (
    attributes,
    constant,
    copied,
    either_way,
    match_chain,
    readers,
    replace_nodes,
    replace_reads,
    trace_back,
    values_read,
    writers,
)


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def for_one_row(model: onnx.ModelProto) -> bool:
    """Rewrite a spliced graph for input_ids [1, T] whose attention_mask is 1 throughout; returns whether it can be.

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


# How heads are split, (T, 1, h, e) -> (1, h, T, e) or (1, h, e, T), and merged, -> (1, T, h, e).
SPLIT_HEADS, SPLIT_KEYS, MERGED = [1, 2, 0, 3], [1, 2, 3, 0], [0, 2, 1, 3]


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
            other = next((name for name in node.input if name != Role.ATTENTION_BIAS.value), "")
            bias = match_chain(Role.ATTENTION_BIAS.value, writer, "Unsqueeze", "Where")
            known = (match_chain(other, writer, operator) for operator in ("MatMul", "Gather"))  # scores, or distances'
            none = constant(self._graph, bias[1].input[1]) if bias and any(known) else None
            if none is not None and not none.any():  # the packing's own: 0 for each token
                self._instead[result] = other
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
            self.op("Transpose", value, output=result, perm=MERGED)

    def _split(self, value: str, result: str, e: int) -> None:
        """(T, d) -> (T, 1, h, e) -> (1, h, T, e), or at once (1, h, e, T), where only that is read.

        ONNX Runtime's products take these two orders, and a factor, as they lie (``FusedMatMul``): nothing is copied.
        """
        readers, scale = self._readers.get(result, []), match_chain(value, self._writer, "Mul")
        keys = readers[0] if len(readers) == 1 and result not in self._outputs else None
        number = constant(self._graph, scale[0].input[1]) if scale else None
        heads, perm, factor = result, SPLIT_HEADS, ""
        if keys is not None and keys.op_type == "Transpose" and attributes(keys).get("perm") == [0, 1, 3, 2]:
            heads, perm = keys.output[0], SPLIT_KEYS
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
        number = constant(graph, node.output[0]) if node.op_type == "Constant" else None
        if number is not None and number.size == 1:
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
            if is_own(node) and node.input[1] in ranks and is_x_w(node):
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
        _share(add, x, found, [ranks[update.a] for update in found])
    replace_nodes(graph, add.nodes)
    graph.initializer.extend(add.initializers.values())


def _share(add: Writer, x: str, updates: Sequence[_Update], ranks: Sequence[int]) -> None:
    """Write updates of one x, whose first products are one."""
    a = [reduce(partial(add.op, "Mul"), update.factors, update.a) for update in updates]
    low = [add.op("Gemm", x, a[0] if len(a) == 1 else add.op("Concat", *a, axis=0), transB=1)]  # (T, all r)
    if len(updates) > 1:
        (whole,), low = low, [f"{update.total.output[0]}/low" for update in updates]
        add.nodes.append(helper.make_node("Split", [whole, add.ints(*ranks)], low, f"{whole}/parts", axis=-1))
    for update, of_update in zip(updates, low, strict=True):
        add.op("Gemm", of_update, update.b, update.rest, output=update.total.output[0], transB=1)
        add.nodes[-1].name = update.total.name  # a delta may call another node as it calls this value


def is_x_w(node: onnx.NodeProto) -> bool:
    """Whether it is x W^T, plus what it adds if it adds something, without factors."""
    given = {"alpha": 1, "beta": 1, "transA": 0, **attributes(node)}
    plain = given["alpha"] == given["beta"] == given.get("transB") == 1 and not given["transA"]
    return node.op_type == "Gemm" and plain
