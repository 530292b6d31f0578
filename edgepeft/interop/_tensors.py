"""What a foreign checkpoint must hold against what it holds; every difference is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from edgepeft.errors import BundleError

__all__ = ["check_tensors"]


def check_tensors(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """See that exactly these tensors are there, in these shapes.

    Raises:
        BundleError: some are missing, not known or of another shape; all of them are named.
    """
    problems = {
        "missing": [name for name in shapes if name not in state],
        "not known": [name for name in state if name not in shapes],
        "of another shape": [
            f"{name} {list(state[name].shape)} instead of {list(shape)}"
            for name, shape in shapes.items()
            if name in state and tuple(state[name].shape) != shape
        ],
    }
    told = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if told:
        raise BundleError(
            f"{folder} does not hold the tensors that its config and this backbone ask for; {'; '.join(told)}."
        )
