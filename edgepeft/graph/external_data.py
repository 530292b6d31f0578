"""External data: a protobuf ends at 2 GiB, and full fine-tuning of XLM-R-large has tensors of 2.24 GB.

Those of a delta graph lie in a safetensors file beside it.  Once it is read, the reference is to the whole path of that
file; what a recipe makes (``edgepeft.graph.derived_weights``) lies nowhere until a session opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from edgepeft.backbones.checkpoint import NUMPY_TYPES, Checkpoint, Layout, StoredTensor, write_safetensors
from edgepeft.backbones.emit import DTYPES, external_tensor
from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import Contract, same_interface, same_operators, weights_outside, well_formed
from edgepeft.graph.derived_weights import made_tensor
from edgepeft.graph.names import GENERATED

__all__ = ["external_tensors", "external_values", "load_external", "location", "point_at", "store_external"]


def external_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """The graph's tensors that lie in a file, or are made when it is opened."""
    return (tensor for tensor in graph.initializer if tensor.data_location == TensorProto.EXTERNAL)


def location(tensor: TensorProto) -> str:
    """The file that an external tensor lies in."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def external_values(
    model: onnx.ModelProto, tensors: Iterable[TensorProto], checkpoint: Checkpoint
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Each tensor's name and values: a read-only memory map, or what a recipe gives, made as it is asked for."""
    for tensor in tensors:
        where = {entry.key: entry.value for entry in tensor.external_data}
        if where["location"] == GENERATED:
            yield tensor.name, made_tensor(model, tensor.name, checkpoint)
            continue
        path, dtype = checkpoint.path.parent / where["location"], np.dtype(NUMPY_TYPES[DTYPES[tensor.data_type]])
        try:
            shape = (int(where["length"]),) if tensor.data_type == TensorProto.UINT4 else tuple(tensor.dims)
            yield tensor.name, np.memmap(path, dtype, "r", int(where["offset"]), shape)
        except (OSError, ValueError) as error:
            raise BundleError(f"{path} cannot be read ({error}); export or copy the bundle again.") from error


def store_external(
    tensors: Sequence[TensorProto], values: Iterable[tuple[str, NDArray[Any]]], path: Path, named: str = ""
) -> None:
    """Write external tensors into one file, and have them refer to it.

    Those of one name are one tensor.  The file's own name is what they refer to, or the one that it will be ``named``.
    """
    layout = {tensor.name: Layout(DTYPES[tensor.data_type], tuple(tensor.dims)) for tensor in tensors}
    write_safetensors(path, layout, values, {"format": "edgepeft.tensors/1"})
    written = Checkpoint.open(path).tensors
    for tensor in tensors:
        tensor.CopyFrom(external_tensor(written[tensor.name], named or path.name))


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface, same_operators], mutates=True)
def load_external(model: onnx.ModelProto, values: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """Put a model's external tensors into it."""
    tensors = {tensor.name: tensor for tensor in external_tensors(model.graph)}
    for name, array in values:
        shape = {"data_type": tensors[name].data_type, "dims": tensors[name].dims}
        tensors[name].CopyFrom(TensorProto(name=name, raw_data=array.tobytes(), **shape))


@Contract(requires=[well_formed], ensures=[well_formed, weights_outside], keeps=[same_interface], mutates=True)
def point_at(model: onnx.ModelProto, path: Path) -> None:
    """Have the external tensors of a delta graph, which is sound, be those of that file, wherever it lies."""
    stored = Checkpoint.open(path).tensors
    for tensor in external_tensors(model.graph):
        where = {entry.key: entry.value for entry in tensor.external_data}
        given = StoredTensor(
            tensor.name,
            DTYPES[tensor.data_type],
            tuple(tensor.dims),
            int(where["offset"]),
            int(where["length"]),
            path.name,
        )
        if stored.get(tensor.name) != given:
            raise BundleError(
                f"{path} does not hold the tensor {tensor.name!r:.60} as its graph says; export the task again."
            )
        tensor.CopyFrom(external_tensor(given, str(path.resolve())))
