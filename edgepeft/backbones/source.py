"""Finding a backbone: a folder or a Hub name becomes a folder with config, float32 safetensors and tokenizer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture, Family, Pooling, family_of
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import read_config
from edgepeft.backbones.emit import WEIGHTS_FILE
from edgepeft.backbones.tokens import TextEncoder
from edgepeft.errors import BundleError, MissingPackage, UsageError
from edgepeft.resources import cache_folder, new_folder, sha256_of

__all__ = ["COMPANIONS", "Backbone", "open_backbone"]

# What travels with the weights, read by us or by transformers.
BUNDLE_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "1_Pooling/config.json",
)
# Vocabularies of slow tokenizers, which tokenizer.json is made of where it is missing.
COMPANIONS = (*BUNDLE_FILES, "vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model")
_PLAIN_DTYPES = {"F32", "I64", "I32", "U8", "BOOL", "I8", "I16"}


@dataclass(frozen=True)
class Backbone:
    """A backbone on disk: ``source`` is its Hub name or its folder's, ``folder`` holds its files."""

    source: str
    folder: Path
    config: Mapping[str, Any]

    @cached_property
    def family(self) -> Family:
        """The family that builds its graph."""
        return family_of(self.config)

    @cached_property
    def architecture(self) -> Architecture:
        """Its sizes, tensors and sites."""
        return self.family.architecture(self.config)

    @property
    def weights(self) -> Path:
        """The ``model.safetensors``."""
        return self.folder / WEIGHTS_FILE

    @cached_property
    def sha256(self) -> str:
        """Of the weights: a delta belongs to exactly these."""
        return sha256_of(self.weights)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The index of the weights, by the base model's parameter names."""
        return self.family.open_checkpoint(self.architecture, self.weights)

    @cached_property
    def pooling(self) -> Pooling:
        """Mean where a sentence-transformers folder says so, else the first token."""
        path = self.folder / "1_Pooling" / "config.json"
        if path.is_file() and read_config(path).get("pooling_mode_mean_tokens"):
            return Pooling.MEAN
        return Pooling.FIRST

    @cached_property
    def head(self) -> str:
        """The head kind that this model's authors put on it; linear over a mean, or without a pooler."""
        if self.pooling is Pooling.MEAN:
            return "linear"
        has_pooler = all(self.checkpoint.has(name) for name in self.architecture.pooler)
        return self.architecture.head if has_pooler else "linear"

    def encoder(self) -> TextEncoder:
        """Its tokenizer."""
        return TextEncoder(self.folder / "tokenizer.json", self.architecture.inputs, self.architecture.pad_token_id)


def open_backbone(source: str) -> Backbone:
    """Open a folder in HF layout (a bundle is one) or download a Hub name.

    Half-precision, sharded and ``pytorch_model.bin`` checkpoints are converted once, into the cache.

    Raises:
        UsageError: neither a folder nor a name that the Hub or its cache has.
        BundleError: files are missing or damaged.
    """
    folder = Path(source)
    name = folder.resolve().name if folder.is_dir() else source  # a path is the machine's own business
    if not folder.is_dir():
        folder = _download(source)
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} has no config.json; a backbone is a folder in Hugging Face layout.")
    folder = _plain_folder(folder)
    return Backbone(name, folder, read_config(folder / "config.json"))


def _download(source: str) -> Path:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith("."):
        raise UsageError(f"there is no folder {source}, and it cannot be a Hub name; give one of the two.")
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        raise MissingPackage(
            f"there is no folder {source}; to download a Hub name: pip install 'edgepeft[train]'."
        ) from None
    try:
        folder = Path(snapshot_download(source, allow_patterns=[*COMPANIONS, "model*.safetensors*"]))
        if not any(folder.glob("model*.safetensors")):
            folder = Path(snapshot_download(source, allow_patterns=[*COMPANIONS, "pytorch_model.bin"]))
    except Exception as error:  # the library's many kinds all mean: not here, not reachable
        raise UsageError(
            f"there is no folder {source}, and the Hub gave no model of that name ({type(error).__name__}: offline, or "
            f"no such model); nor is it in the cache {constants.HF_HUB_CACHE}. "
            "Give a folder, or fetch it where there is a network."
        ) from error
    return folder


def _plain_folder(folder: Path) -> Path:
    """The folder itself when its weights are float32 safetensors and its tokenizer is fast, else a converted copy."""
    plain, index = folder / WEIGHTS_FILE, folder / f"{WEIGHTS_FILE}.index.json"
    origin = next((path for path in (plain, index, folder / "pytorch_model.bin") if path.is_file()), None)
    if origin is None:
        raise UsageError(f"{folder} has neither {WEIGHTS_FILE} nor pytorch_model.bin; it is not a backbone.")
    as_is = origin == plain and all(t.dtype in _PLAIN_DTYPES for t in Checkpoint.open(plain).tensors.values())
    has_tokenizer = (folder / "tokenizer.json").is_file()
    if as_is and (has_tokenizer or not _has_slow_tokenizer(folder)):
        return folder
    target = cache_folder() / "converted" / sha256_of(origin)
    if not target.is_dir():
        with new_folder(target) as new:
            _copy_companions(folder, new)
            if as_is:
                shutil.copyfile(plain, new / WEIGHTS_FILE)
            else:
                _write_float32(_read_tensors(origin), new / WEIGHTS_FILE)
            if not has_tokenizer and _has_slow_tokenizer(folder):
                _convert_tokenizer(folder, new)
    return target


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


def _read_tensors(origin: Path) -> dict[str, NDArray[Any]]:
    if origin.suffix == ".bin":
        return _read_pickle(origin)
    files = [origin]
    if origin.name.endswith(".index.json"):
        files = sorted({origin.parent / Path(name).name for name in read_config(origin)["weight_map"].values()})
    return {name: tensor for file in files for name, tensor in _read_safetensors(file).items()}


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
    found = {}
    for stored in Checkpoint.open(path).tensors.values():
        raw = np.fromfile(path, np.uint8, stored.n_bytes, offset=stored.offset)
        found[stored.name] = _decoded(raw, stored.dtype).reshape(stored.shape)
    return found


def _decoded(raw: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":  # the upper half of a float32
        return (raw.view("<u2").astype("<u4") << 16).view("<f4")
    numpy_types = {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U8": "u1",
    }
    return raw.view(numpy_types.get(dtype, "u1"))


def _write_float32(tensors: Mapping[str, NDArray[Any]], path: Path) -> None:
    from safetensors.numpy import save_file

    plain = {
        name: np.ascontiguousarray(tensor, np.float32) if tensor.dtype.kind == "f" else np.ascontiguousarray(tensor)
        for name, tensor in tensors.items()
    }
    save_file(plain, path, metadata={"format": "pt"})
