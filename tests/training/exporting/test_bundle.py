"""Bundles as they are written: what is in them, and that they are there whole or not at all."""

import hashlib
import json
import re

import numpy as np
import onnx
import pytest
import torch
import transformers
from deltas import TEXTS, random_delta, saved
from verbs import edgepeft

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import BundleError, DataError, UsageError, VerificationFailed
from edgepeft.data.columns import Columns
from edgepeft.deploy.verify import read_check
from edgepeft.training.exporting import bundle as exporting
from edgepeft.training.exporting.bundle import add_deltas, export_bundle
from edgepeft.training.exporting.check import CheckTexts, shipped_texts


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def snapshot(folder):
    return {str(path.relative_to(folder)): digest(path) for path in folder.rglob("*") if path.is_file()}


def test_the_weights_are_the_checkpoint_byte_for_byte(exported, tiny):
    assert digest(exported / "model.safetensors") == digest(tiny("bert", mean=True) / "model.safetensors")


def test_the_layout_is_the_normative_one(exported):
    files = {path.name for path in exported.iterdir()}
    assert {
        "edgepeft.json",
        "backbone.onnx",
        "model.safetensors",
        "tokenizer.json",
        "config.json",
        "README.md",
        "tasks",
    } <= files
    assert {path.name for path in (exported / "tasks").iterdir()} == {
        f"{task}.{end}" for task in ("mood", "pair", "score") for end in ("onnx", "check.safetensors")
    }


def test_the_manifest_says_what_the_design_asks_for(exported):
    document = json.loads((exported / "edgepeft.json").read_text())
    assert document["format"] == "edgepeft.bundle/1"
    assert document["backbone"]["sha256"] == {
        "graph": digest(exported / "backbone.onnx"),
        "weights": digest(exported / "model.safetensors"),
    }
    pair = document["tasks"]["pair"]
    assert pair["labels"] == ["a", "b", "c"] and pair["method"] == "houlsby" and pair["max_length"] == 40
    assert pair["sha256"] == digest(exported / "tasks" / "pair.onnx")
    assert document["tasks"]["score"]["regression"] and document["tasks"]["score"]["labels"] is None
    assert 0 < pair["verification"]["max_abs_difference"] < 1e-4 and pair["verification"]["rows"] == 64
    # 4 adapters of 2 m d + m + d, 5 norms of 2 d, a head of 3 (d + 1): methods.md's formulas at m 4, d 32.
    assert pair["trainable_parameters"] == 4 * (2 * 4 * 32 + 4 + 32) + 5 * 64 + 3 * 33
    values = {
        name
        for node in onnx.load(exported / "backbone.onnx", load_external_data=False).graph.node
        for name in node.output
    }
    assert set(document["backbone"]["sites"].values()) <= values
    assert document["backbone"]["sites"]["layer.1.query.input"] == document["backbone"]["sites"]["layer.0.layer_output"]


def test_transformers_opens_the_bundle_as_the_backbone(exported, tiny):
    ours = transformers.AutoModel.from_pretrained(exported).state_dict()
    theirs = transformers.AutoModel.from_pretrained(tiny("bert", mean=True)).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_check_files_hold_64_rows_of_many_lengths(exported):
    inputs, logits = read_check((exported / "tasks" / "pair.check.safetensors").read_bytes(), "here")
    assert logits.shape == (64, 3)
    assert len(set(inputs["attention_mask"].sum(1).tolist())) > 10
    assert np.ptp(logits, axis=0).min() > 0.1  # rows are told apart, so a mixed-up order would be seen


def test_graphs_tell_nothing_of_the_machine_and_hold_no_backbone_weight(exported, tiny):
    backbone = transformers.AutoModel.from_pretrained(tiny("bert", mean=True)).state_dict()
    large = [tensor.numpy().tobytes() for tensor in backbone.values() if tensor.numel() > 500]
    for path in (exported / "tasks").glob("*.onnx"):
        content = path.read_bytes()
        assert not re.search(rb"/(home|root|tmp|usr|work)/|\.py\b", content)
        assert not any(weight in content for weight in large)
        model = onnx.load_model_from_string(content)
        onnx.checker.check_model(model, full_check=True)
        assert (model.ir_version, model.opset_import[0].version) == (10, 20)
        assert {entry.key for entry in model.metadata_props} >= {
            "edgepeft.format",
            "edgepeft.task",
            "edgepeft.method",
            "edgepeft.backbone_sha256",
        }


def test_an_existing_folder_is_refused_and_left_alone(bundle, tiny):
    before = snapshot(bundle)
    with pytest.raises(UsageError, match="--force"):
        export_bundle(open_backbone(str(tiny("bert", mean=True))), [], bundle, texts=TEXTS)
    assert snapshot(bundle) == before


def test_a_damaged_delta_leaves_no_bundle_and_an_old_one_as_it_was(exported, bundle, tiny, tmp_path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta = saved(random_delta(backbone, "lora", "mood"), tmp_path / "delta")
    (delta / "delta.safetensors").write_bytes((delta / "delta.safetensors").read_bytes()[:-9])
    before = snapshot(bundle)
    with pytest.raises(BundleError, match=r"delta\.safetensors"):
        export_bundle(backbone, [delta], bundle, texts=TEXTS, force=True)
    assert snapshot(bundle) == before
    with pytest.raises(BundleError):
        export_bundle(backbone, [delta], tmp_path / "new", texts=TEXTS)
    assert not (tmp_path / "new").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"bundle", "delta"}


