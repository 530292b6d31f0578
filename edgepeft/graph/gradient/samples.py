"""Two sample batches of token ids, whose sizes have nothing in common, and every value's spec in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.errors import BundleError
from edgepeft.graph.shapes import Spec, walk

__all__ = ["measured", "specs_of"]

_MASK = "attention_mask"
_LENGTHS = ((5, 2, 4), (11, 7, 3, 8, 1, 9, 6))  # of rows; neither counts nor sums nor products recur


def measured(model: onnx.ModelProto) -> tuple[dict[str, Spec], ...]:
    """The spec of every value, in each sample.

    Raises:
        BundleError: an input has an open dimension that is no batch's, or a shape depends on values.
    """
    return tuple(specs_of(model, lengths) for lengths in _LENGTHS)


def specs_of(model: onnx.ModelProto, lengths: tuple[int, ...]) -> dict[str, Spec]:
    """The spec of every value for rows of these lengths, in tokens; ids are ones."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    sizes = {"batch": len(lengths), "sequence": max(lengths), "tokens": sum(lengths)}
    return walk(model, {value.name: _given(value, mask, sizes) for value in model.graph.input}).specs


def _given(value: onnx.ValueInfoProto, mask: NDArray[np.int64], sizes: Mapping[str, int]) -> NDArray[Any] | Spec:
    if value.name == _MASK:
        return mask
    tensor = value.type.tensor_type
    shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in tensor.shape.dim]
    unknown = [dim.dim_param for dim in tensor.shape.dim if dim.dim_param and dim.dim_param not in sizes]
    if unknown:
        raise BundleError(f"the graph's input {value.name} has an open dimension {unknown[0]!r}, which is no batch's.")
    spec = Spec(tensor.elem_type, tuple(shape))
    return np.ones(spec.shape, np.int64) if spec.kind == onnx.TensorProto.INT64 else spec
