"""Compares what a foreign checkpoint must hold with what it holds; one error names every difference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from edgepeft.errors import BundleError

__all__ = ["check_tensors"]


def check_tensors(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """Check that exactly these tensors are there, in these shapes.

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
    differences = [f"{kind}: {', '.join(names)}" for kind, names in problems.items() if names]
    if differences:
        raise BundleError(
            f"{folder} does not hold the tensors that its config and this backbone ask for; {'; '.join(differences)}."
        )
