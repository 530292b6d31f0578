"""Bundles of 8-bit weights and half-precision deltas: what they answer, what they refuse, what they weigh."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from safetensors.numpy import load_file
from tolerance import exact_logits
from verbs import edgepeft

from edgepeft.backbones.emit import INT8_WEIGHTS_FILE
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import BundleError, UsageError, VerificationFailed
from edgepeft.common.resources import sha256_of
from edgepeft.deploy.verify import audit
from edgepeft.device.machine import isa_flags
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.backbone import write_backbone
from edgepeft.training.exporting.bundle import add_deltas, export_bundle

SIZES = {"vocab_size": 1152, "mean": True}
# A method for each way to join a backbone: sites, inputs, residuals and norms, biases, norms, matrices, generated ones.
KINDS = {
    "lora": {},
    "houlsby": {"bottleneck": 4},
    "pfeiffer": {"bottleneck": 4},
    "spartan": {},
    "prompt-r": {"length": 5},
    "bitfit": {},
    "layernorm": {},
    "top-k": {"layers": 1},
    "full": {},
    "intrinsic-said": {"dimension": 90},
}
OWN_MATRICES = ("full", "intrinsic-said")


@pytest.fixture(scope="module")
def backbone(tiny):
    return open_backbone(str(tiny("bert", **SIZES)))


@pytest.fixture(scope="module")
def deltas(backbone):
    # Regressions: no two labels that happen to be nearly equal.
    return {name: random_delta(backbone, name, name, None, settings=settings) for name, settings in KINDS.items()}


@pytest.fixture(scope="module")
def eight(backbone, deltas, tmp_path_factory):
    """A bundle of 8-bit weights with a task of each kind; not to be written to."""
    folder = tmp_path_factory.mktemp("eight")
    paths = [saved(delta, folder / f"delta-{name}") for name, delta in deltas.items()]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS, weights="int8")
    return folder / "bundle"


def rows(backbone, texts=TEXTS[:40]):
    return backbone.encoder().encode(texts, 40).inputs


def pytorch(delta, model, inputs):
    with torch.no_grad():
        return delta.logits(model, {name: torch.from_numpy(values) for name, values in inputs.items()}).numpy()


@pytest.mark.parametrize("method", KINDS)
def test_a_delta_of_any_kind_answers_nearly_as_pytorch_does(eight, backbone, deltas, method):
    inputs = rows(backbone)
    expected = pytorch(deltas[method], load_model(backbone, "eager"), inputs)
    found = Runtime(eight, threads=1).logits(method, inputs)
    bare = pytorch(
        random_delta(backbone, method, "x", None, seed=1, settings=KINDS[method]), load_model(backbone), inputs
    )
    noise, signal = np.abs(found - expected).max(), np.abs(bare - expected).max()
    assert noise < 0.15 and signal > 4 * noise, (noise, signal)


def test_matrices_that_a_task_has_of_its_own_are_multiplied_in_float32(eight, backbone, deltas):
    inputs = rows(backbone)
    found = Runtime(eight, threads=1).logits("full", inputs)
    exact_logits(deltas["full"], load_model(backbone, "eager"), inputs).require(found)


def test_generated_matrices_start_from_what_the_8_bits_stand_for(eight, backbone, deltas):
    """PyTorch with NumPy's rounding of the weights in place of the weights."""
    model, stored = load_model(backbone, "eager"), load_file(eight / INT8_WEIGHTS_FILE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and (name.startswith("encoder.") or "word_embeddings" in name):
                columns = stored.get(f"{name}:columns", np.float32(1))  # of what is read behind a norm
                weights = parameter.numpy() / columns
                scale = np.abs(weights).max(1, keepdims=True) / 127
                parameter.copy_(torch.from_numpy(np.rint(weights / scale) * scale * columns))
    inputs = rows(backbone)
    found = Runtime(eight, threads=1).logits("intrinsic-said", inputs)
    exact_logits(deltas["intrinsic-said"], model, inputs).require(found)


def test_a_task_with_one_layer_of_its_own_keeps_the_others_in_8_bits(eight):
    nodes = Bundle(eight).graph("top-k").graph.node
    assert sum(node.op_type == "MatMulInteger" for node in nodes) == 6
    assert sum(node.op_type == "Gemm" and node.input[1].startswith("override:encoder.layer.1.") for node in nodes) == 6


def test_a_row_does_not_depend_on_its_company(eight, backbone):
    """But where the last digit of an activation, which the order of a sum moves, rounds to another byte."""
    runtime = Runtime(eight, threads=1)
    together = runtime.logits("lora", rows(backbone, TEXTS[:12]))
    alone = np.concatenate([runtime.logits("lora", rows(backbone, [text])) for text in TEXTS[:12]])
    assert np.median(np.abs(together - alone)) < 1e-6 and np.abs(together - alone).max() < 2e-2
    inputs = {name: np.pad(values, ((0, 0), (0, 9))) for name, values in rows(backbone, TEXTS[:12]).items()}
    np.testing.assert_allclose(runtime.logits("lora", inputs), together, rtol=0, atol=1e-5)


def test_the_manifest_names_the_file_in_use_and_the_checkpoint_behind_it(eight, backbone):
    entry = json.loads((eight / "edgepeft.json").read_text())["backbone"]
    assert entry["weights_dtype"] == "int8" and not (eight / "model.safetensors").exists()
    assert entry["sha256"]["weights"] == sha256_of(eight / "model.int8.safetensors")
    assert entry["checkpoint_sha256"] == sha256_of(backbone.weights)
    task = Manifest.read(eight).task("full")
    own = sum(v.nbytes for n, v in load_file(backbone.weights).items() if not n.startswith("pooler."))
    assert task.private_bytes == own  # float32, whatever it stands for
    assert task.verification.tolerance is None and task.verification.changed_tolerance == pytest.approx(0.02)
    assert task.verification.isa


def test_a_replay_passes_by_the_rule_of_8_bits(eight):
    findings = audit(eight)
    assert [f.subject for f in findings] == ["backbone", *KINDS] and not any(f.problem for f in findings)
    assert any(f.verification.max_abs_difference > 1e-3 for f in findings[1:])


def test_the_same_deltas_give_the_same_bytes(eight, backbone, tmp_path):
    write_backbone(backbone, tmp_path, "int8")
    for name in ("backbone.onnx", "model.int8.safetensors"):
        assert sha256_of(tmp_path / name) == sha256_of(eight / name)


@pytest.fixture
def copy(eight, tmp_path):
    return shutil.copytree(eight, tmp_path / "copy")


INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_int8_file_is_refused_by_name(copy, damage):
    path = copy / "model.int8.safetensors"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-5] ^= 1
    path.write_bytes(content[:-9] if damage == "cut" else content)
    if damage == "gone":
        path.unlink()
    with pytest.raises(BundleError, match=r"model\.int8\.safetensors"):
        Runtime(copy).logits("lora", dict.fromkeys(INPUTS, np.ones((1, 3), np.int64)))
    done = edgepeft("run", copy, "--task", "lora", "w5 w6")
    assert done.returncode == 1 and "model.int8.safetensors" in done.stderr


