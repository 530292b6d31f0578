"""byT5's tokens are transformers': bytes, what ends a text, and the special ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer

from edgepeft.backbones.convert import byte_tokenizer
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text

TEXTS = [
    "",
    "a",
    "good film",
    " two  spaces\n",
    "Grüße, 世界 🙂",
    "\x00\x7f\x80ÿ",
    "of <extra_id_0> and <extra_id_124>",
    "a </s> b",
]


@pytest.fixture(scope="module")
def theirs() -> transformers.ByT5Tokenizer:
    return transformers.ByT5Tokenizer()


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_are_those_of_transformers(theirs: transformers.ByT5Tokenizer, text: str):
    ours = byte_tokenizer()
    assert ours.encode(text).ids == theirs(text)["input_ids"]
    assert ours.encode(text, "two").ids == theirs(text, "two")["input_ids"]
    assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.decode(ours.encode(text).ids) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)
    assert ours.get_vocab_size() == len(theirs) == 384


def test_a_folder_without_a_tokenizer_json_gets_one(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "byt5"
    folder.mkdir()
    for path in tiny("t5", vocab_size=384, eos_token_id=1).iterdir():
        if path.name != "tokenizer.json":
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    backbone = open_backbone(str(folder))
    assert Tokenizer.from_file(str(backbone.folder / "tokenizer.json")).get_vocab_size() == 384
    batch = backbone.encoder().encode([Text("abc"), Text("a" * 50)], 8)
    assert batch.inputs["input_ids"].tolist() == [[100, 101, 102, 1, 0, 0, 0, 0], [100] * 7 + [1]]
    assert batch.truncated == 1
    assert backbone.trie(("no", "not")).targets == ((113, 114, 1), (113, 114, 119, 1))


def test_a_vocabulary_that_transformers_cannot_convert_is_refused_in_words(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from edgepeft.common.errors import EdgepeftError

    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mt5"
    folder.mkdir()
    for path in tiny("t5").iterdir():
        if path.name != "tokenizer.json":
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "spiece.model").write_bytes(b"no vocabulary")
    with pytest.raises(EdgepeftError, match=r"has to be converted, and transformers cannot do that"):
        open_backbone(str(folder))
