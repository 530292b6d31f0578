"""A gradient that is not the loss's is found before the first step, and one that is is never refused."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
from tuned import tune_task

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.graph.gradient import rule as gradient_rule
from edgepeft.graph.gradient.rule import rules
from edgepeft.options.verbs import TuneSettings
from edgepeft.tuning.engine import wrong_slope
from edgepeft.tuning.step import TrainingStep
from edgepeft.tuning.target import Files

from .conftest import write_moods

NOISE = 2e-4  # a logit's 1e-4 in a cross entropy


def softmaxes(seed):
    """The cross entropy of 16 rows along one direction, whose logits move by themselves, and its slope at 0."""
    source = np.random.default_rng(seed)
    logits, speed, bend = (source.normal(size=(16, 3)) * scale for scale in (2, 3 ** source.uniform(-3, 3), 1))
    labels = source.integers(3, size=16)

    def loss(t):
        z = logits + speed * t + bend * np.sin(speed * t)
        return float((np.log(np.exp(z).sum(1)) - z[np.arange(16), labels]).mean())

    return loss, (loss(1e-6) - loss(-1e-6)) / 2e-6


def test_a_right_gradient_is_never_refused_whatever_float_makes_of_the_loss():
    for seed in range(200):
        loss, slope = softmaxes(seed)
        along, rounding = loss if slope > 0 else lambda t, f=loss: f(-t), np.random.default_rng(seed)
        assert wrong_slope(along, loss(0), abs(slope), 0.0) is None
        noisy = along(0) + NOISE
        found = wrong_slope(lambda t, f=along, r=rounding: f(t) + NOISE * r.choice([-1, 1]), noisy, abs(slope), 0.0)
        assert found is None, seed


def test_one_that_misses_29_percent_is_found_wherever_the_loss_is_straight():
    found = 0
    for seed in range(200):
        loss, slope = softmaxes(seed)
        along = loss if slope > 0 else lambda t, f=loss: f(-t)
        slope = abs(slope)
        wrong = wrong_slope(along, loss(0), 0.71 * slope, 0.0)
        found += wrong is not None
        assert wrong is None or wrong == pytest.approx(slope, rel=0.1)
    assert found > 50  # the others bend within the distance


@pytest.mark.parametrize(
    ("loss", "norm"),
    [
        (lambda t: 1 + 2 * t + 3 * abs(t), 5.0),  # a kink where it stands: by convention the slope of one side
        (lambda t: 1 + 2 * t + (t > 1e-3), 2.0),  # a jump on one side
        (lambda t: 1 + 2 * t + 1e5 * t**3, 2.0),  # bent within the distance
        (lambda t: t**2, 1e-9),  # at its minimum
        (lambda t: math.nan if t > 0 else 1 + t, 1.0),
        (lambda t: math.inf, math.inf),
        (lambda t: 1.0, 0.0),
        (lambda t: 1e8 + 3e4 * t, 3e4),  # errors of a regression on large numbers
    ],
)
def test_what_is_not_straight_is_not_judged(loss, norm):
    assert wrong_slope(loss, loss(0), norm, 0.0) is None


def test_a_loss_so_steep_that_float32_cannot_follow_is_not_judged():
    assert wrong_slope(lambda t: 1.0, 1.0, 1e9, 1e-6) is None
    assert wrong_slope(lambda t: 1.0, 1.0, 1e2, 1e-6) == 0.0


@pytest.fixture
def moved(exported, tmp_path):
    """A bundle whose task mood has learnt: a fresh one must go so far for its loss to change that it bends."""
    data = write_moods(tmp_path / "moods.jsonl", label=lambda mood, _: {"good": "yes", "bad": "no"}[mood])
    return shutil.copytree(exported, tmp_path / "bundle"), data


@pytest.mark.parametrize("op", ["LayerNormalization", "Add"])
def test_a_run_whose_graph_forgets_29_percent_ends_before_its_first_step(moved, monkeypatch, op):
    right, (bundle, data) = rules(), moved

    def wrong(at):
        yield from ((i, at.op("Mul", gradient, at.number(0.71))) for i, gradient in right[op](at))

    monkeypatch.setattr(gradient_rule, "rules", lambda: {**right, op: wrong})
    before = Bundle(bundle).entry("mood").sha256
    with pytest.raises(BundleError, match=r"the gradient of task mood, of lora, is wrong: .* Nothing was changed"):
        tune_task(bundle, "mood", Files(data), TuneSettings(steps=12), threads=1)
    assert Bundle(bundle).entry("mood").sha256 == before


def test_it_costs_two_forward_passes_of_the_first_step_alone(moved, monkeypatch):
    (bundle, data), asked, run = moved, [], TrainingStep.run

    def recorded(self, outputs, *more):
        asked.append(outputs)
        return run(self, outputs, *more)

    monkeypatch.setattr(TrainingStep, "run", recorded)
    tune_task(bundle, "mood", Files(data), TuneSettings(steps=5, batch_size=8), threads=1)
    assert [number for number, outputs in enumerate(asked) if outputs == ["loss"]] == [1, 2]
