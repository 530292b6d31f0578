"""One loop, two engines: `train` and `tune` give the losses that each gave when each had a loop of its own.

The numbers come from that code (1ffc41d, the commit before the training loop): `tune` as it was; `train` without dropout as it
was, and with dropout with the masks of `tune` put in place of torch's own.  The two differed by less than 3e-7.
"""

from __future__ import annotations

import shutil
from functools import partial

import pytest
from moods import texts
from small import ASKED, LENGTH, METHODS, start_of, write_backbone, write_rows
from tuned import tune_task

from edgepeft.backbones.tokens import Text
from edgepeft.data.parts import load_data
from edgepeft.options.verbs import TrainSettings, TuneSettings
from edgepeft.training import loop
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.tuning.target import Files

# (task, dropout): losses of the steps, losses of the evaluation rows after each epoch.
BEFORE = {
    ("mood", True): (
        [
            1.322515,
            1.4476744,
            1.1898835,
            1.0463786,
            0.9001203,
            0.7317008,
            0.5830169,
            0.8544714,
            0.8592795,
            0.628013,
            0.7881201,
            1.1884961,
        ],
        [0.7132561, 0.730033],
    ),
    ("mood", False): (
        [
            1.1379937,
            1.5004997,
            1.1918092,
            0.8770175,
            0.7718928,
            0.6785274,
            0.5232458,
            0.7389215,
            0.6072904,
            0.6087791,
            0.7426581,
            1.0400298,
        ],
        [0.7132011, 0.7294602],
    ),
    ("score", True): (
        [
            0.9495946,
            1.8244638,
            0.1718337,
            0.2309103,
            0.6226594,
            0.4029866,
            0.6480417,
            0.2836065,
            0.6198273,
            0.4749226,
            0.9971544,
            0.9371244,
        ],
        [0.4532096, 0.5108522],
    ),
    ("score", False): (
        [
            0.8415444,
            2.3016038,
            0.2544823,
            0.2898048,
            0.5037361,
            0.4114403,
            0.5198063,
            0.2367091,
            0.1075367,
            0.4472294,
            0.7980174,
            0.7588608,
        ],
        [0.4657006, 0.5871015],
    ),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with a bundle of both tasks, the backbone and the deltas to start from."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "bert").mkdir()
    backbone = write_backbone(folder / "bert")
    starts = {task: start_of(task, backbone) for task in METHODS}
    return written(folder, backbone, starts)


def written(folder, backbone, starts):
    for task, delta in starts.items():
        delta.save(folder / task)
    some = [Text(text) for text, _, _ in texts(70, 9)]
    export_bundle(backbone, [folder / task for task in starts], folder / "bundle", texts=some)
    return folder, backbone, starts


class Steps(dict):
    """The loss of each step."""

    def watch(self, progress):
        if progress.phase == "train" and progress.loss is not None:
            self[progress.done] = progress.loss


def trained(start, backbone, data, out):
    steps, card = Steps(), start.card
    options = TrainSettings(task=card.task, **ASKED, max_length=LENGTH, regression=card.labels is None, head=card.head)
    tensors = {name: tensor.detach().clone() for name, tensor in start.tensors().items()}
    rows = load_data(data, regression=card.labels is None)
    result = loop.train_delta(backbone, METHODS[card.task], rows, options, out, watch=steps.watch, start=tensors)
    return list(steps.values()), [entry["loss"] for entry in result.history]


def tuned(bundle, task, data, *, dropout=True):
    steps, options = Steps(), TuneSettings(**ASKED, dropout=dropout)
    result = tune_task(bundle, task, Files(data), options, threads=1, watch=steps.watch)
    return list(steps.values()), [entry["loss"] for entry in result.history][1:]  # the first is the start's


@pytest.mark.parametrize(("task", "dropout"), BEFORE)
def test_pytorch_and_onnx_runtime_keep_the_losses_that_they_had(small, tmp_path, monkeypatch, task, dropout):

    folder, backbone, starts = small
    data = write_rows(tmp_path / "rows.jsonl", task)
    bundle = shutil.copytree(folder / "bundle", tmp_path / "bundle")
    if not dropout:
        monkeypatch.setattr(loop, "new_delta", partial(loop.new_delta, head_dropout=0.0))
    engines = trained(starts[task], backbone, data, tmp_path / "out"), tuned(bundle, task, data, dropout=dropout)
    for losses, evaluations in engines:
        assert losses == pytest.approx(BEFORE[task, dropout][0], rel=0, abs=1e-6)
        assert evaluations == pytest.approx(BEFORE[task, dropout][1], rel=0, abs=1e-6)


def test_a_head_with_two_dropouts_draws_both_as_its_training_graph_does(tmp_path):
    (tmp_path / "bert").mkdir()
    backbone = write_backbone(tmp_path / "bert", mean=False)
    start = start_of("mood", backbone, head="roberta")
    folder, _, _ = written(tmp_path, backbone, {"mood": start})
    data = write_rows(tmp_path / "rows.jsonl", "mood")
    ours, theirs = trained(start, backbone, data, tmp_path / "out"), tuned(folder / "bundle", "mood", data)
    for losses, others in zip(ours, theirs, strict=True):
        assert losses == pytest.approx(others, rel=0, abs=5e-6)
