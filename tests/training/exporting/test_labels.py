"""Tasks whose labels a decoder scores, from training to tuning: small random T5 models, through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from onnx import numpy_helper
from served import serving
from tolerance import require_alike
from typer.testing import CliRunner

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle, read_graph
from edgepeft.bundle.delta import new_delta
from edgepeft.cli._main import app
from edgepeft.common.errors import UsageError
from edgepeft.deploy.merge import merge_task
from edgepeft.graph.template import with_labels
from edgepeft.methods.base import method_of
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks.classification import Classification
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.exporting.delta import export_delta

LABELS = ("yes", "not no", "not yes")
MINI = Path(__file__).parents[2].parent / "shared" / "data" / "backbones" / "t5-mini"


def verb(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Texts whose label is their last word's."""
    source, path = np.random.default_rng(0), tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for i in range(90):
            words = [f"w{j}" for j in source.integers(8, 50, 1 + i % 7)]
            text = " ".join([*words, f"w{5 + i % 3}"])
            file.write(json.dumps({"sentence1": text, "label": LABELS[i % 3]}) + "\n")
    return path


@pytest.mark.parametrize(
    "sizes",
    [{}, pytest.param({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, marks=pytest.mark.slow)],
)
def test_a_task_is_trained_exported_run_verified_and_tuned(
    tiny: Callable[..., Path], tmp_path: Path, rows: Path, sizes
):
    backbone, delta, bundle = tiny("t5", **sizes), tmp_path / "delta", tmp_path / "bundle"
    more = ["--method", "houlsby", "--set", "bottleneck=4", "--lr", "1e-2", "--max-length", 16]
    verb("train", "--backbone", backbone, "--data", rows, "--task", "t", *more, "--steps", 6, "--out", delta)
    verb("export", "--backbone", backbone, "--delta", delta, "--out", bundle)
    before = json.loads(verb("run", bundle, "--task", "t", "w9 w5", "w6", "--json"))
    assert all(set(answer["predictions"][0]["scores"]) == set(LABELS) for answer in before)
    verb("verify", bundle)
    verb("tune", bundle, "--task", "t", "--data", rows, "--steps", 8, "--lr", "1e-2")
    verb("verify", bundle)
    after = json.loads((bundle / "edgepeft.json").read_text())["tasks"]["t"]
    assert after["head_reads"] == "labels" and after["metrics"]["n_test"] > 0
    verb("cost", bundle, "--task", "t")
    verb("info", bundle)


@pytest.fixture(scope="module")
def bundle(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks over other labels, one structure, in the decoder too, and one that changes the first layer of nothing."""
    folder, backbone = tmp_path_factory.mktemp("labels"), open_backbone(str(tiny("t5", vocab_size=1100)))
    asked = {
        "one": ("lora", ("yes", "no")),
        "two": ("lora", ("not yes", "not no", "perhaps")),
        "three": ("lora", ("yes", "no")),
        "prompt": ("prompt-r:length=3", ("yes", "no")),
        "words": ("prompt-r:length=3", ("yes", "no")),
        "biases": ("bitfit", LABELS),
        "said": ("intrinsic-said:dimension=100", ("yes", "no")),
        "decoder": ("lora:roles=ffn_output,skip_layers=2", ("yes", "no")),  # the encoder has two layers
    }
    deltas = []
    for seed, (task, (method, labels)) in enumerate(asked.items()):
        chosen = method_of(method)
        delta = random_delta(backbone, chosen.name, task, labels, seed=seed, settings=chosen.settings())
        deltas.append(saved(delta, folder / task))
    export_bundle(backbone, deltas, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


def test_rows_of_several_tasks_in_one_batch_have_the_answers_of_each_alone(bundle: Path):
    runtime = Runtime(bundle, threads=1)
    texts = TEXTS[:3]
    alone = [answer for task in runtime.tasks for answer in runtime.predict(task, texts)]
    together = runtime.predict_mixed([task for task in runtime.tasks for _ in texts], texts * len(runtime.tasks))
    for one, other in zip(alone, together, strict=True):
        assert list(one.scores) == list(other.scores)
        require_alike([*other.scores.values()], [*one.scores.values()], bundle)


def test_tasks_of_the_same_labels_share_a_session_and_others_do_not(bundle: Path):
    runtime = Runtime(bundle, threads=1)
    one, two, three = (runtime.session(task).structure for task in ("one", "two", "three"))
    assert one == three != two


def test_what_leaves_the_encoder_alone_runs_it_once(bundle: Path):
    runtime, texts = Runtime(bundle, threads=1), TEXTS[:4]
    tasks = ("decoder", "one")
    plan = runtime.predict_all(tasks, texts)
    for task in tasks:
        for one, other in zip(plan[task], runtime.predict(task, texts), strict=True):
            require_alike([*other.scores.values()], [*one.scores.values()], bundle)


def test_8_bit_weights_hold_the_tied_table_once(tiny: Callable[..., Path], tmp_path: Path):
    write_backbone(open_backbone(str(tiny("t5", vocab_size=1100))), tmp_path, "int8")
    stored = Checkpoint.open(tmp_path / "model.int8.safetensors").tensors
    assert sorted(name for name in stored if name.startswith("shared")) == ["shared.weight:int8", "shared.weight:scale"]
    assert not any(name.endswith(("q.weight", "wi.weight", "wo.weight")) for name in stored)


@pytest.mark.skipif(not MINI.is_dir(), reason="t5-mini, a small T5 with learnt weights, is not beside the repository")
def test_8_bit_weights_decide_as_learnt_weights_do(tmp_path: Path):
    backbone = open_backbone(str(MINI))
    rows = [("a wonderful film", "positive"), ("dull , long and without any sense of wit", "negative")] * 4
    texts = [Text(f"mr sentence1: {text}") for text, _ in rows]
    delta = new_delta(backbone, method_of("bitfit"), "mr", ("negative", "positive"), max_length=32)
    export_bundle(backbone, [saved(delta, tmp_path / "mr")], tmp_path / "bundle", texts=texts, weights="int8")
    answers = Runtime(tmp_path / "bundle", threads=1, cache=False).predict("mr", texts)
    assert [answer.label for answer in answers] == [label for _, label in rows]


def test_probabilities_are_those_of_the_labels_alone(bundle: Path):
    for task in ("two", "biases"):
        logits = Runtime(bundle).logits(task, Runtime(bundle).bundle.encoder().encode(TEXTS[:5], 40).inputs)
        np.testing.assert_allclose(np.exp(logits).sum(1), 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"labels": None}, "a regression has none"),
        ({"head": "linear"}, "scores labels with its decoder, by the head 'labels', not 'linear'"),
        ({"method": "linear"}, "linear trains the head alone, and the head 'labels' has nothing to train"),
        ({"method": "top-k"}, "t5 has a decoder"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(tiny: Callable[..., Path], asked: dict[str, Any], said: str):
    backbone = open_backbone(str(tiny("t5")))
    whole = {"method": "lora", "labels": ("yes", "no"), "head": None} | asked
    with pytest.raises(UsageError, match=said):
        new_delta(backbone, method_of(whole["method"]), "t", whole["labels"], head=whole["head"])


def test_an_encoder_is_not_asked_to_score_labels(tiny: Callable[..., Path]):
    with pytest.raises(UsageError, match="no decoder to score labels with"):
        new_delta(open_backbone(str(tiny("bert"))), method_of("lora"), "t", ("yes", "no"), head="labels")


@pytest.mark.parametrize("method", ["lora", "bitfit"])
def test_a_template_takes_labels_that_are_new(tiny: Callable[..., Path], tmp_path: Path, rows: Path, method: str):
    backbone = open_backbone(str(tiny("t5")))
    verb("export", "--backbone", backbone.folder, "--template", method, "--out", tmp_path / "bundle")
    bundle = Bundle(tmp_path / "bundle")
    template = read_graph(bundle.folder / "templates" / f"{method}.onnx")
    made = with_labels(template, "t", Classification(LABELS), pairs=False, seed=0, trie=backbone.trie(LABELS))
    torch.manual_seed(0)
    trained = export_delta(new_delta(backbone, method_of(method), "t", LABELS), backbone)
    constants = [{i.name: numpy_helper.to_array(i) for i in g.graph.initializer} for g in (made, trained)]
    assert constants[0].keys() == constants[1].keys()
    assert all(np.array_equal(constants[0][name], constants[1][name]) for name in constants[0])
    assert [node.SerializeToString() for node in made.graph.node] == [n.SerializeToString() for n in trained.graph.node]
    if method == "lora":
        verb("tune", bundle.folder, "--template", method, "--task", "new", "--data", rows, "--steps", 4, "--lr", "1e-2")
        verb("verify", bundle.folder)
        answers = json.loads(verb("run", bundle.folder, "--task", "new", "w9 w5", "--json"))
        assert set(answers[0]["predictions"][0]["scores"]) == set(LABELS)


def test_a_merged_task_is_a_plain_classifier(bundle: Path, tmp_path: Path):
    for task in ("two", "prompt"):
        merge_task(Bundle(bundle), task, tmp_path / task)
        session = ort.InferenceSession(tmp_path / task / "model.onnx")
        inputs = Bundle(bundle).encoder().encode(TEXTS[:5], 40).inputs
        require_alike(session.run(["logits"], inputs)[0], Runtime(bundle).logits(task, inputs), bundle)
        config = json.loads((tmp_path / task / "config.json").read_text())
        assert list(config["id2label"].values()) == list(Bundle(bundle).entry(task).labels or ())


def test_an_embedding_is_not_pooled_as_labels(bundle: Path):
    runtime = Runtime(bundle)
    with pytest.raises(UsageError, match="an embedding is pooled as first or mean"):
        runtime.predict_mixed([None], ["w5 w6"], pooling=Pooling.LABELS)
    (state,) = runtime.predict_mixed([None], ["w5 w6"])
    assert np.shape(state) == (32,)


def test_labels_beyond_measure_are_refused_and_hundreds_are_not(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("t5")))
    words = [f"w{i}" for i in range(5, 25)]
    many = [f"{a} {b} {c}" for a in words for b in words for c in words]
    with pytest.raises(UsageError, match=r"8000 labels of 421 different beginnings are too many .* 16,777,216 at most"):
        backbone.trie(many)
    assert len(backbone.trie(many[:500]).targets) == 500


def test_a_service_answers_rows_of_several_tasks_with_their_own_labels(bundle: Path, tmp_path: Path):
    pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
    asked = [(task, text.first) for text in TEXTS[:3] for task in ("one", "two", "three", "prompt")]
    with serving(bundle, tmp_path) as service:
        status, _, document = service.post("/v1/predict", {"rows": [{"text": x, "task": t} for t, x in asked]})
        assert status == 200
    expected = Runtime(bundle).predict_mixed([task for task, _ in asked], [text for _, text in asked])
    for found, alone in zip(document["answers"], expected, strict=True):
        assert list(found["prediction"]["scores"]) == list(alone.scores)
        require_alike([*found["prediction"]["scores"].values()], [*alone.scores.values()], bundle)
