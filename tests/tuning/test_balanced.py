"""``edgepeft tune --balanced``: PyTorch's ``cross_entropy(weight=...)``, in one piece or in micro-batches."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from tolerance import Exact, exactly
from torch.nn import functional
from tuned import tune_task
from verbs import edgepeft

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.options.verbs import TuneSettings
from edgepeft.tuning.target import Files, from_task
from edgepeft.tuning.tune import TuningRun

from .conftest import write_moods

CHOSEN = range(11)


def weighed(delta, model, rows, weights):
    """Loss and gradients in float64, and what float32 may make of them."""
    inputs, targets = rows.batch(CHOSEN)
    given = {name: torch.from_numpy(values) for name, values in inputs.items()}

    def backward():
        delta.zero_grad()
        loss = functional.cross_entropy(delta.logits(model, given), torch.from_numpy(targets), weights)
        loss.backward()
        return {"loss": loss, **{name: p.grad for name, p in delta.tensors().items()}}

    return exactly(backward)


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_the_loss_and_its_gradients_are_pytorchs_weighted_mean(trainable, moods, tmp_path, micro_batch):
    bundle, options = Bundle(trainable), TuneSettings(balanced=True, dropout=False, micro_batch=micro_batch, seed=1)
    run = TuningRun(bundle, from_task(bundle, "mood", Files(moods), options), options, tmp_path, threads=1)
    assert run.layout.micro_batch == (micro_batch or 16)
    backbone = open_backbone(str(trainable))
    delta = Delta.load(trainable.parent / "mood", backbone).eval()
    torch.manual_seed(2)
    for parameter in delta.parameters():  # a fresh head answers all rows alike, whatever they weigh
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    run.engine.trained = {name: tensor.detach().numpy() for name, tensor in delta.tensors().items()}
    delta, model = copy.deepcopy(delta).double(), load_model(backbone, "eager").double()
    rows, mean = run.loop.rows["train"], torch.ones(2, dtype=torch.float64)
    counts = np.bincount(rows.targets)
    weights = torch.tensor(counts.sum() / (2 * counts))
    exact, plain = (weighed(delta, model, rows, each) for each in (weights, mean))
    found = run.engine.gradients(
        CHOSEN, [np.ones((len(CHOSEN), width), np.float32) for _, width in run.target.facts.dropouts]
    )
    assert abs(exact["loss"].value - plain["loss"].value) > 10 * exact["loss"].error
    exact.pop("loss").require(np.float64(found.loss))
    assert sorted(found.gradients) == sorted(exact)
    for name, expected in exact.items():
        share = 1e-5 * float(np.abs(expected.value).max())  # as tests/conformance/test_gradients.py has it
        Exact(expected.value, expected.error + share).require(found.gradients[name], name)


def test_the_weights_are_in_the_card_and_a_resumed_run_has_them_too(bundle, moods):
    options = {"steps": 6, "learning_rate": 1e-2, "save_every": 1}
    asked = TuneSettings(**options, balanced=True)
    with pytest.raises(Interrupted):
        tune_task(bundle, "mood", Files(moods), asked, threads=1, stop=lambda: True)
    with pytest.raises(UsageError, match=r"other arguments or data: balanced \(then true, now false\)"):
        tune_task(bundle, "mood", Files(moods), TuneSettings(**options), threads=1, resume=True)
    tune_task(bundle, "mood", Files(moods), asked, threads=1, resume=True)
    training = Bundle(bundle).entry("mood").training
    assert training["balanced"] and training["class_weights"] == {"bad": 1.5, "good": 0.75}  # a third are bad


def test_labels_of_the_head_that_no_row_has_weigh_nothing(bundle, tmp_path):
    data = write_moods(tmp_path / "three.jsonl", 80, label=lambda mood, n: mood if n > 2 else "some")
    asked = TuneSettings(steps=2, balanced=True)
    tune_task(bundle, "mine", Files(data), asked, template="lora", threads=1)
    two = write_moods(tmp_path / "two.jsonl")
    found = tune_task(bundle, "mine", Files(two), asked, threads=1)
    assert found.training["class_weights"].keys() == {"bad", "good"}


def test_a_regression_has_no_classes_to_balance(bundle, tmp_path):
    data = write_moods(tmp_path / "scores.jsonl", label=lambda _, telling: telling)
    before = json.loads((bundle / "edgepeft.json").read_text())
    done = edgepeft("tune", bundle, "--task", "score", "--data", data, "--balanced")
    assert done.returncode == 2 and "a regression has none; leave --balanced out" in done.stderr
    assert json.loads((bundle / "edgepeft.json").read_text()) == before
