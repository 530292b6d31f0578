"""Pass: a graph of packed tokens, rewritten for a batch of one row without padding.

All tokens of such a row are real, so nothing has to be looked up: heads are split and merged by transposes, positions
are the first of their table, no token is left out of the attention, a mean is a mean over all, and the last layer's
output is the row's hidden states.  The result equals the packed graph's to float32's rounding.

Letters: T tokens, d hidden, h heads, e = d / h.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from edgepeft.backbones.base import PACKED_INDICES, PackedIndex, Role
from edgepeft.backbones.emit import Writer
from edgepeft.backbones.packing import COLUMN, INDEX, MERGE, N_HEADS, SPLIT
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import STATES
from edgepeft.graph.protos import attributes, constant, followed, matched, put, read_instead, readers, writers


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
            if shape := matched(row.input[1], writer, "Gather", "Shape"):
                self._length = self.op("Shape", shape[1].input[0], start=1, end=2)

    def take(self, node: onnx.NodeProto) -> None:
        result, writer = node.output[0], self._writer
        if node.op_type == "Gather" and not any(attributes(node).values()):
            if above := matched(node.input[0], writer, "Reshape"):
                self._gathered(node, *above)
            elif COLUMN in followed(node.input[1], writer, ["Identity"]) and self._length:
                self.op("Slice", node.input[0], self._first, self._length, self._first, output=result)
        elif node.op_type == "Add" and Role.ATTENTION_BIAS.value in node.input:
            scores = next((name for name in node.input if name != Role.ATTENTION_BIAS.value), "")
            if matched(scores, writer, "MatMul") and self._hides_padding():
                self._instead[result] = scores
        elif result == Role.POOLED_MEAN.value:
            if mean := matched(result, writer, "Div", "MatMul"):
                self.op("ReduceMean", mean[1].input[1], self.ints(0), output=result)
        elif result == STATES and (padded := matched(result, writer, "Mul", "Gather")):  # (T, d) -> (1, T, d)
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
        readers, scale = self._readers.get(result, []), self._writer.get(value)
        keys = readers[0] if len(readers) == 1 and result not in self._outputs else None
        heads, perm, factor = result, (1, 2, 0, 3), ""
        if keys is not None and keys.op_type == "Transpose" and attributes(keys).get("perm") == [0, 1, 3, 2]:
            heads, perm = keys.output[0], (1, 2, 3, 0)
        elif scale is not None and scale.op_type == "Mul" and self._is_number(scale.input[1]):
            value, heads, factor = scale.input[0], f"{result}/heads", scale.input[1]
        rows = self.op("Reshape", value, self.ints(-1, 1, self._n_heads, e), output=f"{result}/rows")
        self.op("Transpose", rows, output=heads, perm=perm)
        if factor:
            self.op("Mul", heads, factor, output=result)

    def _is_number(self, name: str) -> bool:
        value = constant(self._graph, name)
        return value is not None and value.size == 1

    def _is_flattened(self, value: str) -> bool:
        """Whether all that reads the merged heads joins them, whatever stands before."""
        readers = self._readers.get(value, [])
        targets = [constant(self._graph, node.input[1]) for node in readers if node.op_type == "Reshape"]
        joined = all(target is not None and target.size == 2 and target.ravel()[0] == -1 for target in targets)
        return joined and len(targets) == len(readers) and value not in self._outputs

    def _hides_padding(self) -> bool:
        """Whether the bias is the packing's own: 0 for each token, the lowest number for padding."""
        found = matched(Role.ATTENTION_BIAS.value, self._writer, "Unsqueeze", "Where")
        none = constant(self._graph, found[1].input[1]) if found else None
        return none is not None and not none.any()

    def write(self) -> bool:
        put(self._graph, self.nodes)
        instead = {old: self._instead.get(new, new) for old, new in self._instead.items() if old not in self._outputs}
        read_instead(self._graph, instead)
        self._graph.initializer.extend(self.initializers.values())
        prune(self._graph)
        return bool(self.nodes)
