"""A byte-pair tokenizer of any size from random merges, and texts that have as many tokens as are asked for.

Random weights need one where a benchmark begins with text: reading 50,000 merges is part of a cold start.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from edgepeft.backbones.base import Architecture
from edgepeft.resources import write_json

__all__ = ["texts_of", "write_random_tokenizer"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FIRST, _LAST, _PAD = "<s>", "</s>", "<pad>"
_SPECIAL = 2  # tokens of a text that are not its words
_LONGEST = 12  # letters of an entry


def write_random_tokenizer(architecture: Architecture, folder: Path, *, seed: int = 0) -> None:
    """Write ``tokenizer.json`` and its config with as many entries as ``architecture`` has embeddings."""
    source = random.Random(seed)
    pad = architecture.pad_token_id
    names = [_FIRST, _LAST]
    names.insert(pad, _PAD) if pad <= len(names) else names.append(_PAD)
    words, merges = list(_LETTERS), []
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
    """One text for each number of tokens, special ones included, for any tokenizer of ``write_random_tokenizer``.

    Raises:
        ValueError: fewer tokens than a text has at least.
    """
    if min(lengths) <= _SPECIAL:
        raise ValueError(f"a text has at least {_SPECIAL + 1} tokens, {min(lengths)} were asked for")
    # Single letters: what merges make of a longer word depends on all of them.
    source = random.Random(seed)
    return [" ".join(source.choice(_LETTERS) for _ in range(length - _SPECIAL)) for length in lengths]
