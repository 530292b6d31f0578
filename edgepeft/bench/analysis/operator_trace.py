"""One run of a model through ONNX Runtime's profiler: what every node read, gave and took.

The profiler is the only place where the shapes of packed tokens are known: they follow from the mask's values,
which no shape inference has.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

__all__ = ["Executed", "Value", "element_type", "read_trace", "trace_plain"]

_KERNEL = "_kernel_time"
_TYPES = {"float": 4, "float16": 2, "double": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
_LAYER = re.compile(r"\blayer\.(\d+)\b")
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
_PRODUCTS = {
    "Gemm",
    "FusedGemm",
    "MatMul",
    "FusedMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
}


@dataclass(frozen=True)
class Value:
    """A tensor's element type, by the profiler's name, and its shape."""

    kind: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Of its elements."""
        return _TYPES.get(self.kind, 4) * math.prod(self.shape)


@dataclass(frozen=True)
class Executed:
    """A node that ran; ``seconds`` holds one figure a run, in order."""

    name: str
    op_type: str
    inputs: tuple[Value, ...]  # activations, and weights that the kernel did not pack
    outputs: tuple[Value, ...]
    seconds: tuple[float, ...]

    @property
    def flops(self) -> int:
        """2 M N K of products; of everything else memory is the bound, and its arithmetic is not counted."""
        if self.op_type not in _PRODUCTS or not self.inputs or not self.inputs[0].shape:
            return 0
        return 2 * math.prod(self.outputs[0].shape) * self.inputs[0].shape[-1]

    @property
    def n_bytes(self) -> int:
        """Read and written, each value once; of a table, the rows that are looked up; a view moves none."""
        if self.op_type in _VIEWS:
            return 0
        written = sum(value.n_bytes for value in self.outputs)
        if self.op_type == "Gather":
            return 2 * written + sum(value.n_bytes for value in self.inputs[1:])
        read = sum(value.n_bytes for value in self.inputs)
        if self.op_type in _PRODUCTS and len(self.inputs) == 1 and self.inputs[0].shape:
            # A packed weight is not among the inputs: [K, N], of 1 byte where the product is of integers.
            width = 4 if self.inputs[0].kind == "float" and "Quantize" not in self.op_type else 1
            read += width * self.inputs[0].shape[-1] * self.outputs[0].shape[-1]
        return read + written

    @property
    def layer(self) -> int | None:
        """The layer in its name."""
        match = _LAYER.search(self.name)
        return int(match.group(1)) if match else None


def read_trace(path: Path) -> list[Executed]:
    """The nodes of a profile that ONNX Runtime wrote, in the order of their first run.

    Raises:
        ValueError: it is no profile of such a run.
    """
    events = json.loads(path.read_text(encoding="utf-8"))
    kernels: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL):
            key = (event["args"]["node_index"], event["name"].removesuffix(_KERNEL))
            kernels.setdefault(key, []).append(event)
    if not kernels:
        raise ValueError("ONNX Runtime's profile names no node")
    return [_executed(name, runs) for (_, name), runs in kernels.items()]


def _executed(name: str, runs: Sequence[Mapping[str, Any]]) -> Executed:
    facts = runs[0]["args"]
    return Executed(
        name,
        facts["op_name"],
        _values(facts["input_type_shape"]),
        _values(facts["output_type_shape"]),
        tuple(event["dur"] / 1e6 for event in runs),  # of microseconds
    )


def _values(described: Sequence[Mapping[str, Sequence[int]]]) -> tuple[Value, ...]:
    return tuple(Value(kind, tuple(shape)) for one in described for kind, shape in one.items())


def trace_plain(model: onnx.ModelProto, folder: Path, inputs: Mapping[str, NDArray[np.int64]]) -> list[Executed]:
    """Run the graph as it is written: no optimisation, no packing, one thread, so that every host runs the same nodes.

    Raises:
        BundleError: ONNX Runtime refuses the model.
    """
    import onnxruntime as ort

    from edgepeft.runtime.session import open_session, session_options

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for number, node in enumerate(copy.graph.node):
        node.name = f"{number}"  # two may be called alike, and a caller wants to find them again
    options = session_options(1)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="edgepeft-trace-") as work:
        options.profile_file_prefix = str(Path(work) / "trace")
        session = open_session(copy, folder, options=options)
        read = {value.name for value in session.get_inputs()}
        session.run(None, {name: value for name, value in inputs.items() if name in read})
        return read_trace(Path(session.end_profiling()))


def element_type(value: Value) -> int:
    """ONNX's number of its element type."""
    kinds = {"double": TensorProto.DOUBLE, "bool": TensorProto.BOOL, "float": TensorProto.FLOAT}
    return kinds.get(value.kind) or int(getattr(TensorProto, value.kind.upper(), TensorProto.FLOAT))
