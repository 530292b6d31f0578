"""Random weights and a random tokenizer for a config, and texts that have as many tokens as are asked for.

Throughput does not depend on what the weights are, so a benchmark needs no download.  Matrices are
N(0, 0.02) as the models themselves start (Devlin et al. 2018), norms are the identity, biases zero.
The tokenizer is byte-pair encoding with random merges: reading 50,000 of them is part of a cold start.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.common.atomic import write_json

__all__ = ["texts_of", "write_random_checkpoint", "write_random_tokenizer"]

_DIGITS = "0123456789"  # of a decoder, which writes the labels: they are numbers
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FIRST, _LAST, _PAD = "<s>", "</s>", "<pad>"
_SPECIAL = 2  # tokens of a text that are not its words
_LONGEST = 12  # letters of an entry


def write_random_checkpoint(config: dict[str, Any], folder: Path, *, seed: int = 0) -> Architecture:
    """Write ``config.json`` and a random ``model.safetensors`` in HF layout; same seed, same bytes."""
    from safetensors.numpy import save_file

    architecture = family_of(config).architecture(config)
    source = np.random.default_rng(seed)
    shapes = {**architecture.tensors, **architecture.pooler}
    save_file(
        {name: _random_tensor(name, shape, source) for name, shape in shapes.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    write_json(folder / "config.json", config)
    return architecture


def _random_tensor(name: str, shape: tuple[int, ...], source: np.random.Generator) -> np.ndarray:
    if len(shape) == 2:
        return 0.02 * source.standard_normal(shape, np.float32)
    return (np.ones if name.endswith("weight") else np.zeros)(shape, np.float32)


def write_random_tokenizer(architecture: Architecture, folder: Path, *, seed: int = 0) -> None:
    """Write ``tokenizer.json`` and its config with as many entries as ``architecture`` has embeddings."""
    source = random.Random(seed)
    pad = architecture.pad_token_id
    names = [_FIRST, _LAST]
    names.insert(pad, _PAD) if pad <= len(names) else names.append(_PAD)
    words, merges = list(_LETTERS + (_DIGITS if architecture.decoder else "")), []
    known = set(words)
    while len(names) + len(words) < architecture.vocab_size:
        pair = (source.choice(words), source.choice(_LETTERS))
        if "".join(pair) not in known and len(pair[0]) < _LONGEST:
            merges.append(pair)
            words.append("".join(pair))
            known.add(words[-1])
    vocabulary = {entry: index for index, entry in enumerate([*names, *words])}
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = Whitespace()
    ends = [(name, vocabulary[name]) for name in (_FIRST, _LAST)]
    tokenizer.post_processor = TemplateProcessing(single=f"{_FIRST} $A {_LAST}", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"model_max_length": architecture.max_length})


def texts_of(lengths: Sequence[int], *, seed: int = 0) -> list[str]:
    """Make a text for each number of tokens, special ones included, for tokenizers of ``write_random_tokenizer``."""
    if min(lengths) <= _SPECIAL:
        raise ValueError(f"a text has at least {_SPECIAL + 1} tokens, {min(lengths)} were asked for")
    # Single letters: what merges make of a longer word depends on all of them.
    source = random.Random(seed)
    return [" ".join(source.choice(_LETTERS) for _ in range(length - _SPECIAL)) for length in lengths]
