"""Which of a delta's tensors lie beside its graph, since a protobuf ends at 2 GiB, and their file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from torch import Tensor

from edgepeft.backbones import emit
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.graph.external_data import outside, store_outside
from edgepeft.graph.half import STORED, rounded

__all__ = ["outside_tensors", "write_outside"]


def outside_tensors(delta: Delta, file: Path | None) -> dict[str, Tensor]:
    """The matrices that go into ``file``, by their name in the HF base model: none where one graph holds them all.

    Raises:
        UsageError: a graph does not hold what is left for it.
    """
    matrices = {name: tensor for name, tensor in delta.override_tensors.items() if tensor.ndim > 1}
    n_bytes = sum(tensor.nbytes for tensor in delta.tensors().values())
    if n_bytes < emit.MOST_INLINE_BYTES:
        return {}
    rest = n_bytes - sum(tensor.nbytes for tensor in matrices.values())
    if file is None or rest >= emit.MOST_INLINE_BYTES:
        raise UsageError(
            f"the task {delta.card.task} has {n_bytes / 1e9:.1f} GB of tensors of its own ({delta.card.method}), and "
            f"they must be in one graph here, of {emit.MOST_INLINE_BYTES / 1e9:.1f} GB at most: train fewer, by lora, "
            "an adapter, or top-k with fewer layers."
        )
    return matrices


def write_outside(model: onnx.ModelProto, tensors: Mapping[str, NDArray[np.float32]], file: Path, beside: str) -> None:
    """Write what lies outside of a delta graph; the graph will find it as ``beside``.

    Raises:
        UsageError: a value is beyond what the graph's half precision holds.
    """
    store_outside([*outside(model.graph)], _as_stored(model.graph, tensors), file, beside)


def _as_stored(
    graph: onnx.GraphProto, tensors: Mapping[str, NDArray[np.float32]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    for tensor in outside(graph):
        name = tensor.name.removesuffix(STORED)
        yield tensor.name, tensors[name] if tensor.name == name else rounded(name, tensors[name])
