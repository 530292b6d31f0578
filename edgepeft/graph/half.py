"""Passes: a delta graph stores its matrices in half precision and casts them to float32, once, at load; and back.

What is not worth a Cast (biases, scales) or is read by the loader (``generator/``) stays float32.
"""

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.common.errors import UsageError
from edgepeft.graph.contract import Contract, same_interface, values_stay, well_formed
from edgepeft.graph.names import is_of_loader
from edgepeft.graph.protos import values_read

STORED = ":fp16"
_MIN = 128  # a Cast node and its names take about 200 bytes
_OVERRIDES = "override/"  # a task of own biases and LayerNorms has nothing but vectors


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface, values_stay], mutates=True)
def store_in_half(graph: onnx.GraphProto) -> None:
    """Round matrices and overrides to float16; who writes tensors outside of it rounds them (``round_to_half``)."""
    names = half_initializers(graph)
    for initializer in graph.initializer:
        if initializer.name in names:
            name = initializer.name
            if initializer.data_location == TensorProto.EXTERNAL:
                initializer.name, initializer.data_type = name + STORED, TensorProto.FLOAT16
            else:
                values = round_to_half(name, numpy_helper.to_array(initializer))
                initializer.CopyFrom(numpy_helper.from_array(values, name + STORED))
            # Before its readers.
            graph.node.insert(0, helper.make_node("Cast", [name + STORED], [name], name=name, to=TensorProto.FLOAT))


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface, values_stay], mutates=True)
def widen(graph: onnx.GraphProto) -> None:
    """Undo ``store_in_half``, so that what it rounded can be trained: its values are stored in float32."""
    times = values_read(graph)
    casts = {node.output[0] + STORED: node for node in graph.node if node.op_type == "Cast"}
    for initializer in graph.initializer:
        cast = casts.get(initializer.name)
        if cast and initializer.data_type == TensorProto.FLOAT16 and times[initializer.name] == 1:
            values = numpy_helper.to_array(initializer).astype(np.float32)
            initializer.CopyFrom(numpy_helper.from_array(values, cast.output[0]))
            graph.node.remove(cast)


def half_initializers(graph: onnx.GraphProto) -> frozenset[str]:
    """The initializers that ``store_in_half`` rounds."""
    return frozenset(
        tensor.name
        for tensor in graph.initializer
        if tensor.data_type == TensorProto.FLOAT and not is_of_loader(tensor.name)
        if len(tensor.dims) > 1 or tensor.name.startswith(_OVERRIDES)
        if math.prod(tensor.dims) >= _MIN
    )


def is_half(graph: onnx.GraphProto) -> bool:
    """Whether any of the graph's values are stored in half precision."""
    return any(initializer.data_type == TensorProto.FLOAT16 for initializer in graph.initializer)


def round_to_half(name: str, values: NDArray[np.float32]) -> NDArray[np.float16]:
    """The values in half precision; refused where one does not fit."""
    largest = float(np.abs(values).max(initial=0))
    if not largest <= float(np.finfo(np.float16).max):  # a NaN is not, either
        raise UsageError(
            f"the delta's {name} reaches {largest:.3g}; half precision ends at 65504. "
            "Export it with --delta-weights fp32."
        )
    return values.astype(np.float16)
