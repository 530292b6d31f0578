"""What a run is advised to try next."""

from __future__ import annotations

import numpy as np
import pytest

from edgepeft.cli._scores import say_notes
from edgepeft.data.training_loop.baselines import LINEAR
from edgepeft.data.training_loop.run import TrainingLoopResult


@pytest.mark.parametrize("head", [True, False])
def test_a_linear_head_is_advised_where_there_is_a_head_alone(capsys: pytest.CaptureFixture[str], head: bool):
    better = {LINEAR: {"test": 0.9, "only_delta": 1, "only_this": 20, "p": 2e-5, "beaten": False}}
    metrics = {"metric": "accuracy", "test": 0.5, "n_test": 50, "baselines": better}
    name = "head/classifier.weight" if head else "encoder.layer.0.query/A"
    tensors = {name: np.zeros((2, 2), np.float32)}
    say_notes(TrainingLoopResult(tensors, metrics, {"learning_rate": 1e-3}, [], 0, {}), "another --method")
    said = capsys.readouterr().err
    assert "not better than the linear head" in said and "try --lr 0.003" in said
    assert ("--method linear" in said) == head
