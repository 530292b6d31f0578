"""The workloads do the work they say: the right tensors move, and all see the same batches."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from configs import SMALL_BERT

from edgepeft.backbones.source import open_backbone
from edgepeft.bench.planning import target as subject_module
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.target import fresh_delta, manifest_of, open_subject, random_subject, write_task
from edgepeft.bench.workloads import models
from edgepeft.bench.workloads.models import (
    finetune_onnxruntime,
    finetune_pytorch,
    infer_onnxruntime,
    infer_pytorch,
    peer,
)
from edgepeft.bench.workloads.probes import GEMM_FLOPS, gemm_pytorch
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UnknownName, UsageError


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject_module, "config_of", lambda name: SMALL_BERT)
        random_subject("tiny", folder, methods=("pfeiffer",), settings={"bottleneck": "4"})
    backbone, entries = open_backbone(str(folder)), Bundle(folder).manifest.tasks
    several = fresh_delta(backbone, "pfeiffer", {"bottleneck": "4"}, 0, task="several", kind="labels")
    manifest_of(backbone, "tiny", {**entries, "several": write_task(backbone, several)}).write(folder)
    return folder


def job(bundle, workload, **fields):
    settings = {"threads": 1, "batches": ((7, 3, 5), (2, 2)), "bundle": str(bundle), "vocab_size": 60}
    return Job(workload, **{**settings, **fields})


TASK = {"task": "pfeiffer", "method": "pfeiffer", "settings": {"bottleneck": 4}}
SEVERAL = {**TASK, "task": "several", "kind": "labels"}


def test_both_engines_run_the_bare_backbone_and_the_task(bundle):
    for fields in ({}, TASK):
        for prepare in (infer_onnxruntime, infer_pytorch):
            prepared = prepare(job(bundle, "infer", **fields))
            prepared.step(0)
            prepared.step(1)


def test_pytorch_says_that_its_delta_is_a_fresh_one(bundle):
    assert infer_pytorch(job(bundle, "x")).notes == ()
    assert "fresh delta" in infer_pytorch(job(bundle, "x", **TASK)).notes[0]


@pytest.fixture
def loaded(monkeypatch):
    """The models that a workload loads."""
    made = []
    load = models.load

    def keep(asked):
        found = load(asked)
        made.append(found[1])
        return found

    monkeypatch.setattr(models, "load", keep)
    return made


def moved(model, before):
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def copied(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_full_fine_tuning_moves_every_matrix_of_the_model(bundle, loaded):
    prepared = finetune_pytorch(job(bundle, "x", method="full"))
    before = copied(loaded[0])
    prepared.step(0)
    layers = {n for n in before if n.startswith("encoder.") and n.endswith("weight") and before[n].ndim == 2}
    assert layers <= moved(loaded[0], before)


def test_tuning_a_delta_moves_no_tensor_of_the_model(bundle, loaded):
    prepared = finetune_pytorch(job(bundle, "x", **TASK))
    before = copied(loaded[0])
    prepared.step(0)
    assert moved(loaded[0], before) == set()


def test_tuning_a_delta_moves_the_delta(bundle, monkeypatch):
    deltas = []
    fresh = models.job_delta
    monkeypatch.setattr(models, "job_delta", lambda *a: deltas.append(fresh(*a)) or deltas[0])
    prepared = finetune_pytorch(job(bundle, "x", **TASK))
    before = copied(deltas[0])
    prepared.step(0)
    assert moved(deltas[0], before) == set(before)


@pytest.mark.parametrize("task", [TASK, SEVERAL])
def test_both_engines_take_the_same_step(bundle, task, monkeypatch):
    """The same tensors, batch and labels: what AdamW makes of them is the same."""
    from edgepeft.tuning import step as step_module

    seen = {}
    call = step_module.TrainingStep.__call__

    def kept(self, trained, rows):
        seen["trained"] = trained
        seen["before"] = {name: tensor.copy() for name, tensor in trained.items()}
        seen["found"] = call(self, trained, replace(rows, masks=[np.ones_like(mask) for mask in rows.masks]))
        return seen["found"]

    monkeypatch.setattr(step_module.TrainingStep, "__call__", kept)
    finetune_onnxruntime(job(bundle, "x", **task)).step(0)

    deltas, gradients = [], {}
    fresh = models.job_delta

    def started(*arguments):
        """The fresh delta with the bundle's values, and its gradients on their way to AdamW."""
        delta = fresh(*arguments)
        for module in delta.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        for name, tensor in delta.tensors().items():
            tensor.data.copy_(torch.from_numpy(seen["before"][name]))
            tensor.register_hook(lambda gradient, name=name: gradients.__setitem__(name, gradient.numpy().copy()))
        deltas.append(delta)
        return delta

    monkeypatch.setattr(models, "job_delta", started)
    finetune_pytorch(job(bundle, "x", **task)).step(0)
    assert gradients.keys() == seen["found"].gradients.keys()
    largest = max(float(np.abs(gradient).max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        np.testing.assert_allclose(seen["found"].gradients[name], gradient, atol=1e-5 * largest)
    for name, tensor in deltas[0].tensors().items():
        assert not np.array_equal(seen["trained"][name], seen["before"][name]) or not gradients[name].any()
        if np.abs(gradients[name]).min() > 1e-6:  # AdamW's first step is the rate times the gradient's sign
            np.testing.assert_allclose(seen["trained"][name], tensor.detach().numpy(), atol=1e-7)


def test_the_frozen_model_has_no_dropout_and_full_fine_tuning_has(bundle, loaded):
    finetune_pytorch(job(bundle, "x", **TASK))
    finetune_pytorch(job(bundle, "x", method="full"))
    frozen, full = loaded
    assert not any(module.training for module in frozen.modules())
    assert all(module.training for module in full.modules())


def test_both_gemm_probes_multiply_the_same_shapes(monkeypatch):
    asked = []
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: asked.append((*a.shape, b.shape[1])) or product(a, b))
    gemm_pytorch(Job("gemm_pytorch", 1)).step(0)
    assert asked == [(1024, 768, 3072)] * 8
    assert GEMM_FLOPS == 2 * 1024 * 768 * 3072 * 8


def test_the_step_of_a_projection_of_the_whole_backbone_moves_its_vector(tmp_path, monkeypatch):
    monkeypatch.setattr(subject_module, "config_of", lambda name: SMALL_BERT)
    random_subject("tiny", tmp_path, methods=("intrinsic-said",), settings={"dimension": "90"})
    moved = []
    monkeypatch.setattr("edgepeft.tuning.step.AdamW.update", lambda _, __, found: moved.append(found))
    finetune_onnxruntime(job(tmp_path, "finetune_onnxruntime", task="intrinsic-said")).step(0)
    assert {"generator/theta", "generator/scales"} < moved[0].keys() and np.abs(moved[0]["generator/theta"]).max() > 0


def test_regression_has_a_loss_of_its_own(bundle):
    finetune_pytorch(job(bundle, "x", n_labels=1, **TASK)).step(0)


def test_a_peer_is_fed_by_name_and_an_unknown_input_refused(tmp_path):
    from onnx import TensorProto, helper, save_model

    def write(names):
        values = [helper.make_tensor_value_info(n, TensorProto.INT64, ["b", "s"]) for n in names]
        out = helper.make_tensor_value_info("out", TensorProto.INT64, ["b", "s"])
        graph = helper.make_graph([helper.make_node("Add", [*names[:2]], ["out"])], "g", values, [out])
        path = tmp_path / f"{'-'.join(names)}.onnx"
        save_model(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), path)
        return str(path)

    good = Job("peer", 1, ((3, 2),), model=write(["attention_mask", "input_ids"]), vocab_size=9)
    peer(good).step(0)
    with pytest.raises(UsageError, match="pixel_values"):
        peer(Job("peer", 1, ((3,),), model=write(["input_ids", "pixel_values"]), vocab_size=9))


