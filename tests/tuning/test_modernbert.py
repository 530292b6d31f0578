"""Tuning on a ModernBERT: a board's steps are PyTorch's, over one block of a row and over several; and in 8 bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from deltas import TEXTS, random_delta, saved
from training_loops import steps_beside_pytorchs
from tuned import tune_task

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.deploy.verify import audit
from edgepeft.options.verbs import TuneSettings
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

LENGTHS = (3, 9, 30, 150)  # in words; a block is of 32 tokens, and rows of more than 128 have several


@pytest.fixture
def rows(tmp_path):
    source, lines = np.random.default_rng(0), []
    for i in range(40):
        words = " ".join(f"w{word}" for word in source.integers(10, 50, LENGTHS[i % 4]))
        lines.append(json.dumps({"sentence1": f"w{5 + i % 2} {words}", "label": ("no", "yes")[i % 2]}) + "\n")
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(lines))
    return path


@pytest.fixture
def made(tiny, tmp_path):
    backbone = open_backbone(str(tiny("modernbert", vocab_size=1152, max_position_embeddings=512)))
    delta = random_delta(backbone, "lora", "mood", ("no", "yes"))
    delta.card = delta.card.model_copy(update={"max_length": 200})

    def bundle(dtype):
        export_bundle(backbone, [saved(delta, tmp_path / "d")], tmp_path / "bundle", texts=TEXTS[:8], weights=dtype)
        return tmp_path / "bundle"

    return backbone, delta, bundle


def test_the_losses_of_the_first_steps_are_pytorchs(made, rows, tmp_path):
    backbone, delta, bundle = made
    opened = Bundle(bundle("fp32"))
    options = TuneSettings(
        steps=40, dropout=False, weight_decay=0.01, learning_rate=3e-3, head_learning_rate=1e-2, seed=3
    )
    run = TuningRun(opened, from_task(opened, "mood", Files(rows), options), options, tmp_path / "work", threads=1)
    beside = steps_beside_pytorchs(run.loop, delta, backbone, 4, rates=(3e-3, 1e-2), warm=4, decay=0.01)
    assert max(run.loop.rows["train"].lengths) > 128
    for number, loss in enumerate(beside):
        assert run.loop.loss == pytest.approx(loss, abs=1e-5), f"step {number + 1}"


def test_a_task_on_8_bits_is_tuned_and_stays_sound(made, rows):
    _, _, bundle = made
    folder = bundle("int8")
    tuned = tune_task(folder, "mood", Files(rows), TuneSettings(steps=10, learning_rate=1e-2), threads=1)
    assert tuned.metrics and not any(finding.problem for finding in audit(folder))
