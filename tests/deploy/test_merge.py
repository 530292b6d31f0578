"""One task as one plain model: what others load, answering as the bundle does."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from deltas import TEXTS
from optimum_classes import optimum_class
from tokenizers import Tokenizer
from tolerance import error_beside, require_alike

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError, UnknownName, UsageError, VerificationFailed
from edgepeft.deploy.merge import merge_task
from edgepeft.runtime.runtime import Runtime

EXAMPLE = Path(__file__).parents[2] / "docs" / "javascript"


@pytest.fixture(scope="module")
def merged(exported, tmp_path_factory):
    """Task -> its merged folder, alone in the world: the bundle is not needed any more."""
    folder = tmp_path_factory.mktemp("merged")
    for task in ("mood", "pair", "score"):
        merge_task(Bundle(exported), task, folder / task)
    return folder


def texts_of(task):
    return [t._replace(second=TEXTS[i + 1].first if task == "pair" else None) for i, t in enumerate(TEXTS[:9])]


@pytest.mark.parametrize("task", ["mood", "pair", "score"])
def test_transformers_and_optimum_load_the_folder_and_answer_as_the_bundle(exported, merged, task):
    peer = optimum_class("ORTModelForSequenceClassification")
    from transformers import AutoTokenizer

    model = peer.from_pretrained(merged / task)
    tokenizer = AutoTokenizer.from_pretrained(merged / task)
    texts = texts_of(task)
    pairs = [text.second for text in texts] if task == "pair" else None
    inputs = tokenizer([text.first for text in texts], pairs, padding=True, truncation=True, return_tensors="pt")
    logits = model(**inputs).logits.numpy()
    answers = Runtime(exported).predict(task, texts)
    if task == "score":
        require_alike(logits[:, 0], [answer.score for answer in answers], exported)
        assert model.config.problem_type == "regression"
    else:
        assert [model.config.id2label[index] for index in logits.argmax(1)] == [answer.label for answer in answers]
        odds = np.exp(logits - logits.max(1, keepdims=True))
        expected = [[answer.scores[model.config.id2label[i]] for i in range(logits.shape[1])] for answer in answers]
        require_alike(odds / odds.sum(1, keepdims=True), expected, exported)


def test_the_model_needs_no_other_file_and_standard_operators_only(merged, tmp_path):
    shutil.copyfile(merged / "mood" / "model.onnx", tmp_path / "alone.onnx")
    model = onnx.load(tmp_path / "alone.onnx", load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert all(tensor.data_location == onnx.TensorProto.DEFAULT for tensor in model.graph.initializer)
    assert {entry.domain for entry in model.opset_import} == {""}
    session = ort.InferenceSession(tmp_path / "alone.onnx")
    assert [output.name for output in session.get_outputs()] == ["logits"]


def test_a_lora_is_in_the_weights(exported, merged):
    """Each of a tiny BERT's layers has six products and attention's two; the head two."""
    layers = Bundle(exported).architecture.n_layers
    model = onnx.load(merged / "mood" / "model.onnx")
    assert sum(node.op_type in ("MatMul", "Gemm") for node in model.graph.node) == layers * 8 + 2


def test_the_tokenizer_cuts_where_the_task_was_trained_to(exported, merged):
    settings = json.loads((merged / "mood" / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == Bundle(exported).entry("mood").max_length
    assert Tokenizer.from_file(str(merged / "mood" / "tokenizer.json")).get_vocab_size() > 0


def test_large_weights_lie_beside_the_graph(exported, tmp_path, monkeypatch):
    monkeypatch.setattr("edgepeft.backbones.emit.MAX_INLINE_BYTES", 1000)
    merge_task(Bundle(exported), "mood", tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx_data").stat().st_size > (tmp_path / "out" / "model.onnx").stat().st_size
    ort.InferenceSession(tmp_path / "out" / "model.onnx")


def test_an_unknown_task_and_an_existing_folder_are_refused(exported, tmp_path):
    with pytest.raises(UnknownName, match="mood"):
        merge_task(Bundle(exported), "moot", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(UsageError, match="--force"):
        merge_task(Bundle(exported), "mood", tmp_path / "full")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("out", ["bundle", "."])
def test_the_bundle_itself_is_not_replaced(exported, tmp_path, out):
    bundle = Path(shutil.copytree(exported, tmp_path / "bundle"))
    with pytest.raises(UsageError, match="and with it"):
        merge_task(Bundle(bundle), "mood", tmp_path / out, force=True)
    assert Bundle(bundle).entry("mood")


def test_a_damaged_bundle_leaves_nothing(bundle, tmp_path):
    with (bundle / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\x00\x00\x80\x3f")
    with pytest.raises(BundleError, match="truncated or altered"):
        merge_task(Bundle(bundle), "mood", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_model_that_does_not_give_pytorchs_logits_is_not_left(exported, tmp_path, monkeypatch):
    spliced = Bundle.graph

    def off(self, task):
        model = spliced(self, task)
        bias = next(t for t in model.graph.initializer if t.name.startswith("delta/head/") and len(t.dims) == 1)
        bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + np.float32(1e-3), bias.name))
        return model

    monkeypatch.setattr(Bundle, "graph", off)
    with pytest.raises(VerificationFailed, match=r"differs from PyTorch by 0\.001"):
        merge_task(Bundle(exported), "mood", tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_rounds_otherwise_than_its_bundle_is_refused_or_taken_as_it_is(exported, tmp_path, monkeypatch):
    """In 8 bits another grouping of products is another rounding: 2 of 64 decisions are more than 2 %."""
    found = merge_task(Bundle(exported), "mood", tmp_path / "out")
    found = found.model_copy(update={"tolerance": None, "changed_tolerance": 0.02, "agreement": 62 / 64})
    monkeypatch.setattr("edgepeft.deploy.merge.replay", lambda *_: found)
    with pytest.raises(VerificationFailed, match=r"3\.1% of the decisions .* export, add or merge take it as it is"):
        merge_task(Bundle(exported), "mood", tmp_path / "out", force=True)
    taken = merge_task(Bundle(exported), "mood", tmp_path / "out", force=True, accept_error=True)
    assert taken.changed_tolerance == 1.25 * 2 / 64


def test_the_javascript_example_answers_as_the_bundle(exported, merged):
    if not (EXAMPLE / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip("needs node and its packages: make test-javascript")
    texts = texts_of("mood")
    command = ["node", "classify.mjs", str(merged / "mood"), *(text.first for text in texts)]
    found = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, check=True).stdout
    answers = Runtime(exported).predict("mood", texts)
    for line, answer in zip(map(json.loads, found.splitlines()), answers, strict=True):
        assert line["label"] == answer.label and line["score"] == pytest.approx(
            answer.score, abs=error_beside(exported)
        )
