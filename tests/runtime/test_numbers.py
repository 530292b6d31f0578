"""NaN and infinite numbers are their task's error, row by row, and no other task's."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from bad_tasks import spoil
from cards import restated
from onnx import numpy_helper

from edgepeft.common.errors import BundleError
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks._answers import Prediction, VectorPrediction

ROWS = ["w5", "w6 w7", "w8"]


def cold(bundle, task="mood", temperature=1e-320):
    """A temperature that makes every probability NaN."""
    chosen = json.loads((bundle / "edgepeft.json").read_bytes())["tasks"][task].get("chosen", {})
    restated(bundle, task, chosen={**chosen, "temperature": temperature})


def damaged(bundle, task="mood"):
    """One value of the task's own that is NaN."""

    def alter(graph: onnx.ModelProto) -> None:
        tensor = next(each for each in graph.graph.initializer if each.name.startswith("head"))
        values = numpy_helper.to_array(tensor).copy()
        values.flat[0] = np.nan
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    spoil(bundle, alter, task)


@pytest.mark.parametrize("make", [cold, damaged])
def test_a_task_that_gives_no_number_is_an_error_alone_and_with_others(bundle, make):
    make(bundle)
    with Runtime(bundle, cache=False, threads=1) as runtime:
        with pytest.raises(BundleError, match="task mood gives NaN or an infinite number"):
            runtime.predict("mood", ROWS)
        with pytest.raises(BundleError, match="task mood gives NaN"):
            runtime.predict_all(["pair", "mood"], ROWS)
        with pytest.raises(BundleError, match="task mood gives NaN"):
            runtime.predict_mixed(["pair", "mood"], ROWS[:2])
        found = runtime.predict_mixed(["mood", "pair", "score", None], [*ROWS, "w9"], strict=False)
        assert [type(each) for each in found] == [BundleError, Prediction, Prediction, np.ndarray]
        assert found[1:3] == [*runtime.predict("pair", ROWS[1:2]), *runtime.predict("score", ROWS[2:])]


def test_a_text_that_overflows_fails_alone(bundle, monkeypatch):
    logits = Runtime.logits

    def overflowing(self, task, inputs):
        found = logits(self, task, inputs)
        found[1] = np.inf
        return found

    with Runtime(bundle, cache=False, threads=1) as runtime:
        expected = runtime.predict_mixed(["mood"] * 3, ROWS)
        monkeypatch.setattr(Runtime, "logits", overflowing)
        found = runtime.predict_mixed(["mood"] * 3, ROWS, strict=False)
    assert isinstance(found[1], BundleError)
    assert found[::2] == expected[::2]


def test_a_backbone_that_gives_no_number_is_an_error_of_its_row(bundle, monkeypatch):
    with Runtime(bundle, cache=False, threads=1) as runtime:
        monkeypatch.setattr(runtime, "_output", lambda *_: np.full((1, 32), np.nan, np.float32))
        found = runtime.predict_mixed([None, "mood"], ROWS[:2], strict=False)
        assert [type(each) for each in found] == [BundleError, Prediction]
        with pytest.raises(BundleError, match="the bare backbone gives NaN"):
            runtime.predict_mixed([None], ROWS[:1])


def test_a_vector_is_of_numbers_or_it_is_none():
    assert VectorPrediction("near", None, 0.0, {}, (1.0, 3.4e38, 3.4e38), dims=3).is_finite
    assert not VectorPrediction("near", None, 0.0, {}, (1.0, float("inf"), float("-inf")), dims=3).is_finite
