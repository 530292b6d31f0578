"""What a graph's metadata says of tensors that its loader makes."""

from __future__ import annotations

from typing import TypeVar

import onnx
from pydantic import BaseModel, ValidationError

from edgepeft.common.errors import BundleError
from edgepeft.common.messages import in_words
from edgepeft.graph.protos import properties

__all__ = ["recipe_of"]

_Recipe = TypeVar("_Recipe", bound=BaseModel)


def recipe_of(model: onnx.ModelProto, key: str, kind: type[_Recipe]) -> _Recipe:
    """The recipe that stands under ``key`` in a graph's metadata, as JSON.

    Raises:
        BundleError: none that this version understands.
    """
    try:
        return kind.model_validate_json(properties(model).get(key, ""))
    except ValidationError as error:
        raise BundleError(
            f"the delta graph's {key} is not a recipe that this version knows: {in_words(error)}."
        ) from error
