"""What ``edgepeft.evaluate`` makes of rows and answers; of a whole bundle see ``tests/cli/test_verbs.py``."""

from types import SimpleNamespace

import numpy as np
import pytest

from edgepeft.common.errors import DataError
from edgepeft.data.by_class import Groups
from edgepeft.data.rows import Row
from edgepeft.runtime.decoding import GREEDY
from edgepeft.runtime.evaluate import _Asked, _of_logits
from edgepeft.tasks.classification import Classification


@pytest.mark.parametrize(
    ("known", "written"),
    [
        (("0", "1"), ("0.0", "1.0")),  # as pandas writes a column with gaps
        (("0.0", "1.0"), ("0", "1")),
        (("False", "True"), ("false", "true")),  # csv of pandas and JSON
        (("false", "true"), ("FALSE", "TRUE")),  # JSON and csv of Excel
    ],
)
def test_a_whole_number_or_truth_is_the_label_however_it_is_written(known, written):
    kind = Classification(known)
    answers = kind.predictions("t", np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 3.0]], np.float32), ["", "", ""])
    bundle = SimpleNamespace(entry=lambda task: SimpleNamespace(task_kind=kind))
    runtime = SimpleNamespace(bundle=bundle, predict=lambda task, texts: answers[: len(texts)])
    asked = _Asked(runtime, "t", None, GREEDY, lambda *_: None, Groups(), "accuracy")
    rows = [Row(f"text {i}", None, label, "rows.csv", i + 2) for i, label in enumerate((*written, written[0]))]
    found = _of_logits(asked, iter([rows]))
    assert found["score"] == pytest.approx(2 / 3)
    assert found["confusion"] == {known[0]: {known[0]: 1, known[1]: 1}, known[1]: {known[1]: 1}}
    with pytest.raises(DataError, match=r"rows\.csv:9: task t has no label '2\.0'"):
        _of_logits(asked, iter([[Row("text", None, "2.0", "rows.csv", 9)]]))
