"""The type and shape of every value of a graph, for given inputs or for given sizes of their open dimensions.

A packed graph's shapes depend on its mask, a task's on Shape of values in between, and an exporter computes the targets
of Reshape and Expand in the graph.  So the nodes are walked in order: integers that follow from the inputs, from shapes
and from small constants are computed by ONNX's own reference, of the rest the shape is inferred.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from edgepeft.common.errors import BundleError
from edgepeft.graph.protos import attributes

_INTEGERS = "biu"
_SMALL = 4096  # numbers of a constant that shapes may depend on; a task's matrices have more


class Spec(NamedTuple):
    """An ONNX element type and a shape."""

    kind: int
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of its values."""
        n_bytes = helper.tensor_dtype_to_np_dtype(self.kind).itemsize * math.prod(self.shape)
        return -(-n_bytes // 2) if self.kind == onnx.TensorProto.UINT4 else n_bytes  # NumPy has no half bytes


def value_specs(
    model: onnx.ModelProto, sizes: Mapping[str, int], known: Mapping[str, NDArray[Any]] = MappingProxyType({})
) -> dict[str, Spec]:
    """Every value's spec where the inputs' open dimensions have these sizes, by name; ``known`` inputs are given."""
    given: dict[str, NDArray[Any] | Spec] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        missing = [dim.dim_param for dim in tensor.shape.dim if dim.dim_param and dim.dim_param not in sizes]
        if missing and value.name not in known:
            raise BundleError(f"the graph has an open dimension {missing[0]!r} that this version does not know.")
        shape = tuple(sizes.get(dim.dim_param, dim.dim_value) for dim in tensor.shape.dim)
        given[value.name] = known.get(value.name, Spec(tensor.elem_type, shape))
    return Walked(model, given).specs


class Walked:
    """A sorted graph's specs, by name; of an input that is given as a spec, no value is known.

    ``values`` are the integers that follow from the inputs, or from shapes, without weights.
    """

    def __init__(self, model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any] | Spec]) -> None:
        missing = [value.name for value in model.graph.input if value.name not in inputs]
        if missing:
            raise BundleError(f"the graph has an input {missing[0]!r} that this version does not know.")
        self._versions = {opset.domain: opset.version for opset in model.opset_import}
        self._opsets, self._ir_version = list(model.opset_import), model.ir_version
        self.values: dict[str, NDArray[Any]] = {}
        self.specs = {name: given for name, given in inputs.items() if isinstance(given, Spec)}
        self._know({name: given for name, given in inputs.items() if not isinstance(given, Spec)})
        for tensor in model.graph.initializer:
            self.specs[tensor.name] = Spec(tensor.data_type, tuple(tensor.dims))
            if tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) <= _SMALL:
                self._know({tensor.name: numpy_helper.to_array(tensor)})
        for node in model.graph.node:
            self._take(node)

    def _take(self, node: onnx.NodeProto) -> None:
        """Compute a node where all that it reads is known; else infer its outputs' specs."""
        given = [name for name in node.input if name]
        large = any(math.prod(each.t.dims) > _SMALL for each in node.attribute if each.HasField("t"))  # constants
        if node.op_type == "Shape":
            part = slice(*(attributes(node).get(end) for end in ("start", "end")))
            self._know({node.output[0]: np.array(self.specs[given[0]].shape[part], np.int64)})
        elif all(name in self.values for name in given) and not large:
            evaluator = ReferenceEvaluator(node, opsets=self._versions)
            results = evaluator.run(None, {name: self.values[name] for name in given})
            self._know(dict(zip(node.output, map(np.asarray, results), strict=True)))
        else:
            self._infer(node, given)

    def _know(self, values: Mapping[str, NDArray[Any]]) -> None:
        kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in values.items()}
        self.specs.update((name, Spec(kinds[name], value.shape)) for name, value in values.items())
        # A single number too: a Range may be given its bounds as one and cast them.
        known = {name: value for name, value in values.items() if value.dtype.kind in _INTEGERS or value.size == 1}
        self.values.update(known)

    def _infer(self, node: onnx.NodeProto, given: list[str]) -> None:
        types = {name: helper.make_tensor_type_proto(*self.specs[name]) for name in given}
        # Those that a shape may depend on: the longest is a Reshape's or Slice's few integers.
        data = {
            name: numpy_helper.from_array(self.values[name], name)
            for name in given
            if name in self.values and self.values[name].size <= _SMALL
        }
        try:
            schema = defs.get_schema(node.op_type, self._versions[node.domain], node.domain)
            inferred = shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self._opsets, ir_version=self._ir_version
            )
        except (KeyError, defs.SchemaError, onnx.checker.ValidationError, shape_inference.InferenceError) as error:
            raise BundleError(f"the shape of {node.output[0]} ({node.op_type}) cannot be told: {error}") from error
        for name in filter(None, node.output):
            tensor = inferred[name].tensor_type if name in inferred else onnx.TypeProto.Tensor()
            if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
                raise BundleError(
                    f"the shape of {name} ({node.op_type}) depends on weights or inputs; it cannot be told."
                )
            self.specs[name] = Spec(tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))
