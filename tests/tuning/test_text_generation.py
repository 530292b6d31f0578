"""Tuning what writes text: the board's loss and gradients are PyTorch's, and a task learns there what it is taught."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from suite import Case
from tiny import WORDS
from tolerance import Exact, exactly
from torch.nn import functional
from tuned import tune_task

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.text import BEFORE
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import UsageError
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.deploy.verify import audit
from edgepeft.graph.gradient.training import training_facts
from edgepeft.methods.base import method_named, method_of
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.exporting.delta import export_delta
from edgepeft.tuning.activation_cache import training_graph
from edgepeft.tuning.step import Expansion, StepRows, TrainingStep
from edgepeft.tuning.target import Files, deployed_graph

METHODS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 2, "roles": ["value"], "cross_attention": True},
    "prompt-r": {"length": 3},
    "prefix": {"length": 3},
    "bitfit": {},
    "full": {},
}
LENGTHS = (5, 1, 3)  # of targets, their ends counted


@pytest.mark.parametrize(
    ("model_type", "weights", "method"),
    [
        (*backbone, method)
        for backbone in (("t5", "fp32"), ("llama", "fp32"), ("llama", "int8"))
        for method in METHODS
        if (backbone[0], method) != ("t5", "prefix")
    ],
)
def test_loss_and_gradients_of_a_step_are_pytorchs(
    tiny: Callable[..., Path], tmp_path: Path, model_type: str, weights: Any, method: str
):
    """Over 8 bits, PyTorch's with what these stand for in place of the weights."""
    wide = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 1100} if weights == "int8" else {}
    backbone = open_backbone(str(tiny(model_type, **wide)))
    settings = {name: value for name, value in METHODS[method].items() if model_type == "t5" or name[0] != "c"}
    delta = random_delta(backbone, method, "t", None, settings=settings, head="text")
    case = Case(method_of(method), backbone)  # for its rows and its model
    graph, source = export_delta(delta, backbone), np.random.default_rng(0)
    rows = case.rows(len(LENGTHS), 6)
    targets = np.full((len(LENGTHS), max(LENGTHS)), -100)
    for row, length in zip(targets, LENGTHS, strict=True):
        row[:length] = source.integers(2, backbone.architecture.vocab_size, length)
    write_backbone(backbone, tmp_path, weights)
    checkpoint = Bundle(tmp_path).checkpoint
    if weights == "int8":
        stored = {name: torch.from_numpy(checkpoint.read(name).copy()) for name in backbone.architecture.tensors}
        case.model.load_state_dict(stored, strict=False)
    start = backbone.architecture.decoder.start_token_id or 0  # after a prompt any number will do
    before = np.maximum(np.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=start), 0)

    exact_delta, model = copy.deepcopy(delta).eval().double(), copy.deepcopy(case.model).double()

    def backward() -> dict[str, torch.Tensor]:
        exact_delta.zero_grad()
        logits = exact_delta.logits(model, {**rows, "decoder_input_ids": torch.from_numpy(before)})
        loss = functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in exact_delta.tensors().items()}}

    exact = exactly(backward)
    facts = training_facts(graph)
    deployed = deployed_graph(graph, facts, Bundle(tmp_path))
    trained, split = training_graph(deployed, facts, checkpoint, prefix_cache=False)
    assert split is None
    step = TrainingStep(trained, facts, tmp_path, 1)
    expansion = Expansion(graph, facts, checkpoint, 1)
    shares = np.full(len(LENGTHS), 1 / sum(LENGTHS), np.float32)
    given = {name: tensor.numpy() for name, tensor in rows.items()}
    own = expansion.inputs(facts.tensors(graph))
    for most in (None, 2):  # in one part, and in two
        asked = StepRows(given, targets, [], shares, most, states=lambda part: {BEFORE: before[part]})
        found = step(own, asked)
        exact["loss"].require(np.float32(found.loss))
        on_graph = {
            f"override/{backbone.checkpoint.stored_name(n[9:])}" if n.startswith("override/") else n: n for n in exact
        }
        assert sorted(found.gradients) == sorted(set(on_graph) - {"loss"})
        for name, gradient in found.gradients.items():
            expected = exact[on_graph[name]]
            share = 1e-5 * float(np.abs(expected.value).max())
            Exact(expected.value, expected.error + share).require(gradient, name)


