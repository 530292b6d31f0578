"""Whether a parsed model can be worked with: what protobuf accepts and no reader of graphs expects.

A damaged or hostile file may parse: its names may be no UTF-8 (protobuf then gives bytes), and its tensors may hold
fewer values than their shapes say.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from google.protobuf.descriptor import FieldDescriptor
from onnx import numpy_helper

from edgepeft.errors import BundleError
from edgepeft.graph.contract import Contract
from edgepeft.graph.external import all_tensors
from edgepeft.graph.protos import submessages

__all__ = ["check_sound"]


@Contract()
def check_sound(model: onnx.ModelProto, where: object) -> None:
    """See that texts are texts and that stored tensors are as large as they say.

    Raises:
        BundleError: they are not; says which.
    """
    for value in _texts(model):
        if not isinstance(value, str):
            raise BundleError(f"{where} is damaged: it holds the name {value!r:.60}, which is no UTF-8 text.")
    for tensor in all_tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            continue
        try:
            if numpy_helper.to_array(tensor).shape != tuple(tensor.dims):
                raise ValueError(f"a shape of {list(tensor.dims)}")  # -1 lets NumPy choose
        except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
            raise BundleError(f"{where} is damaged: its tensor {tensor.name!r} cannot be read ({error}).") from error


def _texts(model: onnx.ModelProto) -> Iterator[object]:
    """Every value of a text field."""
    for field, value in (pair for message in submessages(model) for pair in message.ListFields()):
        if field.type == FieldDescriptor.TYPE_STRING:
            yield from (value,) if isinstance(value, (str, bytes)) else value
