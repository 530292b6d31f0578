"""Pass: a delta graph stores its matrices in half precision and casts them to float32, which is done once, at load.

What is not worth a Cast (biases, scales) or is read by the loader (``generator/``) stays float32.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.errors import UsageError
from edgepeft.graph.contract import Contract
from edgepeft.graph.predicates import same_interface, values_stay, well_formed

__all__ = ["is_half", "store_in_half"]

_STORED = ":fp16"
_LEAST = 128  # a Cast node and its names take about 200 bytes
_LOADERS = "generator/"
_OVERRIDES = "override/"  # a task of own biases and LayerNorms has nothing but vectors


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface, values_stay], mutates=True)
def store_in_half(graph: onnx.GraphProto) -> None:
    """Round matrices and overrides to float16.

    Raises:
        UsageError: a value is beyond what float16 holds.
    """
    for initializer in graph.initializer:
        if _is_worth_it(initializer):
            name, values = initializer.name, numpy_helper.to_array(initializer)
            initializer.CopyFrom(numpy_helper.from_array(_rounded(name, values), name + _STORED))
            # Before its readers.
            graph.node.insert(0, helper.make_node("Cast", [name + _STORED], [name], name=name, to=TensorProto.FLOAT))


def is_half(graph: onnx.GraphProto) -> bool:
    """Whether any of the graph's values are stored so."""
    return any(initializer.data_type == TensorProto.FLOAT16 for initializer in graph.initializer)


def _is_worth_it(initializer: TensorProto) -> bool:
    if initializer.data_type != TensorProto.FLOAT or initializer.name.startswith(_LOADERS):
        return False
    matrix_or_own = len(initializer.dims) > 1 or initializer.name.startswith(_OVERRIDES)
    return matrix_or_own and math.prod(initializer.dims) >= _LEAST


def _rounded(name: str, values: NDArray[np.float32]) -> NDArray[np.float16]:
    largest = float(np.abs(values).max(initial=0))
    if not largest <= float(np.finfo(np.float16).max):  # a NaN is not, either
        raise UsageError(
            f"the delta's {name} reaches {largest:.3g}; half precision ends at 65504. "
            "Export it with --delta-weights fp32."
        )
    return values.astype(np.float16)
