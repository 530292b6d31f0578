"""Frozen random matrices that modules share: no delta stores them, and a board draws them anew by ``recipe``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgepeft.common.frozen_random import DRAWN_BY, drawn

__all__ = ["Drawn"]


class Drawn(nn.Module):
    """Buffers by name, of the shapes that are given; one such module is all that a delta may have."""

    A: Tensor
    B: Tensor

    def __init__(self, seed: int, shapes: Mapping[str, tuple[int, int]]) -> None:
        super().__init__()
        self.seed, self.shapes = seed, dict(shapes)
        for name, values in drawn(seed, shapes).items():
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @property
    def recipe(self) -> dict[str, Any]:
        """For ``edgepeft.graph.derived_weights``."""
        return {"generator": DRAWN_BY, "seed": self.seed, "shapes": self.shapes}
