"""A safetensors file written one tensor after the other, so that one of them at a time lies in memory.

Source: the safetensors format, https://huggingface.co/docs/safetensors.  The bytes are those of the library's own
``save_file``: tensors in the order of their alignment and then their names, and a header that ends on 8 bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.checkpoint import NUMPY_TYPES

__all__ = ["Layout", "write_safetensors"]

_ALIGNED = 8
# The library's order, from the last: wide ones first.
_ORDER = ("BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "F64", "I64")


class Layout(NamedTuple):
    """Type and shape of a tensor that is to be written."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Of the stored values."""
        return math.prod(self.shape) * np.dtype(NUMPY_TYPES[self.dtype]).itemsize


def write_safetensors(
    path: Path,
    layout: Mapping[str, Layout],
    values: Iterable[tuple[str, NDArray[Any]]],
    metadata: Mapping[str, str],
) -> None:
    """Write the file; ``values`` gives each tensor of ``layout`` once, in any order, and may make it when it is asked.

    Raises:
        ValueError: a tensor is not as its layout says, or one is missing.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in sorted(layout, key=lambda name: (-_ORDER.index(layout[name].dtype), name)):
        dtype, shape = layout[name]
        begin, end = end, end + layout[name].n_bytes
        header[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED)
    left = set(layout)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, tensor in values:
            dtype, shape = layout[name]
            if tensor.shape != shape or tensor.dtype != np.dtype(NUMPY_TYPES[dtype]) or name not in left:
                raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; {dtype} {list(shape)} was expected")
            left.remove(name)
            file.seek(8 + len(text) + header[name]["data_offsets"][0])
            file.write(np.ascontiguousarray(tensor).data)
    if left:
        raise ValueError(f"no values of {min(left)} came")
