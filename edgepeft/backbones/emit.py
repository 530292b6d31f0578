"""A small writer of ONNX graphs: nodes in order, constants inline, weights by reference."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.checkpoint import BYTES, Checkpoint, StoredTensor
from edgepeft.common.errors import BundleError

OPSET = 20
IR_VERSION = 10  # onnx 1.23 would write 14, which ONNX Runtime 1.31 refuses
MAX_INLINE_BYTES = 1_900_000_000  # of a graph's own tensors: a protobuf ends at 2 GiB
WEIGHTS_FILE, INT8_WEIGHTS_FILE = "model.safetensors", "model.int8.safetensors"
INT4_WEIGHTS_FILE = "model.int4.safetensors"
WEIGHTS_FILES = {"fp32": WEIGHTS_FILE, "int8": INT8_WEIGHTS_FILE, "int4": INT4_WEIGHTS_FILE}  # by a backbone's form
BUNDLE_MANIFEST = "edgepeft.json"  # a folder that has it is a bundle
# What travels with the weights, read by us or by transformers.
BUNDLE_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "1_Pooling/config.json",
)

_ONNX_TYPES: Mapping[str, int] = {
    "F32": TensorProto.FLOAT,
    "F16": TensorProto.FLOAT16,
    "I8": TensorProto.INT8,
    "U8": TensorProto.UINT4,  # two numbers a byte: safetensors has no type of 4 bits
}
# ONNX's number -> safetensors' name.
DTYPES = {number: name for name, number in _ONNX_TYPES.items()} | {int(TensorProto.UINT8): "U8"}

# Activation in a config -> (ONNX operator, attributes); "silu" is x times its sigmoid.
_ACTIVATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gelu": ("Gelu", {}),
    "gelu_new": ("Gelu", {"approximate": "tanh"}),
    "gelu_pytorch_tanh": ("Gelu", {"approximate": "tanh"}),
    "relu": ("Relu", {}),
    "gated-gelu": ("Gelu", {"approximate": "tanh"}),  # T5's
    "gated-relu": ("Relu", {}),
}


class Writer:
    """Collects nodes and small constants of a graph; methods return values' names, which begin with ``prefix``."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node with one output, under the whole name that is given."""
        name = output or f"{self.prefix}{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: type[np.generic]) -> str:
        """A small initializer stored in the graph itself, under this whole name."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def ints(self, *values: int) -> str:
        """A one-dimensional int64 constant, such as a shape."""
        name = "_".join(str(value).replace("-", "m") for value in values)
        return self.constant(f"{self.prefix}ints_{name}", values, np.int64)

    def number(self, value: float, dtype: type[np.generic] = np.int64) -> str:
        """A constant without axes."""
        return self.constant(f"{self.prefix}{dtype.__name__}_{value}", value, dtype)

    def add_to(self, graph: onnx.GraphProto) -> None:
        """Append all that was written to a graph."""
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.initializers.values())


class Emitter(Writer):
    """Writes a backbone: initializers of an architecture's ``tensors`` lie in the checkpoint."""

    def __init__(self, checkpoint: Checkpoint, architecture: Architecture) -> None:
        super().__init__()
        self.checkpoint, self.arch, self.shapes = checkpoint, architecture, architecture.tensors

    def linear(self, module: str, value: str, output: str = "") -> str:
        """x W^T, + b where there is one; by a node of its own, for ``Gemm`` would add it on one thread."""
        weight, bias = self.weight(f"{module}.weight"), self._bias(module)
        product = self.op("Gemm", value, weight, output="" if bias else output, transB=1)
        return self.op("Add", product, *bias, output=output) if bias else product

    def activated(self, value: str, output: str = "") -> str:
        """By the activation of feed-forwards."""
        if self.arch.activation == "silu":
            return self.op("Mul", value, self.op("Sigmoid", value), output=output)
        operator, attributes = _ACTIVATIONS[self.arch.activation]
        return self.op(operator, value, output=output, **attributes)

    def feed_forward(self, value: str, name: str, *, up: str, down: str, gate: str = "") -> str:
        """(., d) -> (., d): down(act(up x)) or down(act(gate x) * up x); ``name`` begins the names of sites."""
        site = f"{name}ffn_activation"
        if gate:
            opened = self.activated(self.linear(gate, value, f"{name}ffn_gate"))
            self.op("Mul", opened, self.linear(up, value, f"{name}ffn_gated"), output=site)
        else:
            self.activated(self.linear(up, value, f"{name}ffn_up"), site)
        return self.linear(down, site, f"{name}ffn_output")

    def norm(self, module: str, value: str, output: str) -> str:
        """LayerNorm over the last axis."""
        inputs = (value, self.weight(f"{module}.weight"), *self._bias(module))
        return self.op("LayerNormalization", *inputs, output=output, axis=-1, epsilon=self.arch.layer_norm_eps)

    def _bias(self, module: str) -> tuple[str, ...]:
        """One, or none."""
        name = f"{module}.bias"
        return (self.weight(name),) if name in self.shapes else ()

    def weight(self, canonical: str) -> str:
        """A tensor of the checkpoint as external data: same name, same bytes, [out, in] layout."""
        stored, shape = self.checkpoint.find(canonical), self.shapes[canonical]
        if stored.shape != shape or stored.dtype != "F32":
            raise BundleError(
                f"{self.checkpoint.path}: tensor {stored.name} is {stored.dtype} {list(stored.shape)}, "
                f"the config asks for F32 {list(shape)}; weights and config do not belong together."
            )
        if stored.name not in self.initializers:
            self.initializers[stored.name] = external_tensor(stored)
        return stored.name

    def rows(self) -> list[onnx.ValueInfoProto]:
        """The architecture's inputs, int64 [batch, sequence]."""
        shape = ("batch", "sequence")
        return [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in self.arch.inputs]

    def model(self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """The finished model, opset 20, IR 10."""
        initializers = list(self.initializers.values())
        graph = helper.make_graph(self.nodes, self.arch.model_type, inputs, outputs, initializers)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="edgepeft"
        )


def external_tensor(stored: StoredTensor, file: str | None = None) -> TensorProto:
    """An initializer that lies in a file, the tensor's own unless given: its name, bytes and shape."""
    packed = stored.dtype == "U8" and not stored.name.endswith(BYTES)
    shape = (*stored.shape[:-1], 2 * stored.shape[-1]) if packed else stored.shape
    kind = TensorProto.UINT8 if stored.dtype == "U8" and not packed else _ONNX_TYPES[stored.dtype]
    tensor = TensorProto(name=stored.name, data_type=kind, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file or stored.file), ("offset", stored.offset), ("length", stored.n_bytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
