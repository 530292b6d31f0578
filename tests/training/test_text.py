"""Training text: loss and gradients are transformers' own, greedy answers too, and a task that can be learnt is learnt."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from deltas import random_delta
from tiny import WORDS
from tolerance import exactly
from verbs import verb

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.batches import Writing, encode
from edgepeft.data.parts import TaskData
from edgepeft.data.rows import Row
from edgepeft.options.verbs import TrainSettings
from edgepeft.tasks.text import TextGeneration as WrittenText
from edgepeft.training.engine import loss_of, torch_batch
from edgepeft.training.loop import train_delta
from edgepeft.training.text_engine import generated

WRITTEN = WrittenText()
WRITING = Writing(8, 0, 3, 60)
TARGETS = ["w7 w9", "yes", "w20 w21 w22 w23 w24 w25 w26 w27 w28"]
TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14"]


def rows(pairs: Any) -> tuple[Row, ...]:
    return tuple(Row(text, None, target, "rows.jsonl", i) for i, (text, target) in enumerate(pairs, start=1))


def text_delta(backbone: Backbone, method: str = "lora", **more: Any) -> Delta:
    return random_delta(backbone, method, "t", None, head="text", template={"max_target_length": 8}, **more)


def test_targets_are_their_tokens_and_the_end_and_long_ones_are_cut(tiny: Callable[..., Path]):
    encoder = open_backbone(str(tiny("t5"))).encoder()
    encoded = encode(rows(zip(TEXTS, TARGETS, strict=True)), WRITTEN, encoder, 16, 0, writing=WRITING)
    assert [row.tolist() for row in encoded.targets] == [[7, 9, 3], [58, 3], [20, 21, 22, 23, 24, 25, 26, 3]]
    assert encoded.cut == 1
    assert encoded.batch([1, 0])[1].tolist() == [[58, 3, -100], [7, 9, 3]]
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the target '\\u3000' has no token"):
        encode(rows([("w5", "\u3000")]), WRITTEN, encoder, 16, 0, writing=WRITING)


@pytest.mark.parametrize("sizes", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}], ids=str)
def test_loss_and_gradients_are_transformers_own(tiny: Callable[..., Path], sizes):
    """A delta of one LoRA, whose product stands in the weight of a copy of the model by hand."""
    backbone = open_backbone(str(tiny("t5", **sizes)))
    delta, model = (
        text_delta(backbone, settings={"rank": 2, "alpha": 2.0, "roles": ("value",)}),
        load_model(backbone, "eager"),
    )
    encoded = encode(rows(zip(TEXTS, TARGETS, strict=True)), WRITTEN, backbone.encoder(), 16, 0, writing=WRITING)
    inputs, targets = torch_batch(encoded, [0, 1, 2])
    loss = loss_of(WRITTEN, delta.logits(model, inputs), targets)
    loss.backward()
    ours = {name: tensor.grad for name, tensor in delta.tensors().items()} | {"loss": loss.detach()}

    theirs: Any = copy.deepcopy(model).double()
    leaves = {name: t.detach().double().requires_grad_() for name, t in delta.tensors().items()}
    merged = {}
    for name in delta.site_modules:
        weight = f"{backbone.architecture.site(name).reads}.weight"
        merged[weight] = theirs.get_parameter(weight) + leaves[f"{name}/B"] @ leaves[f"{name}/A"]  # alpha / r is 1

    def compute() -> dict[str, torch.Tensor]:
        given = {name: t for name, t in inputs.items() if not name.startswith("decoder_")}
        found = torch.func.functional_call(theirs, merged, (), {**given, "labels": targets}).loss
        gradients = torch.autograd.grad(found, list(leaves.values()), retain_graph=True)
        return {**dict(zip(leaves, gradients, strict=True)), "loss": found}

    assert len(leaves) == 2 * (2 + 3)  # the values of both stacks
    for name, exact in exactly(compute).items():
        exact.require(ours[name].numpy(), name)


@pytest.mark.parametrize("method", ["lora", "prompt-r", "bitfit", "full"])
def test_answers_are_what_transformers_writes_one_token_after_the_other(tiny: Callable[..., Path], method: str):
    """Greedily, each next token from our logits of all before it, without a cache."""
    backbone = open_backbone(str(tiny("t5")))
    delta, model = text_delta(backbone, method, seed=3), load_model(backbone, "eager")
    encoded = encode(rows(zip(TEXTS, TARGETS, strict=True)), WRITTEN, backbone.encoder(), 16, 0, writing=WRITING)
    inputs, _ = torch_batch(encoded, [0, 1, 2])
    inputs.pop("decoder_input_ids")
    with torch.no_grad():
        written = generated(delta, model, inputs, 6)
        read = torch.zeros(3, 1, dtype=torch.int64)
        for _ in range(6):
            logits = delta.logits(model, {**inputs, "decoder_input_ids": read})
            read = torch.cat([read, logits[:, -1:].argmax(-1)], 1)
        bare = generated(text_delta(backbone, "layernorm"), model, inputs, 6)
    expected = [_until_end(row[1:].tolist()) for row in read]
    assert [_until_end(row) for row in written.tolist()] == expected
    assert expected != [_until_end(row) for row in bare.tolist()]  # the delta says something of its own


def _until_end(tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(3) + 1] if 3 in tokens else tokens


def copies(n: int) -> tuple[Row, ...]:
    words = sorted(WORDS.values())
    return rows((f"{words[i % 2]} w{5 + i % 7}", f"w50 {words[i % 2]}") for i in range(n))


def test_a_task_that_can_be_learnt_is_learnt(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("t5")))
    data = TaskData(copies(60), copies(12), copies(14), None, "by hand", source="{text}", target="{answer}")
    options = TrainSettings(task="t", epochs=15, batch_size=20, max_length=16, learning_rate=1e-2, max_target_length=6)
    result = train_delta(backbone, "full", data, options, tmp_path / "out")
    assert result.metric == "f1" and result.score > 0.9  # a half is what one of the two words alone gives
    assert result.history[-1]["loss"] < result.history[0]["loss"] / 2
    card = Delta.load(tmp_path / "out", backbone).card
    assert (card.head, card.labels, card.source, card.target, card.max_target_length) == (
        "text",
        None,
        "{text}",
        "{answer}",
        6,
    )
    assert result.errors["texts"]["f1"] == result.score
    assert {"label", "answer", "loss", "row", "text"} == set(result.errors["worst"][0])


def test_text_is_trained_from_the_command_line(tiny: Callable[..., Path], tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"text": r.sentence1, "summary": [r.label, "other"]}) + "\n" for r in copies(40))
    )
    asked = ["--backbone", tiny("t5"), "--data", path, "--task", "t", "--method", "layernorm", "--max-length", 16]
    posed = ["--source", "w5 {text}", "--target", "{summary}", "--kind", "text", "--max-target-length", 2]
    done = verb("train", *asked, *posed, "--steps", 3, "--metric", "rouge_l", "--out", tmp_path / "t")
    assert done.exit_code == 0, done.output
    for words in ("rouge l: mean over rows", "mean over rows", "exact match", "40 targets were longer than 2 tokens"):
        assert words in " ".join(done.output.split()), words
    card = json.loads((tmp_path / "t" / "delta.json").read_text())
    assert (card["source"], card["target"], card["max_target_length"]) == ("w5 {text}", "{summary}", 2)
    assert card["metrics"]["baselines"] == {} and card["training"]["metric"] == "rouge_l"
    assert verb("report", tmp_path / "t", "--out", tmp_path / "page").exit_code == 0
    refused = verb("inspect", tmp_path / "t", "--backbone", tiny("t5"), "--data", path, "--out", tmp_path / "look")
    assert "writes text; what inspect measures" in str(refused.exception)


REFUSED = [
    (
        ["--source", "{text}", "--target", "{summary}", "--regression"],
        "--kind regression: here labels or text are written",
    ),
    (["--source", "{text}", "--target", "{summary}", "--balanced"], "--balanced weighs classes, and text has none"),
    (["--source", "{text}", "--target", "{summary}", "--metric", "accuracy"], "accuracy is no metric of text"),
    (["--source", "{text}", "--target", "{none}"], "no column none. Found columns: text, summary, label"),
    (["--source", "{text}", "--max-target-length", "9"], "--max-target-length is of text that is written"),
    (["--source", "{text}", "--target", "{summary}", "--max-target-length", "1"], "must be at least 2"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=str)
def test_what_does_not_fit_text_is_refused(tiny: Callable[..., Path], tmp_path: Path, options: list[str], words: str):
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"w{i}", "summary": "yes", "label": f"{i % 2}"}) + "\n" for i in range(30))
    )
    done = verb("train", "--backbone", tiny("t5"), "--data", path, "--task", "t", "--out", tmp_path / "t", *options)
    assert done.exit_code != 0 and words in str(done.exception)


def test_an_encoder_writes_no_text(tiny: Callable[..., Path], tmp_path: Path):
    data = TaskData(copies(20), copies(4), copies(4), None, "by hand", source="{text}", target="{answer}")
    with pytest.raises(UsageError, match="has no decoder to write text with"):
        train_delta(str(tiny("bert")), "lora", data, TrainSettings(task="t", steps=1), tmp_path / "out")