def test_a_graph_that_does_not_give_pytorchs_logits_is_not_written(tiny, tmp_path, monkeypatch):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta = saved(random_delta(backbone, "lora", "mood"), tmp_path / "delta")
    right = exporting.export_delta

    def wrong(*given, **more):
        model = right(*given, **more)
        scale = next(node for node in model.graph.node if node.op_type == "Mul")
        scale.input[1] = scale.input[0]  # LoRA's scaling forgotten
        return model

    monkeypatch.setattr(exporting, "export_delta", wrong)
    with pytest.raises(VerificationFailed, match="mood"):
        export_bundle(backbone, [delta], tmp_path / "out", texts=TEXTS)
    assert not (tmp_path / "out").exists()


def test_a_delta_of_another_backbone_is_refused_by_both_names(bundle, tiny, tmp_path):
    other = open_backbone(str(tiny("bert", mean=True, seed=1)))
    delta = saved(random_delta(other, "lora", "late"), tmp_path / "delta")
    ours = Manifest.read(bundle).backbone
    with pytest.raises(BundleError) as failure:
        add_deltas(bundle, [delta], texts=TEXTS)
    for name in (other.source, other.sha256[:12], ours.source, ours.sha256.weights[:12]):
        assert name in str(failure.value)


def test_adding_changes_no_byte_of_the_backbone_and_all_tasks_come_or_none(bundle, tiny, tmp_path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    good = saved(random_delta(backbone, "pfeiffer", "late", settings={"bottleneck": 4}), tmp_path / "good")
    taken = saved(random_delta(backbone, "lora", "mood", seed=3), tmp_path / "taken")
    before = snapshot(bundle)
    with pytest.raises(UsageError, match="'mood' already"):
        add_deltas(bundle, [good, taken], texts=TEXTS)
    assert snapshot(bundle) == before
    manifest = add_deltas(bundle, [good, taken], texts=TEXTS, replace=True)
    after = snapshot(bundle)
    assert list(manifest.tasks) == ["mood", "pair", "score", "late"]
    unchanged = {"backbone.onnx", "model.safetensors", "config.json", "tokenizer.json", "tasks/pair.onnx"}
    assert all(after[name] == before[name] for name in unchanged)
    assert after["tasks/mood.onnx"] != before["tasks/mood.onnx"]


def test_two_deltas_of_one_name_are_refused(tiny, tmp_path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    delta = saved(random_delta(backbone, "lora", "mood"), tmp_path / "delta")
    with pytest.raises(UsageError, match="'mood'"):
        export_bundle(backbone, [delta, delta], tmp_path / "out", texts=TEXTS)
    assert not (tmp_path / "out").exists()


def test_the_same_delta_gives_the_same_bytes(exported, tiny, tmp_path):
    backbone = open_backbone(str(tiny("bert", mean=True)))
    export_bundle(backbone, [exported.parent / "delta-mood"], tmp_path / "again", texts=TEXTS)
    for name in ("backbone.onnx", "tasks/mood.onnx", "tasks/mood.check.safetensors"):
        assert digest(tmp_path / "again" / name) == digest(exported / name)


def test_the_shipped_texts_are_64_of_very_different_lengths():
    lengths = sorted(len(text.first.split()) for text in shipped_texts())
    assert len(lengths) == 64 and lengths[0] <= 1 and lengths[-1] > 150


def test_verification_rows_are_spread_over_all_lengths_of_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"sentence1": "w " * n}) + "\n" for n in range(1, 1001)))
    lengths = [len(text.first.split()) for text in CheckTexts(data=path).of(None)]
    assert len(lengths) == 64 and min(lengths) == 1 and max(lengths) == 1000 and 400 < np.median(lengths) < 600


def test_verification_rows_are_read_from_the_columns_that_are_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("review,title,stars\nw1 w2,w3,no\nw4,w5 w6,yes\n")
    texts = CheckTexts(data=path, columns=Columns("review", "title", "stars")).of(None)
    assert sorted(texts) == [("w1 w2", "w3"), ("w4", "w5 w6")]
    with pytest.raises(DataError, match=r"no column grade.*--label-column NAME"):
        CheckTexts(data=path, columns=Columns("review", "title", "grade")).of(None)


@pytest.mark.parametrize("verb", ["export", "add"])
def test_a_column_of_the_verification_rows_that_is_not_there_is_refused(bundle, tmp_path, verb):
    delta, data = bundle.parent / "delta", tmp_path / "rows.csv"
    data.write_text("review,stars\nw1,no\n")
    start = ("--backbone", bundle, "--out", tmp_path / "out", "--delta", delta) if verb == "export" else (bundle, delta)
    saved(random_delta(open_backbone(str(bundle)), "lora", "late"), delta)
    done = edgepeft(verb, *start, "--verify-data", data, "--text-column", "body")
    assert done.returncode == 1 and "no column body" in done.stderr and "review, stars" in done.stderr
    done = edgepeft(verb, *start, "--text-column", "review")
    assert done.returncode == 2 and "are about --verify-data" in done.stderr
    assert not (tmp_path / "out").exists() and "late" not in Manifest.read(bundle).tasks
    if verb == "add":
        done = edgepeft(verb, *start, "--verify-data", data, "--text-column", "review")
        assert done.returncode == 0 and "late" in Manifest.read(bundle).tasks, done.stderr


@pytest.mark.parametrize("out", ["mood", "bert", ""])
def test_a_bundle_takes_the_place_of_nothing_that_it_is_made_of_even_by_force(tmp_path, out):
    for name in ("mood", "bert"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("kept")
    with pytest.raises(UsageError, match="would be replaced, and with it"):
        export_bundle(tmp_path / "bert", [tmp_path / "mood"], tmp_path / out, force=True)
    assert len([*tmp_path.rglob("file")]) == 2