@pytest.fixture(scope="module")
def bundle_to_tune(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the fresh task ``full``, to be taught, and ``other``, which writes anything."""
    folder, backbone = tmp_path_factory.mktemp("written"), open_backbone(str(tiny("t5")))
    torch.manual_seed(0)
    posed = {"source": "{text}", "target": "{answer}", "max_target_length": 6}
    fresh = new_delta(backbone, method_of("full"), "full", None, head="text", max_length=16, template=posed)
    other = random_delta(backbone, "lora", "other", None, head="text", template=posed)
    paths = [saved(fresh, folder / "full"), saved(other, folder / "other")]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


@pytest.fixture(scope="module")
def rows_to_write(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words, path = sorted(WORDS.values()), tmp_path_factory.mktemp("rows") / "rows.jsonl"
    rows = ({"text": f"{words[i % 2]} w{5 + i % 7}", "answer": f"w50 {words[i % 2]}"} for i in range(80))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def options_of(**more: Any) -> TuneSettings:
    return TuneSettings(**{"epochs": 12, "batch_size": 16, "learning_rate": 1e-2, **more})


def test_a_board_learns_to_write_and_its_answers_are_verified(
    bundle_to_tune: Path, rows_to_write: Path, tmp_path: Path
):
    bundle = shutil.copytree(bundle_to_tune, tmp_path / "bundle")
    result = tune_task(bundle, "full", Files(rows_to_write), options_of(), threads=1)
    assert result.metric == "f1" and result.score > 0.9 > result.metrics["before"]
    assert result.metrics["baselines"] == {}
    entry = Bundle(bundle).entry("full")
    assert entry.verification.reference == "training graph" and entry.previous is not None
    assert not [finding for finding in audit(bundle) if finding.problem]
    first, second = sorted(WORDS.values())[:2]
    with Runtime(bundle, threads=1, cache=False) as runtime:
        answers = runtime.write("full", [f"{first} w6", f"{second} w8"])
    assert [answer.text for answer in answers] == [f"w50 {first}", f"w50 {second}"]


def test_a_board_teaches_a_decoder_over_8_bits(tiny: Callable[..., Path], tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"w{5 + i} w{6 + i}", "answer": "w50 w51"}) + "\n" for i in range(40)))
    backbone = open_backbone(str(tiny("llama", hidden_size=64, intermediate_size=96, vocab_size=1100)))
    lora = method_named("lora").from_settings({"roles": ["query", "value", "attention_output", "ffn_output"]})
    torch.manual_seed(0)
    posed = {"source": "{text}", "target": "{answer}", "max_target_length": 6}
    fresh = new_delta(backbone, lora, "fresh", None, head="text", max_length=16, template=posed)
    export_bundle(backbone, [saved(fresh, tmp_path / "fresh")], tmp_path / "bundle", texts=TEXTS, weights="int8")
    result = tune_task(tmp_path / "bundle", "fresh", Files(rows), options_of(), threads=1)
    assert result.score > 0.9 > result.metrics["before"]
    verification = Bundle(tmp_path / "bundle").entry("fresh").verification
    assert verification.reference == "training graph" and verification.text.kl < verification.kl_tolerance == 0.05
    assert not [finding for finding in audit(tmp_path / "bundle") if finding.problem]


def test_a_run_that_is_stopped_goes_on_to_the_same_weights(bundle_to_tune: Path, rows_to_write: Path, tmp_path: Path):
    one, other = (shutil.copytree(bundle_to_tune, tmp_path / name) for name in ("one", "other"))
    asked, calls = options_of(epochs=None, steps=6), iter(range(100))
    with pytest.raises(Interrupted, match="after step 3 of 6"):
        tune_task(one, "other", Files(rows_to_write), asked, threads=1, stop=lambda: next(calls) == 2)
    for folder in (one, other):
        tune_task(folder, "other", Files(rows_to_write), asked, threads=1, resume=folder == one)
    assert Bundle(one).entry("other").sha256 == Bundle(other).entry("other").sha256


def test_what_such_a_task_cannot_be_asked_is_refused(bundle_to_tune: Path, rows_to_write: Path, tmp_path: Path):
    bundle = shutil.copytree(bundle_to_tune, tmp_path / "bundle")
    with pytest.raises(UsageError, match="--balanced weighs classes, and text has none"):
        tune_task(bundle, "full", Files(rows_to_write), options_of(balanced=True), threads=1)
    with pytest.raises(UsageError, match="accuracy"):
        tune_task(bundle, "full", Files(rows_to_write), options_of(metric="accuracy"), threads=1)
