"""How much memory a graph takes: its values while it runs, and what it reads of the weights file.

Values live as ONNX Runtime has them: from the node that gives one to the last that reads it; Reshape and its like
give the same memory; elementwise operators write over an input without later readers; a transposed operand of a
product is a flag of the product.  Weights and inputs are not counted among them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import onnx

from edgepeft.graph.protos import followed, reads, writers
from edgepeft.graph.shapes import Spec

__all__ = ["mapped_bytes", "matrices_read", "packed_bytes", "peak_bytes", "stored_bytes"]

_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
_PRODUCTS = {"Gemm", "MatMul"}
_IN_PLACE = {"Add", "Cast", "Div", "Erf", "Exp", "Gelu", "LogSoftmax", "Mul", "Neg", "Relu", "Softmax", "Sub", "Tanh"}
_MATRIX_PRODUCTS, _SAME = {"Gemm", "MatMul", "MatMulInteger"}, {"Identity", "Transpose", "Cast", "DequantizeLinear"}


def peak_bytes(graph: onnx.GraphProto, specs: Mapping[str, Spec], *, in_place: bool = True) -> int:
    """The most that is alive at once; not ``in_place``: each output has memory of its own."""
    run = _Run(graph, specs, _IN_PLACE if in_place else set())
    for node in run.order:
        run.take(node)
    return run.most


class _Run:
    def __init__(self, graph: onnx.GraphProto, specs: Mapping[str, Spec], in_place: set[str]) -> None:
        self.specs, self.most, self._in_place = specs, 0, in_place
        self._writer = writers(graph)
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in reads(node):
                self._readers.setdefault(name, []).append(node)
        self._outputs = {output.name for output in graph.output}
        self.order = _depth_first([output.name for output in graph.output], self._writer)
        self._left = Counter(
            self._root(name) for node in self.order if not self._is_view(node) for name in set(reads(node))
        )
        self._left.update(self._root(name) for name in self._outputs)
        self._alive: dict[str, int] = {}

    def take(self, node: onnx.NodeProto) -> None:
        """Run one node."""
        if self._is_view(node) or node.op_type == "Constant":
            return
        roots = [self._root(name) for name in set(reads(node))]
        self._left.subtract(roots)
        done = {name for name in roots if not self._left[name] and name in self._alive}
        for name in filter(None, node.output):
            size = self.specs[name].n_bytes
            if node.op_type in self._in_place:
                over = next((old for old in done if self._alive[old] == size), None)
                if over is not None:
                    done.remove(over)
                    del self._alive[over]
            self._alive[name] = size
        self.most = max(self.most, sum(self._alive.values()))
        for name in (*done, *(name for name in node.output if not self._left[name])):
            self._alive.pop(name, None)

    def _is_view(self, node: onnx.NodeProto) -> bool:
        return node.op_type in _VIEWS or self._is_flag(node)

    def _is_flag(self, node: onnx.NodeProto) -> bool:
        """A transposed operand of products alone, or of a further transposition."""
        name = node.output[0]
        return (
            node.op_type == "Transpose"
            and name not in self._outputs
            and all(r.op_type in _PRODUCTS or self._is_flag(r) for r in self._readers.get(name, []))
        )

    def _root(self, name: str) -> str:
        """The value whose memory this one is in."""
        while name in self._writer and self._is_view(self._writer[name]):
            name = self._writer[name].input[0]
        return name


def _depth_first(outputs: list[str], writer: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """ONNX Runtime's default order: what an output needs stands before it, and nothing else."""
    order: dict[int, onnx.NodeProto] = {}
    waiting: list[tuple[str, bool]] = [(name, False) for name in reversed(outputs)]
    while waiting:
        name, ready = waiting.pop()
        node = writer.get(name)
        if node is None or id(node) in order:
            continue
        if ready:
            order[id(node)] = node
            continue
        waiting.append((name, True))
        waiting += [(read, False) for read in reversed(list(reads(node)))]
    return list(order.values())


def packed_bytes(graph: onnx.GraphProto) -> int:
    """Of the matrices of the weights file, once for each product that reads them."""
    stored = stored_bytes(graph)
    return sum(stored.get(name, 0) for name in matrices_read(graph))


def mapped_bytes(graph: onnx.GraphProto) -> int:
    """Of the matrices of the weights file that some product reads, each once."""
    stored = stored_bytes(graph)
    return sum(stored.get(name, 0) for name in set(matrices_read(graph)))


def stored_bytes(graph: onnx.GraphProto) -> dict[str, int]:
    """Of each tensor of the weights file that the graph names."""
    return {
        tensor.name: Spec(tensor.data_type, tuple(tensor.dims)).n_bytes
        for tensor in graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


def matrices_read(graph: onnx.GraphProto) -> Iterator[str]:
    """What products read, by name: once for each of them, whatever it is transposed by."""
    writer = writers(graph)
    for node in graph.node:
        if node.op_type in _MATRIX_PRODUCTS:
            for operand in node.input[:2]:
                yield followed(operand, writer, _SAME)[-1]