def test_all_workers_see_the_same_ids(bundle):
    one = job(bundle, "infer_onnxruntime")
    two = Job.from_json(json.dumps(json.loads(one.to_json())))
    for index in (0, 1):
        np.testing.assert_array_equal(one.batch(index)["input_ids"], two.batch(index)["input_ids"])


def test_a_bundles_tasks_can_be_chosen_by_name_and_method(bundle):
    assert [task.name for task in open_subject(bundle).tasks] == ["pfeiffer", "several"]
    assert open_subject(bundle, methods=("pfeiffer",)).tasks[0].settings["bottleneck"] == 4
    with pytest.raises(UnknownName, match="pfeiffer"):
        open_subject(bundle, tasks=("pfeifer",))
    with pytest.raises(UnknownName, match="Known: pfeiffer"):
        open_subject(bundle, methods=("lora",))


def test_a_folder_that_is_no_bundle_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="not a bundle"):
        open_subject(tmp_path)


def test_every_task_of_an_exported_bundle_runs_on_both_engines(exported):
    found = open_subject(exported)
    assert len(found.tasks) == 3
    for task in found.tasks:
        fields = {"task": task.name, "method": task.method, "settings": dict(task.settings), "n_labels": task.n_labels}
        asked = job(
            exported,
            "infer",
            vocab_size=found.architecture.vocab_size,
            pad_id=found.architecture.pad_token_id,
            **fields,
        )
        for prepare in (infer_onnxruntime, infer_pytorch, finetune_pytorch):
            prepare(asked).step(0)
