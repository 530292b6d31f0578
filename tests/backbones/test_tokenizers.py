"""Token ids are AutoTokenizer's, whatever files a folder has its tokenizer in, on two hundred odd texts."""

# ruff: noqa: RUF001, SIM905

from __future__ import annotations

import functools
import io
import itertools
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny import known
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models
from transformers import AutoTokenizer, BertTokenizerFast

from edgepeft.backbones.convert import plain_folder
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text, TextEncoder
from edgepeft.common.errors import UsageError

WORDS = (
    "the soup was Cold and we laughed all Evening café Straße naïve İstanbul ﬁnal 東京 日本語 중국 שלום مرحبا Привет "
    "don't U.S.A. 3,141.59 e-mail @user #tag http://a.b/c?d=e 100% x² \u0301 ａｂｃ ① Ⅷ ﷺ नमस्ते ไทย 𝒳 😀 👩‍👩‍👧 🇩🇪"
).split()
SPECIAL = (
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[UNK]",
    "[PAD]",
    "<s>",
    "</s>",
    "<mask>",
    "<unk>",
    "<pad>",
    "<extra_id_0>",
    "[NEW]",
)
ODD = (
    *(
        "",
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u00a0",
        "\u2003",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\x00",
        "\x07",
        "\x7f",
        "\x85",
        "\ufffd",
    ),
    *(
        " leading",
        "trailing ",
        "  two  blanks  ",
        "a\tb\nc\r\nd",
        "a\u00a0b\u3000c",
        "x" * 300,
        "😀" * 40,
        "é" * 30,
        "e\u0301" * 30,
    ),
    *(
        "A\u030a",
        "\u212b",
        "ﬀ",
        "ß",
        "SS",
        "ſ",
        "İ",
        "ı",
        "Σς",
        "ᾳ",
        "Ǆ",
        "한국어",
        "日本",
        "שלום עולם",
        "\u202eabc\u202c",
        "مُحَمَّد",
    ),
    *(f"a {token} b" for token in SPECIAL),
    *(f"a{token}b" for token in SPECIAL),
    *SPECIAL,
    *(
        "▁",
        "a ▁ b",
        "##s",
        "Ġthe",
        "don't",
        "I'LL",
        "...",
        "!?!?",
        "``quoted''",
        "—–-",
        "\ud7ff",
        "\ue000",
        "𠮷野家",
        "\U000e0041",
    ),
)


def texts() -> list[str]:
    chance, joins = random.Random(0), (" ", "", "  ", "\n", "\t", ", ", "-")
    made = []
    while len(made) + len(ODD) < 200:
        made.append("".join(chance.choice(WORDS) + chance.choice(joins) for _ in range(chance.randint(1, 9))))
    return [*ODD, *made]


TEXTS = texts()
CORPUS = [" ".join(words) for words in itertools.permutations(WORDS[:7], 3)] + [" ".join(WORDS)] * 20


@functools.cache
def word_pieces() -> str:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = sorted(
        {letter for text in (*CORPUS, *(w.lower() for w in CORPUS)) for letter in text if not letter.isspace()}
    )
    pieces += [*letters, *(f"##{letter}" for letter in letters), "the", "soup", "cold", "Cold", "cafe", "##ing", "we"]
    return "\n".join(dict.fromkeys(pieces)) + "\n"


@functools.cache
def byte_pairs() -> tuple[str, str]:
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(
        CORPUS, vocab_size=400, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"], show_progress=False
    )
    with tempfile.TemporaryDirectory() as folder:
        made.save_model(folder)
        return tuple((Path(folder) / name).read_text() for name in ("vocab.json", "merges.txt"))


@functools.cache
def sentence_pieces(*control: str) -> bytes:
    spm = pytest.importorskip("sentencepiece", reason="pip install sentencepiece")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        minloglevel=9,
        control_symbols=list(control),
    )
    return model.getvalue()


VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {
    "bert": lambda: {"vocab.txt": word_pieces()},
    "distilbert": lambda: {"vocab.txt": word_pieces()},
    "electra": lambda: {"vocab.txt": word_pieces()},
    "ernie": lambda: {"vocab.txt": word_pieces()},
    "megatron-bert": lambda: {"vocab.txt": word_pieces()},
    "mpnet": lambda: {"vocab.txt": "<s>\n<pad>\n</s>\n<unk>\n<mask>\n" + word_pieces()},
    "roberta": lambda: dict(zip(("vocab.json", "merges.txt"), byte_pairs(), strict=True)),
    "data2vec-text": lambda: dict(zip(("vocab.json", "merges.txt"), byte_pairs(), strict=True)),
    "roberta-prelayernorm": lambda: dict(zip(("vocab.json", "merges.txt"), byte_pairs(), strict=True)),
    "xlm-roberta": lambda: {"sentencepiece.bpe.model": sentence_pieces()},
    "xlm-roberta-xl": lambda: {"sentencepiece.bpe.model": sentence_pieces()},
    "camembert": lambda: {"sentencepiece.bpe.model": sentence_pieces()},
    "rembert": lambda: {"sentencepiece.model": sentence_pieces("[CLS]", "[SEP]", "[MASK]", "<pad>")},
    "albert": lambda: {"spiece.model": sentence_pieces("[CLS]", "[SEP]", "[MASK]", "<pad>")},
    "deberta-v2": lambda: {"spm.model": sentence_pieces("[CLS]", "[SEP]", "[MASK]", "[PAD]")},
    "t5": lambda: {"spiece.model": sentence_pieces()},
}


