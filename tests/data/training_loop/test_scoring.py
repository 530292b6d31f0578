"""Scores and losses of rows, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.data.batches import Encoded
from edgepeft.data.training_loop.engine import score_rows
from edgepeft.options.base import TrainingLoopOptions
from edgepeft.tasks.classification import Classification
from edgepeft.tasks.regression import Regression


def rows(targets, kind):
    return Encoded(
        {"input_ids": [np.zeros(1 + i % 3, np.int64) for i in range(len(targets))]}, np.array(targets, kind), 0, 0
    )


def test_the_loss_of_logits_is_cross_entropy_and_the_largest_is_the_answer():
    logits = (
        np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.25, 0.25]], np.float32)) + 100
    )  # a shift is free
    scored = score_rows(
        lambda chosen: logits[chosen], rows([0, 1, 2], np.int64), Classification(("a", "b", "c")), "accuracy"
    )
    assert scored.score == pytest.approx(2 / 3)
    assert scored.loss == pytest.approx(-(math.log(0.7) + math.log(0.8) + math.log(0.25)) / 3, abs=1e-5)


def test_the_loss_of_numbers_is_the_squared_error_and_rows_keep_their_places():
    """200 rows are read in batches, longest first; each answer must go to its own row."""
    targets = np.arange(200) / 10
    read, seen = (lambda chosen: (targets[chosen] + 0.5)[:, None].astype(np.float32)), []
    scored = score_rows(read, rows(targets, np.float32), Regression(), "pearson", seen.append)
    assert scored.score == pytest.approx(1.0)
    assert scored.loss == pytest.approx(0.25, abs=1e-4)
    assert sum(seen) == 200 and max(seen) <= 64


def test_options_know_their_limits_and_defaults():
    assert TrainingLoopOptions().total_steps(40) == 120 and TrainingLoopOptions(epochs=2).total_steps(7) == 14
    assert TrainingLoopOptions().total_steps(7) == 100  # three passes over so few rows would be 21
    assert TrainingLoopOptions(steps=5).total_steps(7) == 5


def test_a_kind_knows_its_metrics_and_the_default_one():
    two = Classification(("a", "b"))
    assert two.metric_or_default(None) == "accuracy"
    assert Regression().metric_or_default(None) == "pearson_spearman"
    assert Classification(("1", "2.5")).metric_or_default("pearson") == "pearson"  # labels that are numbers
    with pytest.raises(UsageError, match="no metric of a classification"):
        two.metric_or_default("pearson")
    with pytest.raises(UnknownName, match="'c'"):
        two.metric_or_default("f1:c")
