"""A tiny decoder whose tokens are bytes, so that it can write any JSON; what texts of it say can be told by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltas import random_delta, saved
from tiny import write_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.training.exporting.bundle import export_bundle

SPECIAL = {"<pad>": 0, "<s>": 1, "<unk>": 2, "</s>": 3}
END, VOCABULARY = 3, 264  # four tokens beyond the last byte's: embeddings are often padded


def write_speller(folder: Path, **sizes: object) -> Path:
    """A random Llama of two layers, whose token 4 + i is the i-th of byte-level BPE's alphabet."""
    sizes = {"vocab_size": VOCABULARY, "eos_token_id": END, "max_position_embeddings": 512, **sizes}
    write_model(folder, "llama", **sizes)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = SPECIAL | {letter: 4 + i for i, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def export_schemas(speller: Path, schemas: Mapping[str, Any], folder: Path) -> Path:
    """A bundle of tasks that answer in these JSON schemas, or as they like where it is None; random, so that nothing would be JSON."""
    backbone, template = open_backbone(str(speller)), {"source": "{text}\n", "target": " {json}"}
    paths = []
    for seed, (task, schema) in enumerate(schemas.items()):
        given = {**template, "json_schema": schema}
        delta = random_delta(backbone, "lora", task, None, settings={"rank": 2}, head="text", seed=seed, template=given)
        paths.append(saved(delta, folder / task))
    export_bundle(backbone, paths, folder / "bundle", texts=[Text("one two"), Text("three")])
    return folder / "bundle"
