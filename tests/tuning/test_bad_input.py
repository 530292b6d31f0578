"""What a run cannot learn from, or cannot be differentiated, is refused by its name; the task stays as it was."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tuned import tune_task
from verbs import edgepeft

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.common.resources import sha256_of
from edgepeft.data.training_loop.checkpoint import Diverged
from edgepeft.graph.gradient import rule as gradient_rule
from edgepeft.graph.gradient.rule import rules
from edgepeft.options.verbs import TuneSettings
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

from .conftest import write_moods

QUICK = TuneSettings(steps=6, learning_rate=1e-3)


def run_of(bundle, data, work):
    opened = Bundle(bundle)
    return TuningRun(opened, from_task(opened, "mood", Files(data), QUICK), QUICK, work, threads=1)


def altered(bundle, change, **facts):
    """The task mood with another graph, and other facts in the manifest."""
    path = bundle / "tasks" / "mood.onnx"
    model = onnx.load(path)
    change(model)
    onnx.save(model, path)
    manifest = Bundle(bundle).manifest
    own = manifest.task("mood").model_copy(update={"sha256": sha256_of(path), **facts})
    manifest.model_copy(update={"tasks": {**manifest.tasks, "mood": own}}).write(bundle)


def test_the_row_whose_loss_is_not_finite_is_named_and_no_step_is_taken(bundle, tmp_path):
    """3e19 is a number, and its square is none of float32's."""
    scores = {name: tmp_path / f"{name}.jsonl" for name in ("train", "eval", "test")}
    for seed, path in enumerate(scores.values()):
        write_moods(path, 48, seed, label=lambda mood, telling: telling if mood == "good" else -telling)
    rows = [json.loads(line) for line in scores["train"].read_text().splitlines()]
    rows[16]["label"] = 3e19
    scores["train"].write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = Bundle(bundle).entry("score").sha256
    with pytest.raises(Diverged, match=rf"the loss became inf .* only {re.escape(str(scores['train']))}:17 gives that"):
        tune_task(bundle, "score", Files(*scores.values()), QUICK, threads=1)
    assert Bundle(bundle).entry("score").sha256 == before


def test_the_row_whose_gradient_is_not_finite_is_named_and_nothing_moves(bundle, moods, tmp_path):
    """A hidden state of it is no number, as memory that fails may have it."""
    run = run_of(bundle, moods, tmp_path / "work")
    run.engine.prepare()
    states, start = run.engine._hidden["train"], run.engine.tensors()
    packed, lengths = states.packed, run.loop.rows["train"].lengths

    def damaged(chosen):
        found = packed(chosen)
        for values in found.values():
            values[np.repeat(chosen, [lengths[i] for i in chosen]) == 5] = np.nan
        return found

    states.packed = damaged
    where = re.escape(run.loop.data.train[5].where)
    with pytest.raises(Diverged, match=rf"in step 1: by itself, only {where} gives that"):
        run.loop.update([3, 5, 9, 11])
    for name, tensor in run.engine.tensors().items():
        np.testing.assert_array_equal(tensor, start[name])


def test_where_no_row_differs_from_the_others_the_training_diverged(bundle, moods, tmp_path):
    run = run_of(bundle, moods, tmp_path / "work")
    for tensor in run.engine.trained.values():
        tensor[:] = np.nan
    with pytest.raises(Diverged, match=r"the loss became nan in step 1: the training diverged\."):
        run.loop.update([3, 5, 9])


def test_an_operator_without_a_rule_is_named_with_task_and_method(bundle, moods, monkeypatch):
    monkeypatch.setattr(gradient_rule, "rules", lambda: {op: rule for op, rule in rules().items() if op != "Softmax"})
    done = edgepeft("tune", bundle, "--task", "mood", "--data", moods)
    assert done.returncode == 1
    assert "task mood, of pfeiffer, cannot be tuned: there is no gradient of Softmax" in " ".join(done.stderr.split())
    assert not (bundle / ".tune").exists()


def read_for_its_shape_alone(model):
    """The extents, times zero, are added to the logits: no number of the tensor matters."""
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((2, 1), np.float32), "folded"))
    model.graph.initializer.append(helper.make_tensor("none", onnx.TensorProto.INT64, [2], [0, 0]))
    given = next(node for node in model.graph.node if "logits" in node.output)
    given.output[:] = ["plain" if name == "logits" else name for name in given.output]
    for op, inputs, output, more in (
        ("Shape", ["folded"], "extents", {}),
        ("Mul", ["extents", "none"], "zeros", {}),
        ("Cast", ["zeros"], "floats", {"to": onnx.TensorProto.FLOAT}),
        ("Add", ["plain", "floats"], "logits", {}),
    ):
        model.graph.node.append(helper.make_node(op, inputs, [output], name=output, **more))


def read_by_nothing(model):
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(3, np.float32), "folded"))


@pytest.mark.parametrize("change", [read_for_its_shape_alone, read_by_nothing])
def test_a_tensor_that_does_not_move_the_loss_is_named(bundle, moods, change):
    altered(bundle, change)
    said = r"task mood, of pfeiffer, cannot be tuned: the loss does not depend on folded, which is to be trained"
    with pytest.raises(BundleError, match=said):
        tune_task(bundle, "mood", Files(moods), QUICK, threads=1)


def test_a_head_without_a_loss_is_refused(bundle, moods):
    """Two logits for three labels: rows of the third would cost nothing."""

    def third(model):
        entry = next(entry for entry in model.metadata_props if entry.key == "edgepeft.card")
        entry.value = json.dumps(json.loads(entry.value) | {"labels": ["bad", "good", "some"]})

    altered(bundle, third, labels=("bad", "good", "some"))
    with pytest.raises(
        BundleError, match=r"logits \[batch, 2\], and a classification \(3 labels\) has its loss of \[batch, 3\]"
    ):
        tune_task(bundle, "mood", Files(moods), QUICK, threads=1)
