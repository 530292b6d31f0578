"""A bundle that can be tuned: a tiny BERT, a task of moods, a regression, and a template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from deltas import TEXTS
from moods import texts
from tiny import write_model

from edgepeft.backbones.source import open_backbone
from edgepeft.delta import new_delta
from edgepeft.exporting.bundle import export_bundle
from edgepeft.methods.base import method_named

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


@pytest.fixture(scope="session")
def trainable(tmp_path_factory):
    """Fresh deltas: what they give after tuning is tuning's own."""
    folder = tmp_path_factory.mktemp("trainable")
    backbone = open_backbone(str(write_model(folder / "bert", "bert", mean=True)))
    deltas = []
    for task, labels, method in (
        ("mood", ("bad", "good"), method_named("pfeiffer").from_settings({"bottleneck": 4})),
        ("score", None, method_named("layernorm").from_settings({})),
    ):
        torch.manual_seed(0)
        new_delta(backbone, method, task, labels, max_length=40).save(folder / task)
        deltas.append(folder / task)
    templates = [method_named("lora").from_settings({"rank": "2"})]
    export_bundle(backbone, deltas, folder / "bundle", texts=TEXTS, trainable=True, templates=templates)
    return folder / "bundle"


@pytest.fixture
def bundle(trainable, tmp_path):
    """A copy, to be changed at will."""
    return Path(shutil.copytree(trainable, tmp_path / "bundle"))


@pytest.fixture
def moods(tmp_path):
    return write_moods(tmp_path / "moods.jsonl")