def write(folder: Path, model_type: str, files: dict[str, str | bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def unlike(folder: Path) -> list[tuple[Text, list[int], list[int]]]:
    """Texts whose ids are not AutoTokenizer's, with both."""
    return unlike_the_file(folder, plain_folder(folder))


def unlike_the_file(folder: Path, plain: Path | None = None) -> list[tuple[Text, list[int], list[int]]]:
    theirs = AutoTokenizer.from_pretrained(str(folder))
    ours = TextEncoder((plain or folder) / "tokenizer.json", ["input_ids", "attention_mask"], 0)
    both = [Text(text) for text in TEXTS] + [Text(a, b) for a, b in zip(TEXTS[::7], TEXTS[3::7], strict=False)]
    found = ours.encode(both, 64).inputs
    wrong = []
    for text, ids, mask in zip(both, found["input_ids"], found["attention_mask"], strict=True):
        expected = theirs(text.first, text.second, truncation=True, max_length=64)["input_ids"]
        if ids[mask > 0].tolist() != expected:
            wrong.append((text, ids[mask > 0].tolist(), expected))
    return wrong


def saved(folder: Path, model_type: str, settings: dict[str, Any] | None = None) -> Path:
    """As ``save_pretrained`` writes it, without the slow one's files; then with other ``settings``."""
    made = AutoTokenizer.from_pretrained(write(folder.parent / "raw", model_type, VOCABULARIES[model_type]()))
    made.save_pretrained(write(folder, model_type, {}))
    (folder / "special_tokens_map.json").unlink()
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (settings or {})))
    return folder


@pytest.mark.parametrize("model_type", known(*VOCABULARIES))
def test_ids_of_a_vocabulary_alone_and_of_a_saved_tokenizer_are_autotokenizers(tmp_path: Path, model_type: str):
    assert len(TEXTS) == 200
    assert not unlike(write(tmp_path / "raw", model_type, VOCABULARIES[model_type]()))
    folder = saved(tmp_path / "saved", model_type)
    assert not unlike(folder) and plain_folder(folder) == folder
    alone = {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}
    if model_type != "rembert":  # whose class, where no config says otherwise, strips blanks before a written <unk>
        assert not unlike(write(tmp_path / "alone", model_type, alone))


OVERRIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "case": ("bert", {"do_lower_case": False}),
    "accents": ("mpnet", {"strip_accents": False}),
    "characters": ("distilbert", {"tokenize_chinese_chars": False}),
    "blank": ("roberta", {"add_prefix_space": True}),
    "blank of pieces": ("t5", {"add_prefix_space": False}),
    "nothing": ("deberta-v2", {"do_lower_case": True, "split_by_punct": True}),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_what_a_config_beside_it_changes_of_a_tokenizer_is_in_its_ids(tmp_path: Path, name: str):
    model_type, settings = OVERRIDES[name]
    folder = saved(tmp_path / "saved", model_type, settings)
    assert not unlike(folder)
    changed = (plain_folder(folder) / "tokenizer.json").read_bytes() != (folder / "tokenizer.json").read_bytes()
    assert changed == (name != "nothing")
    assert not unlike(plain_folder(folder))
    (folder / "edgepeft.json").write_text("{}")
    assert plain_folder(folder) == folder  # a bundle runs with the file that it has


@pytest.mark.parametrize(("begins", "ends"), [(True, False), (False, True), (True, True), (False, False)])
def test_tokens_at_the_ends_of_texts_are_those_that_a_config_beside_it_asks_for(
    tiny: Callable[..., Path], tmp_path: Path, begins: bool, ends: bool
):
    """Llama's class makes the template anew; the file has none."""
    folder = Path(shutil.copytree(tiny("llama"), tmp_path / "llama"))
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 3, "w5": 5}, unk_token="<unk>"))
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": begins, "add_eos_token": ends}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    ids = open_backbone(str(folder)).encoder().encode([Text("w5")], 9).inputs["input_ids"][0].tolist()
    assert ids == [*([1] * begins), 5, *([3] * ends)] == AutoTokenizer.from_pretrained(folder)("w5")["input_ids"]


def test_added_tokens_beside_it_are_in_its_ids(tmp_path: Path):
    folder = saved(tmp_path / "saved", "bert")
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    decoder = settings.pop("added_tokens_decoder")
    path.write_text(json.dumps(settings))
    (folder / "added_tokens.json").write_text('{"[NEW]": 9}')
    assert not unlike(folder) and Text("[NEW]") in {text for text, *_ in unlike_the_file(folder)}
    new = {**decoder["4"], "content": "[NEW]", "lstrip": True, "rstrip": True}
    path.write_text(json.dumps({**settings, "added_tokens_decoder": {**decoder, "9": new}}))
    assert not unlike(folder)


def test_a_tokenizer_that_no_file_can_say_is_refused_by_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As RoFormer's, which divides Chinese by a program."""
    folder = write(tmp_path / "raw", "bert", {"vocab.txt": f"{word_pieces()}other\n"})  # not converted before

    class Divided(BertTokenizerFast):
        def __call__(self, texts: Any, *args: Any, **named: Any) -> Any:
            return super().__call__([text.replace("a", " a") for text in texts], *args, **named)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda path, **_: Divided.from_pretrained(path))
    with pytest.raises(UsageError, match=r"a Divided, reads texts in ways that a tokenizer\.json cannot say"):
        plain_folder(folder)


def test_a_vocabulary_larger_than_the_table_is_refused_by_its_first_token(tiny: Callable[..., Path], tmp_path: Path):
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "model"))
    document = json.loads((folder / "tokenizer.json").read_text())
    document["model"]["vocab"] |= {"w61": 61, "w60": 60}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match="has the token 'w60', whose id has no embedding: there are 60"):
        open_backbone(str(folder)).encoder()
