"""How a foreign checkpoint comes in: our method, the tensors that the file must hold, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from edgepeft.methods.base import Method

__all__ = ["ConversionPlan", "Renaming", "Shapes", "StateDict"]

StateDict = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Renaming = Mapping[str, tuple[str, tuple[int, ...]]]  # their tensor -> (ours, its shape)


@dataclass(frozen=True)
class ConversionPlan:
    """``shapes`` by their names; ``convert`` gives our tensors by our names."""

    method: Method
    shapes: Shapes
    convert: Callable[[StateDict], dict[str, Tensor]]

    @classmethod
    def renaming(cls, method: Method, names: Renaming) -> ConversionPlan:
        """Tensors that differ in their names alone."""

        def convert(state: StateDict) -> dict[str, Tensor]:
            return {ours: state[theirs] for theirs, (ours, _) in names.items()}

        return cls(method, {theirs: shape for theirs, (_, shape) in names.items()}, convert)