def test_other_types_of_weights_are_refused(copy):
    path = copy / "edgepeft.json"
    path.write_text(path.read_text().replace('"weights_dtype": "int8"', '"weights_dtype": "int2"'))
    with pytest.raises(BundleError, match="weights_dtype"):
        Bundle(copy)


def test_an_exported_task_moves_between_bundles_of_one_backbone_only(eight, backbone, copy, exported, tmp_path):
    export_bundle(backbone, [], tmp_path / "fp32", texts=TEXTS)
    add_deltas(tmp_path / "fp32", [eight / "tasks" / "lora.onnx"], texts=TEXTS)
    found = Runtime(tmp_path / "fp32", threads=1).logits("lora", rows(backbone))
    assert 1e-4 < np.abs(found - Runtime(eight, threads=1).logits("lora", rows(backbone))).max() < 0.2
    with pytest.raises(BundleError, match=open_backbone(str(backbone.folder)).sha256[:12]):
        add_deltas(copy, [exported / "tasks" / "mood.onnx"], texts=TEXTS)


def test_a_trained_delta_is_added_with_the_float32_checkpoint_and_not_without(copy, backbone, tiny, tmp_path):
    path = saved(random_delta(backbone, "lora", "new", seed=4), tmp_path / "new")
    with pytest.raises(UsageError, match="--backbone"):
        add_deltas(copy, [path], texts=TEXTS)
    other = open_backbone(str(tiny("bert", mean=True)))
    with pytest.raises(UsageError, match="is not the backbone"):
        add_deltas(copy, [path], texts=TEXTS, backbone=other)
    done = edgepeft("add", copy, path, "--backbone", backbone.folder, "--delta-weights", "fp16")
    assert done.returncode in (0, 3), done.stderr  # random labels on texts of unknown words may be too close
    add_deltas(copy, [path], texts=TEXTS, backbone=backbone, replace=True)
    assert "new" in Manifest.read(copy).tasks


