"""A ``.bin`` of PyTorch's, read by torch's restricted unpickler, which runs no code; and no more than it holds.

Three things in such a file can ask for more memory than its bytes: an archive that is compressed, a pickle of many tiny
objects, and a tensor whose strides read one number many times.
"""

from __future__ import annotations

import io
import os
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from edgepeft.common.errors import BundleError, requiring
from edgepeft.common.messages import reason

if TYPE_CHECKING:
    import torch

_PICKLE_BYTES = 2 << 20  # of the names and shapes of ten thousand tensors; a byte may make a list of 64
_TAR = (257, b"ustar")  # where torch before 0.1.10 has an archive, which torch would unpack


def read_pickled(path: Path) -> dict[str, torch.Tensor]:
    """The tensors by name, each no larger than what is stored of it; equal ones are one."""
    with requiring("train", f"reading {path}, a PyTorch file,"):
        import torch
    try:
        with path.open("rb", buffering=0) as raw, _Counted(raw) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle's versions; what cannot be read is an error below
            archive = zipfile.is_zipfile(path)
            _refuse_growing(file, path, archive)
            # Mapped where it can be: the format before PyTorch 1.6 cannot.
            state = torch.load(path if archive else file, map_location="cpu", weights_only=True, mmap=archive)
            size = os.fstat(raw.fileno()).st_size
    except BundleError:
        raise
    except Exception as error:  # pickle, zip and attribute errors: all mean that it is no state dict
        raise BundleError(
            f"{path} is no plain dictionary of tensors, and code in it is never run ({reason(error)}). Save it as "
            "safetensors."
        ) from error
    if not isinstance(state, dict):
        raise BundleError(f"{path} holds {type(state).__name__}; a dictionary of tensors was expected: save it again.")
    odd = [str(name) for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if odd:
        raise BundleError(f"{path} holds what is no tensor: {', '.join(odd[:3])}. Save it without these.")
    return _as_stored({str(name): tensor for name, tensor in state.items()}, size, path)


class _Counted(io.BufferedReader):
    """A file of which a pickle is read: the unpickler reads once for each object at least."""

    left = _PICKLE_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as the base does, a limited number of times."""
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"its pickle has more than {_PICKLE_BYTES:,} parts")
        return super().read(size)


def _refuse_growing(file: io.BufferedReader, path: Path, archive: bool) -> None:
    """See that an archive holds its tensors as they are, as PyTorch writes them, and that its pickle is small."""
    if not archive:
        at, mark = _TAR
        start = file.peek(at + len(mark))
        if start[at : at + len(mark)] == mark:
            raise BundleError(f"{path} is a tar archive, which PyTorch has not written since 2017. Save it anew.")
        return
    with zipfile.ZipFile(file) as opened:
        members = opened.infolist()
    file.seek(0)
    stored = all(one.compress_type == zipfile.ZIP_STORED for one in members)
    if not stored or sum(one.file_size for one in members) > os.fstat(file.fileno()).st_size:
        raise BundleError(f"{path} is compressed inside, which PyTorch never writes. Do not use it.")
    if any(one.file_size > _PICKLE_BYTES for one in members if one.filename.endswith(".pkl")):
        raise BundleError(
            f"{path} has a pickle of more than {_PICKLE_BYTES:,} bytes beside its tensors. Do not use it."
        )


def _as_stored(state: dict[str, torch.Tensor], most: int, path: Path) -> dict[str, torch.Tensor]:
    """Make tied tensors one object; refuse more than ``most`` bytes together."""
    import torch

    known: dict[object, torch.Tensor] = {}
    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise BundleError(f"{path}: {name} is no dense tensor of plain numbers. Save it as safetensors.")
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        state[name] = known.setdefault(place, tensor.detach())
    asked = sum(one.numel() * one.element_size() for one in known.values())
    if asked > most:
        raise BundleError(
            f"{path} has {most:,} bytes, and its tensors ask for {asked:,}: some read the same numbers again. Save "
            "them contiguous."
        )
    return state
