"""GGUF files (llama.cpp's) as backbones: converted once into the cache, by transformers' ``gguf_file`` and ``gguf``.

The weights are what the file's blocks say, in float32; config and tokenizer are transformers' own of the file.  What
transformers leaves out and a model needs is read here, or the file refused: scalings of RoPE, how wide heads are, how
texts are split into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from edgepeft.backbones.base import family_of
from edgepeft.backbones.convert import cached_copy
from edgepeft.backbones.packing import frequencies
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError, requiring
from edgepeft.common.messages import reason

if TYPE_CHECKING:
    from gguf import GGUFReader

_MAGIC = b"GGUF"
# What llama.cpp calls models -> transformers' model type.  Mistral's are "llama" there, and the same but for the name.
_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
# How texts are split before byte pairs are merged, by llama.cpp's name: as transformers does it, by architecture, and
# as the models' own tokenizer.json has it.
_SPLIT_BY_TRANSFORMERS = {"llama": ("default", "gpt-2"), "qwen2": ("qwen2",), "qwen3": ("qwen2",)}
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_SPLITS: Mapping[str, tuple[PreTokenizer, ...]] = {
    "smollm": (Digits(individual_digits=True), ByteLevel(add_prefix_space=False)),
    "llama-bpe": (Split(Regex(_LLAMA3_WORDS), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)),
}
_ROPE = "rope_freqs.weight"  # Llama 3's scaling, as a divisor of each frequency
_LLAMA3: Mapping[str, Any] = {  # as published, by a factor of 8 (3.1 and 3.3) or 32 (3.2)
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def folder_of_gguf(path: Path) -> Path:
    """The file as a folder in Hugging Face layout."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UsageError(
                f"{path} is no GGUF file; a backbone is a folder in Hugging Face layout, a Hub name or a GGUF file."
            )
    return cached_copy(path, (path,), partial(_convert, path))


def _check(path: Path, reader: GGUFReader) -> None:
    """Before minutes of work, refuse what cannot be converted."""
    named, split = _value(reader, "general.architecture"), _split(reader)
    types = sorted({tensor.tensor_type.name for tensor in reader.tensors})
    if named not in _MODEL_TYPES:
        raise UsageError(
            f"{path} is of the architecture {named!r}; GGUF files can be {', '.join(_MODEL_TYPES)}. Give the folder "
            "in Hugging Face layout that it was made of."
        )
    if unknown := [name for name in types if name not in _TYPES]:
        raise UsageError(
            f"{path} has tensors of the type {unknown[0]}; what can be read: {', '.join(_TYPES)}. Take another file "
            "of this model."
        )
    if split not in (known := (None, *_SPLIT_BY_TRANSFORMERS.get(named, ()), *_SPLITS)):
        raise UsageError(
            f"{path} splits texts as {split!r} (tokenizer.ggml.pre), which is not read from a GGUF file of {named}; "
            f"what is: {', '.join(filter(None, known))}. Give the folder in Hugging Face layout that it was made of."
        )


def _convert(path: Path, folder: Path) -> None:
    with requiring("gguf", f"converting {path}, a GGUF file,"):
        import torch  # noqa: F401
        from gguf import GGUFReader
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        _check(path, reader := GGUFReader(path))
        config = AutoConfig.from_pretrained(**where)
        config.rope_scaling = _scaling(path, reader, config.to_dict())
        if width := _value(reader, f"{_value(reader, 'general.architecture')}.attention.key_length"):
            config.head_dim = width  # which transformers reads of Gemma alone
        family_of(config.to_dict()).architecture(config.to_dict())  # what the family refuses, it refuses here
        load: Any = AutoModelForCausalLM.from_pretrained
        model, told = load(**where, config=config, dtype="float32", output_loading_info=True)
        if missing := sorted(told["missing_keys"]):
            raise BundleError(f"{path} has no tensor for {missing[0]}; it is no whole model.")
        model.save_pretrained(folder)
        read: Any = AutoTokenizer.from_pretrained
        shown = logging.get_verbosity()
        logging.set_verbosity_error()  # it advises about "legacy" Llamas, and to ignore that
        try:
            read(**where).save_pretrained(folder)
        finally:
            logging.set_verbosity(shown)
        if (split := _split(reader)) is not None and split in _SPLITS:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.pre_tokenizer = Sequence([*_SPLITS[split]])
            tokenizer.save(str(folder / "tokenizer.json"))
    except (EdgepeftError, OSError, MemoryError):
        raise
    except Exception as error:  # of the libraries' many kinds
        raise BundleError(f"{path} cannot be read as a GGUF file ({reason(error)}); fetch it again.") from error


def _scaling(path: Path, reader: GGUFReader, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """``rope_scaling`` of the config, which transformers does not read."""
    named = _value(reader, "general.architecture")
    kind = _value(reader, f"{named}.rope.scaling.type")
    for tensor in reader.tensors:
        if tensor.name == _ROPE:
            known = {**_LLAMA3, "factor": float(tensor.data.max())}
            scaled = {**config, "rope_scaling": known}
            attention = family_of(scaled).architecture(scaled).attention[0]
            w = np.array(attention.frequencies, np.float32)
            if np.allclose(tensor.data, frequencies(attention.theta, 2 * len(w)) / w, rtol=1e-3):
                return known
            kind = f"by {_ROPE}"
    if kind in (None, "none"):
        return None
    if kind == "linear" and named != "gemma3":  # whose layers with a window are not scaled
        return {"rope_type": "linear", "factor": float(_value(reader, f"{named}.rope.scaling.factor"))}
    raise UsageError(
        f"{path} scales RoPE {kind}, which is not read from a GGUF file. Give the folder in Hugging Face layout that "
        "it was made of."
    )


def _split(reader: GGUFReader) -> str | None:
    """How texts are split, where byte pairs are merged."""
    return _value(reader, "tokenizer.ggml.pre") if _value(reader, "tokenizer.ggml.model") == "gpt2" else None


def _value(reader: GGUFReader, name: str) -> Any:
    field = reader.fields.get(name)
    return None if field is None else field.contents()
