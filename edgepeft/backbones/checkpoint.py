"""``model.safetensors``: offsets of its tensors, read from the header alone; a writer of one tensor at a time.

Source: the safetensors format, https://huggingface.co/docs/safetensors (8 bytes little-endian header length, JSON
header, data).  The library hides the offsets, and ONNX external data needs them.  What is written has the bytes of the
library's own ``save_file``, tensors in the order of their alignment and then their names and a header that ends on 8
bytes, with one of them at a time in memory.

A tensor may be quantised: it is two of the file then, integers and their float32 scales (``Quantised``).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import BundleError
from edgepeft.common.resources import pointer_note

_MAX_HEADER_BYTES = 8 << 20  # of a hundred thousand tensors; the library takes 100 MB, and twenty seconds for them
# Of bfloat16, which NumPy lacks, the bits.
NUMPY_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: its name in the file, dtype, shape, first byte from the file's start, length, and which file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    file: str

    @classmethod
    def of_header(cls, name: str, entry: Mapping[str, Any], data_start: int, file: str) -> StoredTensor:
        """Check and convert an entry of a header."""
        begin, end = map(int, entry["data_offsets"])
        shape = tuple(int(extent) for extent in entry["shape"])
        dtype = str(entry["dtype"])
        known = NUMPY_TYPES.get(dtype)
        sized = known is None or end - begin == math.prod(shape) * np.dtype(known).itemsize
        if begin < 0 or end < begin or min(shape, default=0) < 0 or not sized:
            raise ValueError(f"tensor {name} has impossible offsets {begin}..{end} for {dtype} {list(shape)}")
        return cls(name, dtype, shape, data_start + begin, end - begin, file)

    def read(self, path: Path) -> NDArray[Any]:
        """The values, those of bfloat16 as float32."""
        values = np.fromfile(path, NUMPY_TYPES[self.dtype], math.prod(self.shape), offset=self.offset)
        if self.dtype == "BF16":  # the upper half of a float32
            values = (values.astype("<u4") << 16).view("<f4")
        return values.reshape(self.shape)


BYTES = ":uint8"


class Quantised:
    """How a matrix [out, in] or a table [rows, d] is called once it is integers.

    Of 8 bits there is one scale a row, or one for each group of a row; of 4 bits one for each group.  A matrix of 8
    bits with a scale a row is stored transposed, [in, out], as ``MatMulInteger`` reads it; all else as it was.
    """

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor
        self.scale = f"{tensor}:scale"  # float32, [out] or [rows]; of groups [out, groups]
        self.matrix = f"{tensor}:int8:transposed"  # int8, [in, out]
        self.table = f"{tensor}:int8"  # int8, [rows, d]
        self.packed = f"{tensor}:int4"  # uint8, [out, in / 2]: pairs of 4 bits, the first in the low half; 8 is zero
        self.bytes = f"{tensor}{BYTES}"  # uint8, [out, in] or [rows, d], of groups; 128 stands for zero
        # Float32, [in] or [1]: factors of what the matrix reads, where its step is fixed; columns are divided by them.
        self.columns = f"{tensor}:columns"


@dataclass(frozen=True)
class Checkpoint:
    """An index of a safetensors file, by the names that its publisher gave."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    prefix: str = ""

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read and check the header."""
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", first := file.read(8))
                check_header(first, path)
                header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            entries = [StoredTensor.of_header(name, entry, 8 + length, path.name) for name, entry in header.items()]
        except FileNotFoundError:
            raise BundleError(f"{path} is missing; it must hold the backbone's weights.") from None
        except OSError as error:
            raise BundleError(f"{path} cannot be read ({error.strerror}); let this user read the weights.") from error
        except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BundleError(f"{path} is not a safetensors file or is damaged ({error}); fetch it again.") from error
        size = path.stat().st_size
        for entry in entries:
            if entry.offset + entry.n_bytes > size:
                raise BundleError(
                    f"{path} is truncated: tensor {entry.name} ends past its {size} bytes; fetch it again."
                )
        return cls(path, {entry.name: entry for entry in entries})

    def with_aliases(self, aliases: Mapping[str, str]) -> Checkpoint:
        """Add the aliases whose own tensors are not stored."""
        known = {name: other for name, other in aliases.items() if other in self.tensors and not self.holds(name)}
        new = {name: replace(self.tensors[other], name=name) for name, other in known.items()}
        return replace(self, tensors={**self.tensors, **new})

    def with_prefix_for(self, canonical: Iterable[str], prefixes: Iterable[str], model_type: str) -> Checkpoint:
        """Find the prefix under which the tensors of a base model of that type stand."""
        names = list(canonical)
        fewest: list[str] = names
        for prefix in prefixes:
            candidate = Checkpoint(self.path, self.tensors, prefix)
            missing = [name for name in names if not candidate.has(name)]
            if not missing:
                return candidate
            fewest = min(fewest, missing, key=len)
        from edgepeft.backbones.base import families

        said = (
            f"{self.path} lacks {len(fewest)} of the tensors that its config.json, of model_type {model_type!r}, asks "
            f"for ({', '.join(fewest[:3])}, ...); "
        )
        within = next((name for name in self.tensors if name.endswith(f".{fewest[0]}")), "")
        wrapper = within.removesuffix(fewest[0])
        if within and wrapper.removesuffix(".") not in families():  # roberta. is another model's, of another config
            raise BundleError(
                f"{said}it has {within}, as a model within another is saved (DataParallel, torch.compile). Take "
                f"{wrapper!r} off its tensors' names, or save the inner model by its save_pretrained."
            )
        raise BundleError(f"{said}weights and config do not belong together.")

    @property
    def is_quantised(self) -> bool:
        """Whether any tensor is."""
        return any(stored.dtype in ("I8", "U8") for stored in self.tensors.values())

    @property
    def as_published(self) -> Checkpoint:
        """An index in which a quantised tensor is float32, of the shape that it had; of no use to read values by."""
        whole = {name: stored for name, stored in self.tensors.items() if stored.dtype == "F32"}
        for name, stored in self.tensors.items():
            original, _, form = name.partition(":")
            if form in ("int8", "int8:transposed", "int4", "uint8"):
                shape = stored.shape[::-1] if form == "int8:transposed" else stored.shape
                shape = (*shape[:-1], 2 * shape[-1]) if form == "int4" else shape
                whole[original] = replace(stored, name=original, dtype="F32", shape=shape)
        return replace(self, tensors=whole)

    def has(self, canonical: str) -> bool:
        """Whether the base model's tensor of that name is stored, quantised or not."""
        return any(self.holds(name) for name in self._spellings(canonical))

    def holds(self, name: str) -> bool:
        """Whether there is a tensor of exactly that name, quantised or not."""
        return name in self.tensors or Quantised(name).scale in self.tensors

    def parts(self, name: str) -> tuple[str, ...]:
        """Names in the file of a tensor: its own, or those of the integers and scales of a quantised one."""
        of = Quantised(name)
        stored = (name, of.matrix, of.packed, of.bytes, of.table, of.scale, of.columns)
        return tuple(n for n in stored if n in self.tensors)

    def stored_name(self, canonical: str) -> str:
        """How the file calls a base model's parameter."""
        for name in self._spellings(canonical):
            if self.holds(name):
                return name
        raise BundleError(f"{self.path} has no tensor {self.prefix}{canonical}.")

    def find(self, canonical: str) -> StoredTensor:
        """The stored tensor for a base model's parameter name."""
        name = self.stored_name(canonical)
        if name not in self.tensors:
            raise BundleError(f"{self.path} holds {name} in fewer bits; float32 was expected.")
        return self.tensors[name]

    def _spellings(self, canonical: str) -> tuple[str, ...]:
        """Google's first checkpoints call a LayerNorm's weight and bias gamma and beta."""
        name = self.prefix + canonical
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return (name, old)

    def read(self, canonical: str) -> NDArray[np.float32]:
        """A tensor's values, [shape]: a read-only memory map, or what a quantised one stands for."""
        return self.values(self.stored_name(canonical))

    def values(self, name: str) -> NDArray[np.float32]:
        """As ``read``, by the tensor's name in the file."""
        if name in self.tensors:
            return self._mapped(name, "F32")
        quantised = Quantised(name)
        scale = self._mapped(quantised.scale, "F32")[..., None]
        if quantised.packed in self.tensors:
            pairs = self._mapped(quantised.packed, "U8")
            numbers = np.stack([pairs & 15, pairs >> 4], axis=-1).astype(np.float32)
            groups = numbers.reshape(*scale.shape[:2], -1) - 8  # [out, groups, in each]
            return (groups * scale).reshape(len(pairs), -1)
        if quantised.bytes in self.tensors:
            numbers = self._mapped(quantised.bytes, "U8").astype(np.float32) - 128
            return (numbers.reshape(*scale.shape[:2], -1) * scale).reshape(numbers.shape)
        as_it_was = quantised.table in self.tensors
        integers = self._mapped(quantised.table if as_it_was else quantised.matrix, "I8")
        values: NDArray[np.float32] = np.empty(integers.shape if as_it_was else integers.shape[::-1], np.float32)
        np.multiply(integers if as_it_was else integers.T, scale, out=values)
        if quantised.columns in self.tensors:
            values *= self._mapped(quantised.columns, "F32")
        return values

    def _mapped(self, name: str, dtype: str) -> NDArray[Any]:
        if name not in self.tensors:
            raise BundleError(f"{self.path} has no tensor {name}.")
        stored = self.tensors[name]
        if stored.dtype != dtype:
            raise BundleError(f"{self.path}: tensor {name} is {stored.dtype}; {dtype} was expected.")
        return np.memmap(self.path, np.dtype(NUMPY_TYPES[dtype]), "r", stored.offset, stored.shape)


def check_header(source: Path | bytes, where: object) -> None:
    """See that the library can read a file's header in moments; what else is wrong with it, the library says."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            source = file.read(8)
    if (length := int.from_bytes(source[:8], "little")) > _MAX_HEADER_BYTES:
        said = f"{where} is not a safetensors file: its header claims {length} bytes."
        raise BundleError(said + pointer_note(source))


_ALIGNED = 8
# The library's order, from the last: wide ones first.
_ORDER = ("BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "F64", "I64")


class Layout(NamedTuple):
    """Type and shape of a tensor that is to be written."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of the stored values."""
        return math.prod(self.shape) * np.dtype(NUMPY_TYPES[self.dtype]).itemsize


def write_safetensors(
    path: Path, layout: Mapping[str, Layout], values: Iterable[tuple[str, NDArray[Any]]], metadata: Mapping[str, str]
) -> None:
    """Write the file; ``values`` gives each tensor of ``layout`` once, in any order, and may make it then."""
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
