"""Tensors that a graph does not hold: in a safetensors file beside it, or made by a recipe when a session opens.

A protobuf ends at 2 GiB, and full fine-tuning of XLM-R-large has tensors of 2.24 GB.  Once such a file is read, the
reference is to its whole path.

A graph with inputs ``generated:<tensor>`` and ``drawn:<name>`` leaves these constants to its loader, and carries a
recipe in its ``metadata_props``, a JSON object.  That of generated ones:
``generator`` ("fastfood/1", specified in ``edgepeft.common.frozen_random``), ``seed``, ``vector`` and ``scales`` (which
of its initializers ``generator/<name>`` they are) and ``tensors``, the backbone tensors in the order of the
scales.  Tensor i is then, in float32,  pretrained + scales[i] P_i vector,  P_i of stream i.  From its gradient g,
vector gets  scales[i] P_i^T g  and scales[i] gets  <P_i vector, g> = <vector, P_i^T g>.

Where all of them are more than a protobuf holds, a spliced model has them as external data in ``GENERATED``, which is
no file: they are made when a session opens, or a file is written, by what the model's metadata then says.

Drawn ones are frozen random matrices, trained by nobody: in a spliced graph they are initializers, for answering and
for tuning alike.  Their recipe: ``generator`` ("mt19937/1", specified in ``edgepeft.common.frozen_random``), ``seed``,
and ``shapes``, the matrices in the order in which they are drawn.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from edgepeft.backbones import emit
from edgepeft.backbones.checkpoint import NUMPY_TYPES, Checkpoint, Layout, StoredTensor, write_safetensors
from edgepeft.backbones.emit import DTYPES, external_tensor
from edgepeft.common.errors import BundleError
from edgepeft.common.frozen_random import MAX_ENTRIES, SEEDS, Fastfood, frozen_matrices, map_ahead
from edgepeft.common.messages import mistakes_text
from edgepeft.device.machine import thread_count
from edgepeft.graph.contract import Contract, same_interface, same_operators, weights_outside, well_formed
from edgepeft.graph.names import GENERATED, loader_name, without_prefix
from edgepeft.graph.protos import constant, external_tensors, place_of, properties

RECIPE = "edgepeft.generated"
_PARAMETERS = "edgepeft.generated.parameters"  # of a spliced model: float32 in hexadecimal, by name
_FLOAT_BYTES = 4
Floats = NDArray[np.float32]
DRAWN = "edgepeft.drawn"
_Extent = Annotated[int, Field(ge=1, le=MAX_ENTRIES)]
_AnyRecipe = TypeVar("_AnyRecipe", bound=BaseModel)


class Generator(BaseModel):
    """A recipe as read: ``vector`` and ``scales`` are names of initializers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generator: Literal["fastfood/1"]
    seed: int = Field(ge=0, lt=2**63)
    vector: Annotated[str, AfterValidator(loader_name)]
    scales: Annotated[str, AfterValidator(loader_name)]
    tensors: tuple[str, ...]

    def tensor(self, name: str, given: Mapping[str, Floats], checkpoint: Checkpoint) -> Floats:
        """Make the tensor of an input ``generated:<tensor>`` from ``given`` vector and scales."""
        pretrained = checkpoint.values(without_prefix(name)[1])  # mapped: its pages are read and not kept
        projection, stream = self._followed(name, pretrained.size, given)
        update = projection.project(given[self.vector])
        update *= given[self.scales][stream]
        update += pretrained.reshape(-1)
        return update.reshape(pretrained.shape)

    def back(self, name: str, gradient: Floats, given: Mapping[str, Floats]) -> dict[str, Floats]:
        """Gradients of vector and scales, by name, from a tensor's gradient."""
        projection, stream = self._followed(name, gradient.size, given)
        vector, scales = given[self.vector], np.zeros_like(given[self.scales])
        back = projection.back(gradient.reshape(-1))
        scales[stream] = np.vdot(back.astype(np.float64), vector)
        return {self.vector: np.multiply(back, given[self.scales][stream], out=back), self.scales: scales}

    def _followed(self, name: str, size: int, given: Mapping[str, Floats]) -> tuple[Fastfood, int]:
        """The projection for an input, and its number."""
        wanted = without_prefix(name)[1]
        if wanted not in self.tensors or len(given[self.scales]) != len(self.tensors):
            raise BundleError(f"the delta graph's {RECIPE} does not say how to make {name}; export the task again.")
        stream = self.tensors.index(wanted)
        return Fastfood(self.seed, stream, size, len(given[self.vector])), stream


