"""The bundle that can be tuned, to be changed, and rows of moods in words that its tokenizer knows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from moods import texts

# The words of the moods as the tiny model's tokenizer knows them.
_WORDS: dict[str, str] = {}


def known(text):
    return " ".join(_WORDS.setdefault(word, f"w{5 + len(_WORDS)}") for word in text.split())


def write_moods(path, n=60, seed=0, label=lambda label, telling: label, pairs=False):
    rows = []
    for text, mood, telling in texts(n, seed):
        row = {"sentence1": known(text), "label": label(mood, telling)}
        rows.append(row | ({"sentence2": known(text)} if pairs else {}))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def bundle(trainable, tmp_path):
    """A copy, to be changed at will."""
    return Path(shutil.copytree(trainable, tmp_path / "bundle"))


@pytest.fixture
def moods(tmp_path):
    return write_moods(tmp_path / "moods.jsonl")
