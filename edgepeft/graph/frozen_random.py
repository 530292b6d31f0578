"""Give the frozen random matrices that a delta graph leaves to its loader, the inputs ``drawn:<name>``.

A graph with such inputs carries in its ``metadata_props`` a JSON object: ``generator`` ("mt19937/1", specified in
``edgepeft.drawn``), ``seed``, and ``shapes``, the matrices in the order in which they are drawn.  They are trained by
nobody: in a spliced graph they are initializers, for answering and for tuning alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import onnx
from onnx import numpy_helper
from pydantic import BaseModel, ConfigDict, Field

from edgepeft.common.errors import BundleError
from edgepeft.common.frozen_random import MOST_DRAWN, SEEDS, drawn
from edgepeft.graph.names import without_prefix
from edgepeft.graph.recipe import recipe_of

__all__ = ["DRAWN", "drawn_tensors"]

DRAWN = "edgepeft.drawn"
_Extent = Annotated[int, Field(ge=1, le=MOST_DRAWN)]


class _Recipe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    generator: Literal["mt19937/1"]
    seed: int = Field(ge=0, lt=SEEDS)
    shapes: dict[str, tuple[_Extent, _Extent]] = Field(max_length=16)


def drawn_tensors(delta: onnx.ModelProto, bound: Mapping[str, str]) -> Iterator[onnx.TensorProto]:
    """One initializer for each drawn input that is ``bound``, called as that says.

    Raises:
        BundleError: there is no recipe, or it gives other matrices than the graph reads, or too large ones.
    """
    wanted = {without_prefix(name)[1]: name for name in bound if without_prefix(name)[0] == "drawn"}
    if not wanted:
        return
    recipe = recipe_of(delta, DRAWN, _Recipe)
    read = {i.name: tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in delta.graph.input}
    odd = [name for name, value in wanted.items() if recipe.shapes.get(name) != read[value]]
    if odd or sum(map(math.prod, recipe.shapes.values())) > MOST_DRAWN:
        said = f"{odd[0]} [{', '.join(map(str, read[wanted[odd[0]]]))}]" if odd else f"{MOST_DRAWN:,} numbers at most"
        raise BundleError(f"the delta graph reads {said}, and its {DRAWN} says otherwise; export the task again.")
    made = drawn(recipe.seed, recipe.shapes)
    yield from (numpy_helper.from_array(made[name], bound[value]) for name, value in wanted.items())
