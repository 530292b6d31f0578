"""The type and shape of every value of a graph, for given sizes of its inputs' open dimensions.

An exporter computes the targets of Reshape and Expand in the graph itself, from Shape.  ONNX's shape inference does
not follow that; so these integers are computed first, by ONNX's own reference, and put in as constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from edgepeft.errors import BundleError

__all__ = ["Spec", "sized"]

# Which inputs of an operator the shape of its output depends on, by value.
_SHAPING = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
}


class Spec(NamedTuple):
    """An ONNX element type and a shape."""

    kind: int
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Of its values."""
        return helper.tensor_dtype_to_np_dtype(self.kind).itemsize * math.prod(self.shape)


def sized(model: onnx.ModelProto, sizes: Mapping[str, int]) -> dict[str, Spec]:
    """Every value's spec where its inputs' dimensions have these sizes, by their names; copies its argument.

    Raises:
        BundleError: a dimension is not given, or a shape depends on values.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_value = _size(dim.dim_param, sizes)
    inputs = {value.name: _spec(value) for value in graph.input}
    folded = _integers(copy, inputs)
    nodes = [
        type(node).FromString(node.SerializeToString()) for node in graph.node if folded.keys().isdisjoint(node.output)
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in folded.items())
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    done = shape_inference.infer_shapes(copy, data_prop=True).graph
    found = {value.name: _spec(value) for value in (*done.value_info, *done.output)}
    found |= {i.name: Spec(i.data_type, tuple(i.dims)) for i in graph.initializer} | inputs
    missing = [name for node in graph.node for name in node.output if name and found.get(name) is None]
    if missing:
        raise BundleError(f"the shape of {missing[0]} in the training graph cannot be told before it runs.")
    return {name: spec for name, spec in found.items() if spec is not None}


def _size(name: str, sizes: Mapping[str, int]) -> int:
    if name not in sizes:
        raise BundleError(f"the training graph has an open dimension {name!r} that this version does not know.")
    return sizes[name]


def _spec(value: onnx.ValueInfoProto) -> Spec | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return Spec(tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))


def _integers(model: onnx.ModelProto, inputs: Mapping[str, Spec | None]) -> dict[str, np.ndarray]:
    """What follows from sizes and constants alone, where a shape depends on it."""
    graph = model.graph
    known: set[str] = set()
    nodes = []
    for node in graph.node:
        sizes = node.op_type == "Shape" and node.input[0] in inputs
        if sizes or all(name in known for name in node.input if name):
            known.update(node.output)
            nodes.append(node)
    pairs = ((node, i) for node in graph.node for i in _SHAPING.get(node.op_type, ()) if i < len(node.input))
    wanted = list(dict.fromkeys(node.input[i] for node, i in pairs if node.input[i] in known))
    read = [name for name in inputs if any(name in node.input for node in nodes)]
    part = helper.make_graph(
        nodes,
        "sizes",
        [value for value in graph.input if value.name in read],
        [helper.make_empty_tensor_value_info(name) for name in wanted],
    )
    whole = helper.make_model(part, opset_imports=model.opset_import, ir_version=model.ir_version)
    given = {name: np.broadcast_to(np.float32(0), spec.shape) for name in read if (spec := inputs[name]) is not None}
    return dict(zip(wanted, map(np.asarray, ReferenceEvaluator(whole).run(None, given)), strict=True))
