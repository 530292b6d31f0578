"""Texts that transformers' ``generate`` writes, beside which ours are held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from deltas import TEXTS, random_delta, saved

from edgepeft.backbones.hooks import load_model, padded_in_front
from edgepeft.backbones.source import open_backbone
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.bundle import export_bundle

MINI = Path(__file__).parents[3] / "shared" / "data" / "backbones" / "t5-mini"
# As transformers calls what ``Decoding`` has.
_NAMES = {"beams": "num_beams", "no_repeat_ngram": "no_repeat_ngram_size"}

END = 44  # a token that these tasks write at different steps, or never
# Three tasks of one structure, two of another, and one that shares its matrices with none.
TASKS = {"lora-0": "lora", "lora-1": "lora", "lora-2": "lora", "r-0": "prompt-r", "r-1": "prompt-r", "full": "full"}
PREFIXES = {"prefix-0": "prefix", "prefix-1": "prefix"}  # a decoder's
_SETTINGS: dict[str, dict[str, Any]] = {"lora": {"rank": 2}, "prompt-r": {"length": 3}, "prefix": {"length": 3}}


def export_several(backbone: Path, folder: Path) -> None:
    """A bundle of TASKS, and with a T5 of ``mood``, which has labels; its deltas lie beside it."""
    opened = open_backbone(str(backbone))
    tasks = TASKS | (PREFIXES if opened.architecture.decoder_only else {})
    deltas = [
        random_delta(opened, method, task, None, head="text", seed=seed, settings=_SETTINGS.get(method, {}))
        for seed, (task, method) in enumerate(tasks.items())
    ]
    if opened.architecture.family == "t5":
        deltas.append(random_delta(opened, "lora", "mood", settings={"rank": 2}))
    paths = [saved(delta, folder / delta.card.task) for delta in deltas]
    export_bundle(opened, paths, folder / "bundle", texts=TEXTS[:20], weights="fp32")


class Bare:
    """A bundle without tasks beside the model that it was made of."""

    def __init__(self, folder: Path, bundle: Path, weights: Any = "fp32") -> None:
        self.backbone = open_backbone(str(folder))
        self.manifest = write_backbone(self.backbone, bundle, weights)
        self.runtime = Runtime(bundle, threads=1, cache=False)
        self.model = load_model(self.backbone, "eager")

    def require_same(self, rows: Mapping[str, np.ndarray], decoding: Decoding) -> list[tuple[tuple[int, ...], bool]]:
        ours = [tuple(one) for one in self.runtime.generator.write(None, rows, decoding)]
        assert ours == theirs(self.model, rows, decoding)
        return ours


def theirs(model: Any, rows: Mapping[str, np.ndarray], decoding: Decoding) -> list[tuple[tuple[int, ...], bool]]:
    """Each row's tokens, without those that start and end it, and whether it was ended.

    Without its cache, which transformers 4 makes as deep as the encoder.
    """
    options = {_NAMES.get(name, name): value for name, value in vars(decoding).items() if name != "ends"}
    inputs = {name: torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")}
    read = 1  # the token that starts a text
    if not model.config.is_encoder_decoder:
        inputs, read = padded_in_front(inputs), rows["input_ids"].shape[1]
    with torch.no_grad():
        texts = model.generate(**inputs, **options, do_sample=False, use_cache=False)
    end = model.config.eos_token_id
    found = []
    for tokens in texts[:, read:].tolist():
        ended = end in tokens
        found.append((tuple(tokens[: tokens.index(end)] if ended else tokens[: decoding.max_new_tokens]), ended))
    return found