@Contract(mutates=True)
def add_generated(
    model: onnx.ModelProto, delta: onnx.ModelProto, checkpoint: Checkpoint, bound: Mapping[str, str]
) -> None:
    """Give a spliced model an initializer for each generated input, named as ``bound`` says."""
    wanted = [name for name in bound if without_prefix(name)[0] == "generated"]
    if not wanted:
        return
    generator = generator_of(delta)
    given = dict[str, Floats]()
    for name in (generator.vector, generator.scales):
        value = constant(delta.graph, name)
        if value is None or value.dtype != np.float32 or value.ndim != 1 or not value.size:
            raise BundleError(f"the delta graph has no vector {name}, which its {RECIPE} names; export it again.")
        given[name] = value
    published = checkpoint.as_published.tensors
    shapes = {name: published[without_prefix(name)[1]].shape for name in wanted}
    if _FLOAT_BYTES * sum(map(math.prod, shapes.values())) >= emit.MAX_INLINE_BYTES:
        for name, shape in shapes.items():
            stored = StoredTensor(bound[name], "F32", shape, 0, _FLOAT_BYTES * math.prod(shape), GENERATED)
            model.graph.initializer.append(external_tensor(stored))
        parameters = json.dumps({name: values.tobytes().hex() for name, values in given.items()})
        facts = properties(model) | {RECIPE: properties(delta)[RECIPE], _PARAMETERS: parameters}
        onnx.helper.set_model_props(model, facts)
        return

    def make(name: str) -> onnx.TensorProto:
        return numpy_helper.from_array(generator.tensor(name, given, checkpoint), bound[name])

    model.graph.initializer.extend(map_ahead(make, wanted, thread_count()))  # last: nothing copies them again


def generator_of(delta: onnx.ModelProto) -> Generator:
    """Read the recipe for tensors that a delta graph leaves to its loader."""
    return _recipe_of(delta, RECIPE, Generator)


class _DrawnRecipe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    generator: Literal["mt19937/1"]
    seed: int = Field(ge=0, lt=SEEDS)
    shapes: dict[str, tuple[_Extent, _Extent]] = Field(max_length=16)


def drawn_tensors(delta: onnx.ModelProto, bound: Mapping[str, str]) -> Iterator[onnx.TensorProto]:
    """Draw an initializer for each drawn input, named as ``bound`` says."""
    wanted = {without_prefix(name)[1]: name for name in bound if without_prefix(name)[0] == "drawn"}
    if not wanted:
        return
    recipe = _recipe_of(delta, DRAWN, _DrawnRecipe)
    read = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in delta.graph.input}
    odd = [name for name, value in wanted.items() if recipe.shapes.get(name) != read[value]]
    if odd or sum(map(math.prod, recipe.shapes.values())) > MAX_ENTRIES:
        said = f"{odd[0]} [{', '.join(map(str, read[wanted[odd[0]]]))}]" if odd else f"{MAX_ENTRIES:,} numbers at most"
        raise BundleError(f"the delta graph reads {said}, and its {DRAWN} says otherwise; export the task again.")
    made = frozen_matrices(recipe.seed, recipe.shapes)
    yield from (numpy_helper.from_array(made[name], bound[value]) for name, value in wanted.items())


def _recipe_of(model: onnx.ModelProto, key: str, kind: type[_AnyRecipe]) -> _AnyRecipe:
    """The recipe that stands under ``key`` in a graph's metadata, as JSON."""
    try:
        return kind.model_validate_json(properties(model).get(key, ""))
    except ValidationError as error:
        raise BundleError(
            f"the delta graph's {key} is not a recipe that this version knows: {mistakes_text(error)}."
        ) from error


def external_values(
    model: onnx.ModelProto, tensors: Iterable[TensorProto], checkpoint: Checkpoint
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Each tensor's name and values: a read-only memory map, or what a recipe gives, made as it is asked for."""
    for tensor in tensors:
        where = place_of(tensor)
        if where["location"] == GENERATED:
            parameters = json.loads(properties(model)[_PARAMETERS])
            given = {name: np.frombuffer(bytes.fromhex(values), np.float32) for name, values in parameters.items()}
            yield tensor.name, generator_of(model).tensor(tensor.name.removeprefix("delta/"), given, checkpoint)
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
        place, dtype = place_of(tensor), DTYPES[tensor.data_type]
        offset, length = int(place["offset"]), int(place["length"])
        given = StoredTensor(tensor.name, dtype, tuple(tensor.dims), offset, length, path.name)
        if stored.get(tensor.name) != given:
            raise BundleError(
                f"{path} does not hold the tensor {tensor.name!r:.60} as its graph says; export the task again."
            )
        tensor.CopyFrom(external_tensor(given, str(path.resolve())))
