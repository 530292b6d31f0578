"""A training loop around an engine of three lines: what is evaluated and kept, how it ends early, what a resumed one equals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.data.batches import Encoded
from edgepeft.data.parts import PARTS, task_data
from edgepeft.data.rows import Row
from edgepeft.data.training_loop.checkpoint import Diverged, latest
from edgepeft.data.training_loop.engine import StepOutcome, TrainingEngine, dropout_mask
from edgepeft.data.training_loop.run import Interrupted, TrainingLoop
from edgepeft.options.base import TrainingLoopOptions
from edgepeft.tasks.regression import Regression

ROWS = [Row("w " * (i % 5), None, str(i % 7), "memory", i) for i in range(60)]
DATA = task_data(ROWS, kind="regression")


def encoded(rows):
    ids = [np.arange(1 + len(row.sentence1), dtype=np.int64) for row in rows]
    return Encoded({"input_ids": ids}, np.array([float(row.label) for row in rows], np.float32), 0, 0)


class Line(TrainingEngine):
    """y = w (length, 1), by gradient descent with momentum; some features are dropped out."""

    def __init__(self, rows, outcome=None):
        self.rows, self.outcome = rows, outcome
        self.w, self.momentum = np.zeros(2), np.zeros(2)
        self.factors, self.prepared = [], 0

    def prepare(self, advance):
        self.prepared += 1
        for done in (1, 2):
            advance(done, 2)

    def features(self, part, chosen):
        return np.stack([[len(self.rows[part].columns["input_ids"][i]) / 10, 1.0] for i in chosen])

    def step(self, chosen, factor, masks):
        self.factors.append(factor)
        if isinstance(self.outcome, list):
            return StepOutcome(self.outcome[len(self.factors) - 1], 1.0)
        if self.outcome is not None:
            return self.outcome
        x = self.features("train", chosen) * masks(0, 0.5, (len(chosen), 2))
        error = x @ self.w - self.rows["train"].targets[chosen]
        self.momentum = 0.5 * self.momentum + error @ x / len(chosen)
        self.w = self.w - 0.1 * factor * self.momentum
        return StepOutcome(float((error**2).mean()), float(np.linalg.norm(self.momentum)))

    def logits(self, part, chosen):
        return (self.features(part, chosen) @ self.w)[:, None].astype(np.float32)

    def states(self, part, chosen):
        return self.features(part, chosen).astype(np.float32)

    def tensors(self):
        return {"w": self.w.copy()}

    def state(self):
        return {"w": self.w, "momentum": self.momentum}

    def load_state(self, state):
        self.w, self.momentum = state["w"], state["momentum"]

    def finish(self, tensors):
        self.w = tensors["w"]


@pytest.fixture
def loop(tmp_path):
    def loop(outcome=None, *, folder="run", asked=None, steps=18, **more):
        rows = {part: encoded(getattr(DATA, part)) for part in PARTS}
        asked_too = {name: more.pop(name) for name in ("seed", "patience") if name in more}
        options = TrainingLoopOptions(steps=steps, metric="pearson", save_every=4, **asked_too)
        return TrainingLoop(
            Line(rows, outcome),
            DATA,
            rows,
            options,
            batch_size=8,
            folder=tmp_path / folder,
            asked=asked or {"rate": 1},
            remedy="Lower it.",
            **more,
        )

    return loop


def after(calls):
    left = iter(range(calls - 1))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("calls", range(1, 21))
def test_a_course_stopped_anywhere_ends_as_one_that_was_not(loop, tmp_path, calls):
    """Two calls come while the engine prepares, one after each of 18 steps."""
    whole = loop(folder="whole", scores_start=True).run()
    with pytest.raises(Interrupted, match=f"stopped after step {max(0, calls - 2)} of 18"):
        loop(scores_start=True, stop=after(calls)).run()
    resumed = loop(scores_start=True)
    resumed.resume(latest(tmp_path / "run"))
    result = resumed.run()
    np.testing.assert_array_equal(result.tensors["w"], whole.tensors["w"])
    assert (result.history, result.metrics, result.training) == (whole.history, whole.metrics, whole.training)


def test_the_rate_rises_and_falls_and_the_engine_prepares_once(loop):
    run = loop(steps=20)
    run.run()
    expected = [i / 2 if i < 2 else (20 - i) / 18 for i in range(20)]  # a tenth of the steps is warm-up
    assert run.engine.factors == pytest.approx(expected)
    assert run.engine.prepared == 1


def test_evaluations_come_after_each_epoch_and_at_the_end_and_the_start_where_it_counts(loop):
    assert [entry["step"] for entry in loop(steps=14).run().history] == [6, 12, 14]  # 48 rows, 8 a step
    assert [entry["step"] for entry in loop(steps=14, folder="b", scores_start=True).run().history] == [0, 6, 12, 14]


def test_patience_ends_a_course_after_so_many_evaluations_that_brought_nothing(loop, monkeypatch):
    from edgepeft.data.training_loop.engine import Scored

    scores = iter([(0.5, 1.0), (0.7, 1.0), (0.7, 1.0), (0.6, 0.1), (0.0, 0.0)])
    monkeypatch.setattr(
        "edgepeft.data.training_loop.engine.score_rows",
        lambda *_, **__: Scored(*next(scores), np.zeros(6), np.zeros(6), Regression()),
    )
    result = loop(steps=600, patience=2).run()
    interval = 30  # 600 steps are evaluated 20 times at most
    assert (result.training["steps"], result.training["best_step"]) == (4 * interval, 2 * interval)
    assert (result.metrics["eval"], result.metrics["test"]) == (0.7, 0.0)


def test_of_equal_scores_the_lower_loss_is_kept(loop, monkeypatch):
    from edgepeft.data.training_loop.engine import Scored

    scores = iter([(0.5, 1.0), (0.5, 0.8), (0.5, 0.9), (0.0, 0.0)])
    monkeypatch.setattr(
        "edgepeft.data.training_loop.engine.score_rows",
        lambda *_, **__: Scored(*next(scores), np.zeros(6), np.zeros(6), Regression()),
    )
    assert loop().run().training["best_step"] == 12


@pytest.mark.parametrize(
    ("outcome", "named"),
    [
        (StepOutcome(math.nan, math.nan), "the loss became nan"),
        (StepOutcome(math.inf, math.nan), "the loss became inf"),
        (StepOutcome(1.0, math.inf), "the gradients are not finite"),
    ],
)
def test_a_course_that_diverges_names_the_step_and_the_remedy(loop, outcome, named):
    with pytest.raises(EdgepeftError, match=rf"{named} in step 1: the training diverged\. Lower it\."):
        loop(outcome).run()


def test_a_course_whose_losses_stay_far_above_their_start_ends_and_its_checkpoint_is_from_before(loop, tmp_path):
    """The labels 0 to 6 have a variance of 4, so three times that is far; ten of the last 20 steps are more."""
    rising = [2.0] * 30 + [50.0] * 30
    with pytest.raises(Diverged, match=r"the loss rose from 2 to 26 \(median of 20 steps\) in step 40: .* Lower it\."):
        loop(rising, steps=60).run()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["30.safetensors"]


@pytest.mark.parametrize("losses", [[2.0, 2.0, 2.0, 900.0] * 15, [2.0] * 30 + [11.0] * 30, [20.0] * 30 + [50.0] * 30])
def test_outliers_and_losses_near_the_start_or_near_those_of_one_answer_for_all_end_no_course(loop, losses):
    assert loop(losses, steps=60).run().training["steps"] == 60


def test_a_course_that_is_stopped_while_its_losses_rise_ends_where_it_would_have_ended(loop, tmp_path):
    rising = [2.0] * 30 + [50.0] * 30
    with pytest.raises(Interrupted, match="after step 35"):
        loop(rising, steps=60, stop=after(2 + 35)).run()
    resumed = loop(rising[35:], steps=60)
    resumed.resume(latest(tmp_path / "run"))
    with pytest.raises(Diverged, match="in step 40"):
        resumed.run()


def test_masks_are_a_function_of_seed_step_and_place_and_keep_the_mean():
    shape = (200, 50)
    mask = dropout_mask(3, 7, 0, 0.25, shape)
    np.testing.assert_array_equal(mask, dropout_mask(3, 7, 0, 0.25, shape))
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (mask == 0).mean() == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / 10_000))
    others = [
        dropout_mask(3, 8, 0, 0.25, shape),
        dropout_mask(4, 7, 0, 0.25, shape),
        dropout_mask(3, 7, 1, 0.25, shape),
    ]
    assert all(not np.array_equal(mask, other) for other in others)
    assert (dropout_mask(0, 0, 0, 0.0, shape) == 1).all()


def test_the_newest_checkpoint_is_that_of_the_highest_step_and_the_only_one(loop, tmp_path):
    with pytest.raises(Interrupted):
        loop(stop=after(2 + 11)).run()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["11.safetensors"]
    (tmp_path / "run" / "9.safetensors").touch()
    assert latest(tmp_path / "run").name == "11.safetensors"


def test_a_run_that_was_asked_something_else_is_not_continued(loop, tmp_path):
    with pytest.raises(Interrupted):
        loop(stop=after(5)).run()
    with pytest.raises(UsageError, match=r"rate \(then 1, now 2\).*--resume.*--force"):
        loop(asked={"rate": 2}).resume(latest(tmp_path / "run"))


def test_a_checkpoint_of_another_format_is_refused_by_its_name(loop, tmp_path):
    tuned = tmp_path / "3.safetensors"
    save_file({"delta:w": np.zeros(2)}, tuned, metadata={"format": "edgepeft.tune/1", "state": "{}"})
    with pytest.raises(BundleError, match=r"format 'edgepeft.tune/1'; this version reads edgepeft.course/1.*--force"):
        loop().resume(latest(tmp_path))
