"""Make the constants that a delta graph leaves to its loader, the inputs ``generated:<tensor>``.

A graph with such inputs carries a recipe in its ``metadata_props``, a JSON object:
``generator`` ("fastfood/1", specified in ``edgepeft.fastfood``), ``seed``, ``vector`` and ``scales`` (which of
its initializers ``generator/<name>`` they are) and ``tensors``, the backbone tensors in the order of the
scales.  Tensor i is then, in float32,  pretrained + scales[i] P_i vector,  P_i of stream i.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.errors import BundleError
from edgepeft.fastfood import Fastfood, ahead
from edgepeft.graph.names import generated, without_prefix
from edgepeft.graph.protos import properties
from edgepeft.host.cores import thread_count
from edgepeft.mistakes import in_words

__all__ = ["RECIPE", "generated_tensors"]

RECIPE = "edgepeft.generated"


class _Recipe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    generator: Literal["fastfood/1"]
    seed: int = Field(ge=0, lt=2**63)
    vector: str
    scales: str
    tensors: tuple[str, ...]


def generated_tensors(
    delta: onnx.ModelProto, checkpoint: Checkpoint, bound: Mapping[str, str]
) -> Iterator[onnx.TensorProto]:
    """One initializer for each generated input, called as ``bound`` says; one after the other, for they are large.

    Raises:
        BundleError: there is no recipe, or it cannot be followed.
    """
    wanted = [name for name in bound if without_prefix(name)[0] == "generated"]
    if not wanted:
        return
    recipe = _recipe(delta)
    vector, scales = _parameter(delta, recipe.vector), _parameter(delta, recipe.scales)
    streams = {generated(name): stream for stream, name in enumerate(recipe.tensors)}

    def make(name: str) -> onnx.TensorProto:
        if name not in streams or len(scales) != len(streams):
            raise BundleError(f"the delta graph's {RECIPE} does not say how to make {name}; export the task again.")
        stream = streams[name]
        pretrained = checkpoint.values(without_prefix(name)[1])  # mapped: its pages are read and not kept
        update = Fastfood(recipe.seed, stream, pretrained.size, len(vector)).project(vector)
        update *= scales[stream]
        update += pretrained.reshape(-1)
        return numpy_helper.from_array(update.reshape(pretrained.shape), bound[name])

    yield from ahead(make, wanted, thread_count())


def _recipe(delta: onnx.ModelProto) -> _Recipe:
    try:
        return _Recipe.model_validate_json(properties(delta).get(RECIPE, ""))
    except ValidationError as error:
        raise BundleError(
            f"the delta graph's {RECIPE} is not a recipe that this version knows: {in_words(error)}."
        ) from error


def _parameter(delta: onnx.ModelProto, name: str) -> NDArray[np.float32]:
    """A float vector that the graph carries."""
    for initializer in delta.graph.initializer:
        if initializer.name == f"generator/{name}" and initializer.data_type == TensorProto.FLOAT:
            value = numpy_helper.to_array(initializer)
            if value.ndim == 1 and value.size:
                return value
    raise BundleError(f"the delta graph has no vector generator/{name}, which its {RECIPE} names; export it again.")
