"""Candidates over HTTP: what is picked, and what is wrong with a row is said to its client."""

from __future__ import annotations

import pytest

CANDIDATES = ["w6 w7", "w8", "w9 w10"]


def test_a_task_says_that_it_picks_and_answers_alone_as_among_others(picking):
    (task,) = picking.get("/v1/tasks")[2]["tasks"]
    assert (task["kind"], task["candidates"], task["available"]) == ("choice", True, True)
    status, _, told = picking.predict("pick", {"text": "w5", "candidates": CANDIDATES})
    (alone,) = told["predictions"]
    assert (status, list(alone["scores"]), alone["label"]) == (200, CANDIDATES, CANDIDATES[alone["index"]])
    assert alone["score"] == max(alone["scores"].values())
    assert sum(alone["scores"].values()) == pytest.approx(1, abs=1e-5)
    rows = [{"text": "w9", "candidates": CANDIDATES[:2]}, {"text": "w5", "candidates": CANDIDATES}]
    _, _, told = picking.post("/v1/predict", {"rows": [{"task": "pick", **row} for row in rows]})
    first, second = (answer["prediction"] for answer in told["answers"])
    assert len(first["scores"]) == 2 and second["scores"] == pytest.approx(alone["scores"], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"text": "w5"}, 422, "row 0: no candidates to pick from"),
        ({"text": "w5", "candidates": ["w6"]}, 422, "row 0: the row has one candidate"),
        (
            {"rows": [{"text": "w5", "candidates": CANDIDATES}, {"text": "w5", "candidates": ["a", "a"]}]},
            422,
            "row 1: ",
        ),
        ({"text": "w5", "candidates": ["w6", 7]}, 422, "candidates.1 must be text"),
        ({"fields": {"sentence1": "w5"}, "candidates": CANDIDATES}, 422, "give text"),
        ({"text": "w5", "candidates": [f"w{i}" for i in range(65)]}, 413, "may hold 64 rows; this one holds 65"),
    ],
)
def test_what_is_wrong_with_candidates_is_said(picking, body, status, said):
    found, _, told = picking.predict("pick", body)
    assert found == status and said in told["error"]["message"]


def test_a_row_that_cannot_be_read_fails_alone_and_is_named_where_it_stands(picking):
    good, bad = {"text": "w5", "candidates": CANDIDATES}, {"text": "w5"}
    rows = [{"task": "pick", **row} for row in (good, bad, good)]
    status, _, told = picking.post("/v1/predict", {"rows": rows})
    first, second, third = told["answers"]
    assert status == 200 and first == third and first["prediction"]["label"] in CANDIDATES
    assert second["error"]["code"] == "unreadable_row" and second["error"]["message"].startswith("row 1: no candidates")
    status, _, told = picking.predict("pick", {"rows": [good, bad, good]})
    assert status == 422 and told["error"]["message"].startswith("row 1: no candidates")
