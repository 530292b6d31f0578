"""Passes: one task's model for other readers: updates folded into weights, outputs in transformers' form.

``fold_linear``: what is added to a linear layer, or scales it, goes into its weights.

    x W + b + s (x A) B  =  x (W + s A B) + b        (x W + b) * l  =  x (W l) + b l

Of a model that stands alone no other task reads W, so it can be the sum: LoRA and its kin, (IA)^3 and the scale of the
queries then cost nothing.  Results are equal to float32's rounding; sums and products are formed in float64.

Letters: B batch, S padded length, T real tokens, K choices of a row, C outputs, d hidden size; a prompt's P tokens
stand in front of each row, and are among T.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from edgepeft.backbones.emit import OPSET, Writer
from edgepeft.graph.contract import Contract, all_used, gives_logits, same_inputs, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.names import END, LOGITS, START, STATES
from edgepeft.graph.protos import (
    attributes,
    copied,
    either_way,
    floats,
    integers,
    reads,
    replace,
    set_aside,
    values_read,
    writers,
)
from edgepeft.graph.splice import LENGTH, prompt_in

_Values = NDArray[Any]
_Chain = tuple[str, ...]  # constants by name: matrices that multiply from the right, vectors and numbers that scale
_MINUS = "minus one"
_STORED_SMALLER = ("Cast", "DequantizeLinear")  # a weight that is stored in fewer bits stays so


class _Linear(NamedTuple):
    """A value as x times the sum of ``products``, plus the sum of ``offsets``."""

    x: str
    products: tuple[_Chain, ...]
    offsets: tuple[_Chain, ...] = ()
    nodes: frozenset[int] = frozenset()  # that make it of x

    def times(self, factor: str, node: int) -> _Linear:
        products, offsets = (tuple((*chain, factor) for chain in chains) for chains in (self.products, self.offsets))
        return _Linear(self.x, products, offsets, self.nodes | {node})

    def plus(self, offset: _Chain, node: int) -> _Linear:
        return self._replace(offsets=(*self.offsets, offset), nodes=self.nodes | {node})


@Contract(requires=[well_formed], ensures=[well_formed, all_used], keeps=[same_interface], mutates=True)
def fold_linear(model: onnx.ModelProto) -> None:
    """Rewrite each value that is linear in another, by constants which the graph holds, as one product and one sum.

    Left as it is: what would need more weights than before (a matrix that several layers share; a bottleneck without
    an activation), and weights in fewer bits.
    """
    _Folder(model.graph).write()


class _Folder:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph, self._writer = graph, writers(graph)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._values: dict[str, _Values] = {_MINUS: np.array(-1, np.float32)}
        self._fixed = set(self._constants)  # what depends on no input, and is not stored in fewer bits
        self._reads = values_read(graph)
        self._linear: dict[str, _Linear] = {}
        for place, node in enumerate(graph.node):
            if self._fixed.issuperset(reads(node)) and not (node.op_type in _STORED_SMALLER or node.domain):
                self._fixed.update(node.output)
            found = self._of(node, place)
            if found is not None:
                self._linear[node.output[0]] = found

    def write(self) -> None:
        taken: set[int] = set()
        made: dict[int, list[onnx.NodeProto]] = {}
        for place, node in reversed([*enumerate(self._graph.node)]):
            found = self._linear.get(node.output[0])
            if found is not None and place not in taken and self._saves(found, node.output[0]):
                taken |= found.nodes
                made[place] = self._product(node.output[0], found)
        replace(self._graph.node, [new for i, node in enumerate(self._graph.node) for new in made.get(i, [node])])
        prune(self._graph)

    def _of(self, node: onnx.NodeProto, place: int) -> _Linear | None:
        match node.op_type if not node.domain else "":
            case "MatMul" | "Gemm":
                return self._of_product(node, place)
            case "Mul":
                for value, factor in either_way(node):
                    if self._is_vector(factor) and value not in self._fixed:
                        return self._linear.get(value, _Linear(value, ((),))).times(factor, place)
            case "Add":
                for value, other in either_way(node):
                    first, second = self._linear.get(value), self._linear.get(other)
                    if first is not None and self._is_vector(other):
                        return first.plus((other,), place)
                    if first is not None and second is not None and first.x == second.x:
                        products, offsets = first.products + second.products, first.offsets + second.offsets
                        return _Linear(first.x, products, offsets, first.nodes | second.nodes | {place})
            case "Sub":
                first = self._linear.get(node.input[0])
                if first is not None and self._is_vector(node.input[1]):
                    return first.plus((node.input[1], _MINUS), place)
        return None

    def _of_product(self, node: onnx.NodeProto, place: int) -> _Linear | None:
        how = attributes(node)
        matrix = self._constant(node.input[1])
        if matrix is None or matrix.ndim != 2 or how.get("transA") or how.get("alpha", 1) != 1:
            return None
        factor = node.input[1]
        if how.get("transB"):
            factor = f"{factor}^T"
            self._values[factor] = matrix.T
            self._reads[factor] = self._reads[node.input[1]]
        before = self._linear.get(node.input[0])
        scaled = before is not None and all(self._values[n].ndim < 2 for chain in before.products for n in chain)
        # What is scaled alone, and read more than once, is an RMSNorm, in which no product can take part.
        if before is None or (scaled and self._reads[node.input[0]] > 1):
            before = _Linear(node.input[0], ((),))
        product = before.times(factor, place)
        if len(node.input) < 3:
            return product
        is_vector = self._is_vector(node.input[2]) and how.get("beta", 1) == 1
        return product.plus((node.input[2],), place) if is_vector else None

    def _is_vector(self, name: str) -> bool:
        value = self._constant(name)
        return value is not None and value.ndim < 2 and value.dtype == np.float32

    def _constant(self, name: str) -> _Values | None:
        if name in self._fixed and name not in self._values:
            tensor = self._constants.get(name)
            if tensor is not None:
                self._values[name] = numpy_helper.to_array(tensor)
            else:
                node = self._writer[name]
                given = {each: value for each in reads(node) if (value := self._constant(each)) is not None}
                found = ReferenceEvaluator(node, opsets={"": OPSET}).run(None, given)
                self._values |= dict(zip(node.output, found, strict=True))
        return self._values.get(name)

    def _saves(self, found: _Linear, result: str) -> bool:
        """Whether one product takes the place of more, without more weights; its parts are read nowhere else."""
        if max(map(len, found.products)) == len(found.products) == 1:
            return False
        inside = Counter(name for i in found.nodes for name in reads(self._graph.node[i]))
        parts = {name for i in found.nodes for name in self._graph.node[i].output} - {result}
        if any(self._reads[name] != inside[name] for name in parts):
            return False
        matrices = [[name for name in chain if self._values[name].ndim == 2] for chain in found.products]
        if not all(matrices):
            return False
        before = sum(self._values[name].size for chain in matrices for name in chain if self._reads[name] == 1)
        first, *_, last = [*matrices[0], *matrices[0]]
        return self._values[first].shape[0] * self._values[last].shape[1] <= before

    def _product(self, result: str, found: _Linear) -> list[onnx.NodeProto]:
        weight, bias, product = f"{result}/weight", f"{result}/bias", f"{result}/product" if found.offsets else result
        matrix = self._sum(found.products)
        self._graph.initializer.append(numpy_helper.from_array(matrix, weight))
        nodes = [helper.make_node("MatMul", [found.x, weight], [product])]
        if found.offsets:
            vector = np.broadcast_to(self._sum(found.offsets), matrix.shape[1:])
            self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(vector), bias))
            nodes.append(helper.make_node("Add", [product, bias], [result]))
        return nodes

    def _sum(self, chains: tuple[_Chain, ...]) -> _Values:
        values = ((self._values[name].astype(np.float64) for name in chain) for chain in chains)
        whole = reduce(np.add, (reduce(_times, each) for each in values))
        return np.ascontiguousarray(whole, np.float32)


def _times(left: _Values, right: _Values) -> _Values:
    if right.ndim < 2:
        return left * right
    return left @ right if left.ndim == 2 else left[..., None] * right


_MASK = "attention_mask"


@Contract(requires=[well_formed, gives_logits], ensures=[well_formed, all_used], keeps=[same_inputs])
def as_starts_and_ends(model: onnx.ModelProto, threshold: float) -> onnx.ModelProto:
    """The same model with ``start_logits`` and ``end_logits`` (B, S) in place of logits (B, S, 2).

    ``threshold`` is taken from the start at each row's first token, which stands for no answer: that is the best one
    where its score is above the best span's by more than the threshold.
    """
    changed, both, add = copied(model), f"{LOGITS}/both", Writer("forms/")
    graph = changed.graph
    set_aside(graph, LOGITS, both)
    starts = add.op("Gather", both, add.number(0), axis=2)  # (B, S)
    add.op("Gather", both, add.number(1), output=END, axis=2)
    n = add.op("Squeeze", add.op("Shape", both, start=1, end=2))
    places = add.op("Range", add.number(0), n, add.number(1))  # (S)
    is_first = add.op("Cast", add.op("Equal", places, add.number(0)), to=TensorProto.FLOAT)
    add.op("Sub", starts, add.op("Mul", is_first, add.number(threshold, np.float32)), output=START)
    add.add_to(graph)
    replace(graph.output, [floats(name, ["batch", "sequence"]) for name in (START, END)])
    return changed


@Contract(requires=[well_formed, gives_logits], ensures=[well_formed, all_used, gives_logits])
def as_choices(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with inputs (B, K, S) in place of (B K, S), and logits (B, K) in place of (B K, 1)."""
    changed, both, add = copied(model), f"{LOGITS}/both", Writer("forms/")
    graph = changed.graph
    set_aside(graph, LOGITS, both)
    names = [value.name for value in graph.input]
    for name in names:
        set_aside(graph, name, f"forms/{name}")
    flat = add.op("Concat", add.ints(-1), add.op("Shape", names[0], start=2, end=3), axis=0)
    for name in names:
        add.op("Reshape", name, flat, output=f"forms/{name}")
    add.op("Reshape", both, add.op("Shape", names[0], start=0, end=2), output=LOGITS)
    add.add_to(graph)
    shape = ["batch", "choices", "sequence"]
    replace(graph.input, [integers(n, shape) for n in names])
    replace(graph.output, [floats(LOGITS, shape[:2])])
    prune(graph)
    return changed


