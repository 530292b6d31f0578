"""Intrinsic-SAID on the board: every tensor of the backbone is made of one vector, and its gradient goes back to it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from deltas import TEXTS
from training_loops import steps_beside_pytorchs
from tuned import tune_task
from verbs import edgepeft

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.common.errors import BundleError
from edgepeft.common.resources import sha256_of
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.deploy.verify import audit
from edgepeft.graph.external_data import RECIPE
from edgepeft.methods.base import method_named
from edgepeft.options.verbs import TuneSettings
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning import memory
from edgepeft.tuning.memory import Demand
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

SAID = method_named("intrinsic-said").from_settings({"dimension": "120", "seed": "3"})
OPTIONS = {"learning_rate": 3e-2, "head_learning_rate": 5e-2}


@pytest.fixture(scope="module")
def source(trainable, tmp_path_factory):
    """A bundle with a fresh task and a template of it, the delta beside it; not to be written to."""
    folder = tmp_path_factory.mktemp("said")
    backbone = open_backbone(str(trainable.parent / "bert"))
    torch.manual_seed(0)
    new_delta(backbone, SAID, "mood", ("bad", "good"), max_length=40).save(folder / "mood")
    export_bundle(backbone, [folder / "mood"], folder / "bundle", texts=TEXTS, templates=[SAID])
    return folder / "bundle"


@pytest.fixture
def bundle(source, tmp_path):
    return shutil.copytree(source, tmp_path / "bundle")


def sound(bundle):
    return not any(finding.problem for finding in audit(bundle))


def run_of(bundle, data, work, **more):
    opened, options = Bundle(bundle), TuneSettings(**{"steps": 20, **OPTIONS, **more})
    return TuningRun(opened, from_task(opened, "mood", Files(data), options), options, work, threads=1)


@pytest.mark.parametrize("micro_batch", [None, 5])
def test_the_losses_of_twelve_steps_are_pytorchs_on_the_same_batches(source, moods, tmp_path, micro_batch):
    run = run_of(source, moods, tmp_path, dropout=False, seed=3, micro_batch=micro_batch)
    backbone = open_backbone(str(source))
    delta = Delta.load(source.parent / "mood", backbone)
    named = delta.tensors()
    start = {name: tensor.detach().clone() for name, tensor in named.items()}
    beside = steps_beside_pytorchs(run.loop, delta, backbone, 12, rates=(3e-2, 5e-2), warm=2, decay=0.0)
    for number, loss in enumerate(beside):
        assert run.loop.loss == pytest.approx(loss, abs=1e-5), f"step {number + 1}"
    # A key's bias changes no softmax: its scale's gradient is noise, which AdamW makes a step of.
    noise = [i for i, name in enumerate(delta.generator.names) if name.endswith("key.bias")]
    for name, tensor in named.items():
        found, expected = run.engine.trained[name], tensor.detach().numpy()
        assert not torch.equal(tensor, start[name])
        if name == "generator/scales":
            found, expected = np.delete(found, noise), np.delete(expected, noise)
        np.testing.assert_allclose(found, expected, atol=1e-4, err_msg=name)


def test_a_task_is_tuned_scored_and_put_in_force_as_another_is(bundle, moods):
    result = tune_task(bundle, "mood", Files(moods), TuneSettings(steps=40, **OPTIONS), threads=1)
    assert result.improved and result.score >= 0.8
    assert {"generator/theta", "generator/scales"} < result.tensors.keys()
    assert result.training["prefix_cache"] is False and sound(bundle)
    entry = Bundle(bundle).entry("mood")
    assert entry.verification.max_abs_difference < 1e-4 and entry.trainable_parameters > 120
    done = edgepeft("eval", bundle, "--task", "mood", "--data", moods, "--json")
    assert json.loads(done.stdout)["score"] >= 0.8
    assert edgepeft("rollback", bundle, "--task", "mood").returncode == 0 and sound(bundle)


def test_a_template_starts_a_task_and_a_stopped_run_goes_on(bundle, moods, tmp_path):
    other, options = shutil.copytree(bundle, tmp_path / "other"), TuneSettings(steps=8, save_every=1, **OPTIONS)
    with pytest.raises(Interrupted):
        tune_task(bundle, "mine", Files(moods), options, template="intrinsic-said", threads=1, stop=lambda: True)
    found = [
        tune_task(where, "mine", Files(moods), options, template="intrinsic-said", threads=1, resume=where == bundle)
        for where in (bundle, other)
    ]
    assert found[0].history == found[1].history and found[0].improved
    assert Bundle(bundle).entry("mine").sha256 == Bundle(other).entry("mine").sha256


def test_over_8_bit_weights_the_tensors_are_float32_as_everywhere(source, trainable, moods, tmp_path):
    backbone = open_backbone(str(trainable.parent / "bert"))
    export_bundle(backbone, [source.parent / "mood"], tmp_path / "eight", texts=TEXTS, weights="int8")
    result = tune_task(tmp_path / "eight", "mood", Files(moods), TuneSettings(steps=40, **OPTIONS), threads=1)
    assert result.improved and result.score >= 0.8 and sound(tmp_path / "eight")


def test_memory_counts_the_tensors_their_gradients_and_what_makes_them(source, moods, tmp_path, monkeypatch):
    run = run_of(source, moods, tmp_path)
    deployed = run.engine._deployed
    sizes = [int(np.prod([d.dim_value for d in i.type.tensor_type.shape.dim])) for i in deployed.graph.input[3:]]
    sizes = [size for size, i in zip(sizes, deployed.graph.input[3:], strict=True) if i.name.startswith("generated:")]
    assert len(sizes) == len(run.target.facts.generated) > 20
    monkeypatch.setattr(memory.psutil.Process, "memory_info", lambda _: type("Info", (), {"rss": 0})())
    demand = Demand(Bundle(source), run.target, 40, run.options)
    assert {f"gradient:{name}" for name in run.target.facts.generated} < {o.name for o in demand.training.graph.output}
    transform = 4 << (max(sizes) - 1).bit_length()
    assert demand.n_bytes(1, 0) > 2 * 4 * sum(sizes) + transform


def test_what_has_no_room_is_refused_with_the_number_before_anything_is_made(bundle, moods, monkeypatch):
    monkeypatch.setattr("edgepeft.common.frozen_random.Fastfood.project", lambda *_: pytest.fail("made"))
    done = edgepeft("tune", bundle, "--task", "mood", "--data", moods, "--memory", "1MB")
    assert done.returncode == 5 and "even one row" in done.stderr and " MB; 1 MB are allowed" in done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"tensors": []}, "does not say how to make generated:"), ({"seed": -1}, "not a recipe that this version knows")],
)
def test_a_recipe_that_cannot_be_followed_is_refused(bundle, moods, changes, said):
    path = bundle / "tasks" / "mood.onnx"
    model = onnx.load(path)
    entry = next(entry for entry in model.metadata_props if entry.key == RECIPE)
    entry.value = json.dumps(json.loads(entry.value) | changes)
    onnx.save(model, path)
    manifest = Bundle(bundle).manifest
    own = manifest.task("mood").model_copy(update={"sha256": sha256_of(path)})
    manifest.model_copy(update={"tasks": {"mood": own}}).write(bundle)
    with pytest.raises(BundleError, match=said):
        tune_task(bundle, "mood", Files(moods), TuneSettings(steps=2), threads=1)
