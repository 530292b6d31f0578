"""A text in pieces: whole characters, whatever a token is, and together the text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgepeft.backbones.convert import byte_tokenizer
from edgepeft.backbones.tokens import Text, TextEncoder
from edgepeft.runtime.decoding import GREEDY, Row
from edgepeft.runtime.text_generation import Draft, TextBatch


def of_blanks() -> Tokenizer:
    """As sentencepiece has it: a word's blank stands in front of it, and may be a token alone."""
    words = ["<pad>", "</s>", "\u2581", "\u2581it", "\u2581is", "n", "'", "t", "\u2581late", "\u2581\u00e9t", "\u00e9"]
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def written(path: Path, tokenizer: Tokenizer, tokens: list[int]) -> tuple[list[str], str]:
    """The pieces after each token and at the end, and what the tokens are together."""
    tokenizer.save(str(path))
    encoder = TextEncoder(path, ("input_ids", "attention_mask"), 0)
    generator = SimpleNamespace(decoder=SimpleNamespace(start_token_id=0, end_token_id=1))
    mixer, tokenizing = SimpleNamespace(text=None), SimpleNamespace(encoder=lambda: encoder)
    runtime: Any = SimpleNamespace(generator=generator, mixer=mixer, _tokenizing=tokenizing)
    batch = TextBatch(runtime, GREEDY)
    draft = Draft("t", Text(""), np.zeros(0, np.int64), Row(0), 1)
    pieces = []
    for token in tokens:
        draft.row.open[0] = draft.row.open[0]._replace(tokens=(*draft.row.open[0].tokens, token))
        pieces.append(batch.piece(draft))
    draft.row.take([draft.row.open[0]._replace(tokens=(*draft.row.open[0].tokens, 1))], GREEDY, 1)
    draft.done = True
    return [*pieces, batch.piece(draft)], encoder.decode(tokens)


@pytest.mark.parametrize(
    "text", ["plain", "n\u00e9e \u65e5\u672c \U0001f600!", "\U0001f468\u200d\U0001f469 e\u0301", ""]
)
def test_bytes_wait_for_the_rest_of_their_character(tmp_path: Path, text: str):
    pieces, whole = written(tmp_path / "tokenizer.json", byte_tokenizer(), [byte + 3 for byte in text.encode()])
    assert "".join(pieces) == whole == text
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert [piece for piece in pieces if piece] == list(text)


def test_bytes_that_make_no_character_are_told_as_they_are_decoded(tmp_path: Path):
    pieces, whole = written(tmp_path / "tokenizer.json", byte_tokenizer(), [b + 3 for b in b"a\xe6\x97b\xff"])
    assert "".join(pieces) == whole and whole.startswith("a") and "b" in whole


def test_blanks_in_front_of_words_stay_between_them(tmp_path: Path):
    tokenizer = of_blanks()
    tokens = [
        tokenizer.token_to_id(each)
        for each in ("\u2581it", "\u2581is", "n", "'", "t", "\u2581", "\u00e9", "\u2581late")
    ]
    pieces, whole = written(tmp_path / "tokenizer.json", tokenizer, tokens)
    assert "".join(pieces) == whole == "it isn't \u00e9 late"
    assert pieces[:3] == ["it", " is", "n"]