def test_a_bundle_of_8_bits_is_no_backbone_to_train_or_export(eight, tmp_path):
    done = edgepeft("export", "--backbone", eight, "--delta", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 2 and "8-bit" in done.stderr and not (tmp_path / "out").exists()


def test_more_changed_decisions_than_two_in_a_hundred_fail_and_say_what_to_do(backbone, tmp_path, monkeypatch):
    """Weights of 2 bits instead of 8."""
    monkeypatch.setattr("edgepeft.graph.quantise._LARGEST", 1)
    path = saved(random_delta(backbone, "lora", "t", seed=3), tmp_path / "delta")
    with pytest.raises(VerificationFailed, match="--verify-data"):
        export_bundle(backbone, [path], tmp_path / "out", texts=TEXTS, weights="int8")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("columns", [{}, {"text": "review", "label": "stars"}], ids=["ours", "their own"])
def test_decisions_and_metric_are_compared_on_every_row_of_the_data(backbone, tmp_path, columns):
    """Labels are PyTorch's own decisions, so its accuracy is 1 and ONNX Runtime's the share that did not change."""
    delta = random_delta(backbone, "lora", "t", seed=2)  # whose labels are nowhere nearly equal
    expected = pytorch(delta, load_model(backbone, "eager"), rows(backbone, TEXTS)).argmax(1)
    assert 0 < expected.mean() < 1
    data = tmp_path / "rows.jsonl"
    lines = (
        json.dumps({columns.get("text", "sentence1"): text.first, columns.get("label", "label"): ("no", "yes")[i]})
        for text, i in zip(TEXTS, expected, strict=True)
    )
    data.write_text("\n".join(lines))
    out = tmp_path / "out"
    arguments = ("--backbone", backbone.folder, "--delta", saved(delta, tmp_path / "delta"), "--verify-data", data)
    named = [word for option, column in columns.items() for word in (f"--{option}-column", column)]
    done = edgepeft("export", *arguments, *named, "--weights", "int8", "--out", out)
    assert done.returncode == 0, done.stderr
    found = Manifest.read(out).task("t").verification.data
    assert found.rows == len(TEXTS) and found.metric == "accuracy" and found.pytorch == 1.0
    answers = Runtime(out, threads=1).predict("t", TEXTS)
    same = np.mean([answer.label == ("no", "yes")[i] for answer, i in zip(answers, expected, strict=True)])
    assert found.onnxruntime == pytest.approx(same, abs=0.03) and found.onnxruntime >= 0.98
    assert "decisions changed; accuracy" in " ".join(done.stderr.split())


def test_half_precision_halves_a_delta_and_moves_logits_by_its_rounding(backbone, deltas, eight, tmp_path):
    chosen = [
        name for name in KINDS if name not in ("intrinsic-said", "spartan", "bitfit", "layernorm")
    ]  # small vectors; a threshold
    paths = [eight.parent / f"delta-{name}" for name in chosen]
    export_bundle(backbone, paths, tmp_path / "half", texts=TEXTS, delta_weights="fp16")
    manifest = Manifest.read(tmp_path / "half")
    assert {task.weights_dtype for task in manifest.tasks.values()} == {"fp16"}
    size = {name: (eight / "tasks" / f"{name}.onnx").stat().st_size for name in chosen}
    assert manifest.task("full").n_bytes < 0.57 * size["full"] and manifest.task("lora").n_bytes < size["lora"]
    for name in chosen:
        found = Runtime(tmp_path / "half", threads=1).logits(name, rows(backbone))
        expected = pytorch(deltas[name], load_model(backbone, "eager"), rows(backbone))
        assert 0 < np.abs(found - expected).max() < 2e-2


def test_half_precision_is_numpys_rounding(backbone, deltas, eight, tmp_path):
    export_bundle(backbone, [eight.parent / "delta-lora"], tmp_path / "half", texts=TEXTS, delta_weights="fp16")
    stored = {i.name: i for i in onnx.load(tmp_path / "half" / "tasks" / "lora.onnx").graph.initializer}
    name = next(key for key, tensor in deltas["lora"].tensors().items() if tensor.dim() == 2 and tensor.numel() > 200)
    expected = deltas["lora"].tensors()[name].detach().numpy().astype(np.float16)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(stored[f"{name}:fp16"]), expected)