@Contract(requires=[well_formed], ensures=[well_formed, all_used], keeps=[same_inputs])
def own_states(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with ``last_hidden_state`` (B, S, d) of each row's own tokens in place of (B, P + S, d)."""
    changed, both, add = copied(model), f"{STATES}/both", Writer("forms/")
    if prompt_in(model.graph):
        set_aside(changed.graph, STATES, both)
        add.op("Slice", both, LENGTH, add.ints(np.iinfo(np.int64).max), add.ints(1), output=STATES)
        add.add_to(changed.graph)
    return changed


@Contract(requires=[well_formed, gives_logits], ensures=[well_formed, all_used, gives_logits], keeps=[same_inputs])
def logits_as_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with logits (B, S, C) in place of (T, C); one whose logits are of rows stays as it is."""
    changed = copied(model)
    graph, output = changed.graph, changed.graph.output[0]
    if output.type.tensor_type.shape.dim[0].dim_param != "tokens":
        return changed
    packed, add = f"{LOGITS}/packed", Writer("rows/")
    set_aside(graph, LOGITS, packed)
    op, zero, one = add.op, add.number(0), add.number(1)
    # Each place of a row takes the token that stands there; padding borrows a neighbour's, times 0.
    real = op("Cast", op("Cast", _MASK, to=TensorProto.BOOL), to=TensorProto.INT64)  # (B, S) of 0, 1
    n = op("Squeeze", op("Shape", _MASK, start=0, end=1))
    numbers = op("Unsqueeze", op("Range", one, op("Add", n, one), one), add.ints(1))  # (B, 1) from 1
    prompts = op("Mul", numbers, add.ints(prompt_in(graph)))  # prompts' tokens up to each row
    counted = op("Reshape", op("CumSum", op("Reshape", real, add.ints(-1)), zero), op("Shape", _MASK))
    place = op("Max", op("Sub", op("Add", counted, prompts), one), zero)  # (B, S)
    factor = op("Unsqueeze", op("Cast", real, to=TensorProto.FLOAT), add.ints(2))
    op("Mul", op("Gather", packed, place), factor, output=LOGITS)  # (B, S, C)
    add.add_to(graph)
    columns = output.type.tensor_type.shape.dim[-1].dim_value
    replace(graph.output, [floats(LOGITS, ["batch", "sequence", columns])])
    return changed
