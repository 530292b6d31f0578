"""Checkpoints in other forms (half precision, sharded, pickled, no fast tokenizer), converted once, into the cache."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import read_config
from edgepeft.backbones.emit import BUNDLE_FILES, INT8_WEIGHTS_FILE, WEIGHTS_FILE
from edgepeft.errors import BundleError, MissingPackage, UsageError
from edgepeft.resources import cache_folder, new_folder, sha256_of

__all__ = ["BUNDLE_FILES", "COMPANIONS", "plain_folder"]

# Vocabularies of slow tokenizers, which tokenizer.json is made of where it is missing.
COMPANIONS = (*BUNDLE_FILES, "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model")
_NUMPY_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
_READABLE = {*_NUMPY_TYPES, "BF16"}
_PLAIN_DTYPES = {"F32", "I64", "I32", "U8", "BOOL", "I8", "I16"}


def plain_folder(folder: Path) -> Path:
    """The folder itself when its weights are float32 safetensors and its tokenizer is fast, else a converted copy.

    Raises:
        UsageError: no weights.
        BundleError: damaged weights.
        MissingPackage: the conversion needs torch or transformers.
    """
    plain, index = folder / WEIGHTS_FILE, folder / f"{WEIGHTS_FILE}.index.json"
    origin = next((path for path in (plain, index, folder / "pytorch_model.bin") if path.is_file()), None)
    if origin is None and (folder / INT8_WEIGHTS_FILE).is_file():
        raise UsageError(
            f"{folder} is a bundle of 8-bit weights, which can be run but not trained or exported; give the float32 "
            "checkpoint that it was made of."
        )
    if origin is None:
        raise UsageError(f"{folder} has neither {WEIGHTS_FILE} nor pytorch_model.bin; it is not a backbone.")
    as_is = origin == plain and all(t.dtype in _PLAIN_DTYPES for t in Checkpoint.open(plain).tensors.values())
    slow_tokenizer = _has_slow_tokenizer(folder) and not (folder / "tokenizer.json").is_file()
    if as_is and not slow_tokenizer:
        return folder
    parts = _parts(origin)
    target = cache_folder() / "converted" / _key(folder, parts)
    if not target.is_dir():
        with new_folder(target) as new:
            _copy_companions(folder, new)
            if as_is:
                shutil.copyfile(plain, new / WEIGHTS_FILE)
            else:
                _write_float32(dict(_read_tensors(parts)), new / WEIGHTS_FILE)
            if slow_tokenizer:
                _convert_tokenizer(folder, new)
    return target


def _key(folder: Path, parts: list[Path]) -> str:
    """Of everything that the copy is made of: shards of two models may share one index, and models their weights."""
    companions = [folder / name for name in COMPANIONS if (folder / name).is_file()]
    listing = [f"{path.relative_to(folder)} {sha256_of(path)}" for path in (*parts, *companions)]
    return hashlib.sha256("\n".join(listing).encode()).hexdigest()


def _has_slow_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("vocab.txt", "vocab.json", "sentencepiece.bpe.model"))


def _copy_companions(folder: Path, target: Path) -> None:
    for name in COMPANIONS:
        if (folder / name).is_file():
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, target / name)


def _convert_tokenizer(folder: Path, target: Path) -> None:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise MissingPackage(
            f"{folder} has no tokenizer.json; converting its tokenizer needs: pip install 'edgepeft[train]'."
        ) from None
    AutoTokenizer.from_pretrained(str(folder)).save_pretrained(str(target))  # type: ignore[no-untyped-call]


def _parts(origin: Path) -> list[Path]:
    """The files that hold the weights: one, or the shards that an index names."""
    if origin.suffix != ".json":
        return [origin]
    shards = read_config(origin).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise BundleError(f"{origin} has no weight_map from tensors to files; fetch it again.")
    parts = sorted({origin.parent / Path(name).name for name in shards.values()})
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise BundleError(f"{origin} names {missing[0]}, which is not beside it; fetch it again.")
    return parts


def _read_tensors(parts: list[Path]) -> Iterator[tuple[str, NDArray[Any]]]:
    for part in parts:
        yield from (_read_pickle if part.suffix == ".bin" else _read_safetensors)(part).items()


def _read_pickle(origin: Path) -> dict[str, NDArray[Any]]:
    """Read with torch's restricted unpickler, which runs no code."""
    try:
        import torch
    except ImportError:
        raise MissingPackage(
            f"{origin} is a PyTorch file; converting it needs: pip install 'edgepeft[train]'."
        ) from None
    try:
        state = torch.load(origin, map_location="cpu", weights_only=True)
        return {name: t.float().numpy() if t.is_floating_point() else t.numpy() for name, t in state.items()}
    except Exception as error:  # pickle, zip and attribute errors: all mean that it is no state dict
        raise BundleError(f"{origin} is not a PyTorch state dict ({type(error).__name__}); fetch it again.") from error


def _read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    tensors = {}
    for stored in Checkpoint.open(path).tensors.values():
        if stored.dtype not in _READABLE:
            known = ", ".join(sorted(_READABLE))
            raise BundleError(f"{path}: tensor {stored.name} is {stored.dtype}; what can be converted: {known}.")
        raw = np.fromfile(path, np.uint8, stored.n_bytes, offset=stored.offset)
        tensors[stored.name] = _decoded(raw, stored.dtype).reshape(stored.shape)
    return tensors


def _decoded(raw: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":  # the upper half of a float32
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    return raw.view(_NUMPY_TYPES[dtype])


def _write_float32(tensors: Mapping[str, NDArray[Any]], path: Path) -> None:
    from safetensors.numpy import save_file

    plain = {
        name: np.ascontiguousarray(tensor, np.float32) if tensor.dtype.kind == "f" else np.ascontiguousarray(tensor)
        for name, tensor in tensors.items()
    }
    save_file(plain, path, metadata={"format": "pt"})
