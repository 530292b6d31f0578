"""Tokens in the page are Python's: ids, token types, places, truncation, windows.  What is expected is tokenizers' own."""

import json
import random
from itertools import pairwise

import pytest
from node import run_node
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from edgepeft.backbones.tokens import Text, TextEncoder
from edgepeft.web.site import ODD_TEXTS

ENCODE = """
const { Encoder } = await import(MODULE + "tokenizer.js");
const encoder = new Encoder(given.tokenizer, {}, null);
const plain = (row) => row.map(({ id, type, start, end }) => [id, type, start, end]);
return given.texts.map((text) =>
  given.overlap === undefined
    ? [plain(encoder.encode(text, given.most).row)]
    : encoder.windows(text, given.most, given.overlap, given.second).rows.map(plain),
);
"""
SPECIAL = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}


def tokenizer_of(texts, *, lowercase=True):
    """A WordPiece that knows every other character of these texts, and some pairs of them."""
    normal = normalizers.BertNormalizer(lowercase=lowercase)
    chars = sorted({char for text in texts for char in normal.normalize_str(text)})
    vocab = dict(SPECIAL)
    for char in [c for c in chars if ord(c) % 7] + ["ab", "th", "the", "日本"]:
        for piece in (char, f"##{char}"):
            vocab.setdefault(piece, len(vocab))
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normal, pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, lstrip=t == "[MASK]") for t in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def odd_texts(n):
    """Of blocks that tokenizers disagree about: controls, marks, later than Unicode 8, ideographs past 0xffff."""
    blocks = [(0, 0x300)] * 4 + [(0x300, 0x700), (0x8A0, 0x900), (0x1680, 0x1820), (0x1F00, 0x2070), (0x2E40, 0x2E60)]
    blocks += [(0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xFE00, 0x10000), (0x11000, 0x11800), (0x1F1E6, 0x1F700)]
    blocks += [(0x20000, 0x20100), (0x2B81E, 0x2B922), (0xE0100, 0xE0110)]
    draw = random.Random(7)
    words = ["the", "ab", "ΣΑΣ", "İ", "[SEP]", " [MASK]", "e\u0301", "👩‍👩‍👧", "שלום", "x" * 101]
    parts = [lambda: draw.choice(words), lambda: "".join(chr(draw.randrange(*draw.choice(blocks))) for _ in range(4))]
    return [
        "".join(draw.choice(parts)() + draw.choice(["", " ", "\t"]) for _ in range(draw.randrange(25)))
        for _ in range(n)
    ]


def expected_of(tokenizer, texts):
    encodings = tokenizer.encode_batch([t[0] if t[1] is None else tuple(t) for t in texts])
    return [
        [list(row) for row in zip(e.ids, e.type_ids, *zip(*e.offsets, strict=True), strict=True)] for e in encodings
    ]


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_types_and_places_are_those_of_tokenizers_cut_and_whole(lowercase):
    singles = [*ODD_TEXTS, *odd_texts(150)]
    texts = [[one, None] for one in singles] + [[*pair] for pair in pairwise(singles)]
    tokenizer = tokenizer_of(singles, lowercase=lowercase)
    for most in (100_000, 21):
        tokenizer.enable_truncation(most)
        given = {"tokenizer": json.loads(tokenizer.to_str()), "texts": texts, "most": most}
        found = run_node(ENCODE, given)
        assert [rows[0] for rows in found] == expected_of(tokenizer, texts)


@pytest.mark.parametrize("second", [False, True])
def test_windows_are_those_that_python_reads(tmp_path, second):
    singles = [text * 3 for text in odd_texts(40) if text.strip()]
    tokenizer = tokenizer_of(singles)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    encoder = TextEncoder(tmp_path / "tokenizer.json", ["input_ids"], 0)
    texts = [["the ab", one] for one in singles] + ([] if second else [[one, None] for one in singles])
    batch = encoder.windows([Text(*text) for text in texts], 24, 7, second=second)
    expected = [[window.ids for window in windows] for windows in batch.windows]
    given = {"tokenizer": json.loads(tokenizer.to_str()), "texts": texts, "most": 24, "overlap": 7, "second": second}
    assert [[[token[0] for token in row] for row in rows] for rows in run_node(ENCODE, given)] == expected


@pytest.mark.slow
def test_every_code_point_is_read_as_tokenizers_reads_it():
    texts = [f"a{chr(point)}b" for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    normal = normalizers.BertNormalizer()
    some = {char for text in texts[::50] for char in normal.normalize_str(text)}
    tokenizer = tokenizer_of("".join(some) + "ab")
    tokenizer.no_truncation()
    script = ENCODE.replace("given.texts.map((text)", "given.texts.map((text) => [text, null]).map((text)")
    given = {"tokenizer": json.loads(tokenizer.to_str()), "texts": texts, "most": 100}
    found = run_node(script, given)
    expected = expected_of(tokenizer, [[text, None] for text in texts])
    assert [hex(ord(t[1])) for t, ours, theirs in zip(texts, found, expected, strict=True) if ours[0] != theirs] == []