def test_a_delta_beyond_half_precision_is_refused_by_name(backbone, tmp_path):
    delta = random_delta(backbone, "lora", "t")
    with torch.no_grad():
        next(p for p in delta.parameters() if p.dim() == 2)[0, 0] = 7e4
    with pytest.raises(UsageError, match="65504"):
        export_bundle(backbone, [saved(delta, tmp_path / "d")], tmp_path / "out", texts=TEXTS, delta_weights="fp16")
    assert not (tmp_path / "out").exists()


def test_8_bits_weigh_little_more_than_a_quarter(tiny, tmp_path):
    backbone = open_backbone(
        str(tiny("roberta", hidden_size=64, intermediate_size=256, vocab_size=6000, max_position_embeddings=40))
    )
    write_backbone(backbone, tmp_path, "int8")
    assert (tmp_path / "model.int8.safetensors").stat().st_size < 0.31 * backbone.weights.stat().st_size


@pytest.mark.parametrize("arguments", [("--weights", "int4"), ("--delta-weights", "int8")])
def test_unknown_types_are_usage_errors(backbone, tmp_path, arguments):
    done = edgepeft("export", "--backbone", backbone.folder, "--delta", tmp_path, "--out", tmp_path / "o", *arguments)
    assert done.returncode == 2


def test_peft_gets_float32_only(backbone, eight, tmp_path):
    arguments = ("--backbone", backbone.folder, "--delta", eight.parent / "delta-lora", "--to-peft", tmp_path / "p")
    assert edgepeft("export", *arguments, "--weights", "int8").returncode == 2


def test_a_merged_task_is_one_model_of_8_bits(eight, backbone, tmp_path):
    done = edgepeft("merge", eight, "--task", "bitfit", "--out", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "one" / "model.onnx").stat().st_size < 0.6 * backbone.weights.stat().st_size


def test_sessions_share_the_packed_integers_and_answer_the_same(eight, backbone, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path))
    expected = Runtime(eight, threads=1, cache=False).logits("lora", rows(backbone))
    with Runtime(eight, threads=1) as runtime:
        np.testing.assert_allclose(runtime.logits("lora", rows(backbone)), expected, rtol=0, atol=1e-5)
    tensors = json.loads(next(tmp_path.glob("prepacked/*/entry.json")).read_text())
    packed = {name: where for name, where in tensors.items() if any("prepacked" in key for key in where)}
    if any(
        "vnni" in flag for flag in isa_flags()
    ):  # without it the integers are others, and each session packs its own
        assert sum(name.endswith(":int8:transposed") for name in packed) == 2 * 6
