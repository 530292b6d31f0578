"""Where a graph's weights lie: in the packed file of a cache's entry (``prepacked``), or copied into the graph.

``Places`` say of each tensor of the packed file where it lies, as ONNX has external data.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto

from edgepeft.bundle.bundle import Bundle
from edgepeft.graph.joined_row import FOR_ATTENTION, join_attention
from edgepeft.graph.names import grouped_name, names_in
from edgepeft.graph.protos import external_tensors, place_of

Places = Mapping[str, Mapping[str, str]]
Tensors = Sequence[TensorProto]


def _whole(parts: Tensors, axis: int, name: str) -> onnx.TensorProto:
    """A tensor without values that has room for all parts."""
    whole = TensorProto(name=name, data_type=parts[0].data_type, dims=parts[0].dims)
    whole.dims[axis] = sum(part.dims[axis] for part in parts)
    return whole


def side_by_side(bundle: Bundle, parts: Tensors, axis: int, name: str) -> onnx.TensorProto:
    """Tensors of the bundle's weights as one; along the second axis those of bytes."""
    whole, stored = _whole(parts, axis, name), [_stored_bytes(part, bundle) for part in parts]
    if axis:
        stored = [np.hstack([np.frombuffer(each, np.int8).reshape(whole.dims[0], -1) for each in stored]).tobytes()]
    whole.raw_data = b"".join(stored)
    return whole


def _joined(bundle: Bundle, tensors: Places, parts: Tensors, axis: int, name: str) -> onnx.TensorProto:
    """A joined tensor of the packed file; what that lacks, which may be too small for it, is made here."""
    if _place_in(tensors, name) is None:
        return side_by_side(bundle, parts, axis, name)
    whole = _whole(parts, axis, name)
    whole.data_location = TensorProto.EXTERNAL
    whole.external_data.add(key="location", value=bundle.weights.name)  # until it is placed
    return whole


def join(model: onnx.ModelProto, bundle: Bundle, tensors: Places) -> None:
    """``join_attention``, where the packed file has the joined matrices; ``place_joined`` says where they lie."""
    join_attention(model, partial(_joined, bundle, tensors), tensors.keys())


def place_joined(model: onnx.ModelProto, bundle: Bundle, tensors: Places = MappingProxyType({})) -> None:
    """Point joined tensors into the packed file, or copy them into the graph where an entry lacks them or is gone."""
    stored = {each.name: each for each in bundle.backbone_graph.graph.initializer}
    for initializer in (i for i in model.graph.initializer if len(names_in(i.name)) > 1):
        if not _point_at(initializer, tensors) and not initializer.raw_data:
            parts = [stored[name] for name in names_in(initializer.name.removesuffix(FOR_ATTENTION))]
            axis = 1 if initializer.data_type == TensorProto.INT8 else 0
            initializer.CopyFrom(side_by_side(bundle, parts, axis, initializer.name))


def place(model: onnx.ModelProto, bundle: Bundle, tensors: Places) -> None:
    """Point a graph's weights into the packed file, in place; tensors that it lacks are copied into the graph."""
    join(model, bundle, tensors)
    place_joined(model, bundle, tensors)
    grouped = (name.removesuffix(grouped_name("")) for name in tensors if name.endswith(grouped_name("")))
    if groups := [group for name in grouped if len(group := names_in(name)) > 1]:  # of a decoder
        from edgepeft.graph.joined import join_products

        join_products(model.graph, groups, partial(_joined, bundle, tensors))
    for initializer in external_tensors(model.graph):
        if place_of(initializer)["location"] == bundle.weights.name and not _point_at(initializer, tensors):
            raw = _stored_bytes(initializer, bundle)
            del initializer.external_data[:]
            initializer.data_location, initializer.raw_data = TensorProto.DEFAULT, raw


def _place_in(tensors: Places, name: str) -> Mapping[str, str] | None:
    # A grouped matrix lies there by the name that its product reads, beside its packed copy.
    return tensors.get(grouped_name(name)) or tensors.get(name)


def _point_at(initializer: onnx.TensorProto, tensors: Places) -> bool:
    """Have it lie in the packed file; False where that lacks it."""
    if (placed := _place_in(tensors, initializer.name)) is None:
        return False
    del initializer.external_data[:]
    initializer.data_location = TensorProto.EXTERNAL
    for key, value in placed.items():
        initializer.external_data.add(key=key, value=value)
    return True


def _stored_bytes(initializer: onnx.TensorProto, bundle: Bundle) -> bytes:
    bundle.hash_weights()
    where = place_of(initializer)
    return np.memmap(bundle.weights, np.uint8, "r", int(where["offset"]), (int(where["length"]),)).tobytes()
