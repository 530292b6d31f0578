"""The grid of learning rates: its rule on figures by hand, its rows apart, and a cell that is really run."""

from __future__ import annotations

import json

import pytest
from moods import texts
from tiny import write_model
from typer.testing import CliRunner

from bench import rates
from bench.rates import Cell, app, can_be_learnt, choose, gains_left_out
from edgepeft.backbones.source import open_backbone
from edgepeft.exporting.bundle import export_bundle
from edgepeft.methods.base import method_named


@pytest.mark.parametrize(
    ("by_rate", "chosen"),
    [
        ({1.0: {"a": 0.5, "b": 0.5}, 2.0: {"a": 0.9, "b": 0.9}}, 2.0),
        # Better by 0.1 in one set and 0.02 in the other: 0.06 in the mean, with a standard error of 0.04.
        ({1.0: {"a": 0.5, "b": 0.5}, 2.0: {"a": 0.6, "b": 0.52}}, 2.0),
        # By 0.1 and -0.02: 0.04 in the mean, with a standard error of 0.06, is no better.
        ({1.0: {"a": 0.5, "b": 0.5}, 2.0: {"a": 0.6, "b": 0.48}}, 1.0),
        ({1.0: {"a": 0.5}, 2.0: {"a": 0.6}}, 2.0),  # one set has no standard error
    ],
)
def test_the_lowest_rate_within_a_standard_error_of_the_best_is_chosen(by_rate, chosen):
    assert choose(by_rate) == chosen


def test_what_a_choice_gains_is_said_of_the_data_set_that_had_no_part_in_it():
    scores = {1.0: {"a": 0.5, "b": 0.6, "c": 0.7}, 2.0: {"a": 0.6, "b": 0.7, "c": 0.6}}
    # Of b and c the lower rate is within a standard error (0 and 0.1), of a and c too; a and b choose the higher.
    assert gains_left_out(scores, 1.0) == pytest.approx([0, 0, -0.1])
    assert gains_left_out({1.0: {"a": 0.5}, 2.0: {"a": 0.6}}, 1.0) == []


@pytest.mark.parametrize(("linear", "counts"), [(0.69, False), (0.71, False), (0.72, True)])
def test_a_data_set_counts_where_the_linear_head_has_learnt_something(linear, counts):
    assert can_be_learnt({"majority": 0.69, "linear head": linear}) == counts  # of 400 rows: 0.023


@pytest.fixture
def written(tmp_path):
    for name, n, seed in (("train", 60, 1), ("validation", 20, 2)):
        rows = ({"sentence1": text, "label": mood} for text, mood, _ in texts(n, seed))
        (tmp_path / "moods").mkdir(exist_ok=True)
        (tmp_path / "moods" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_grid_goes_on_where_it_stopped_and_its_rows_never_meet(written, monkeypatch):
    for name, n in (("N_EVAL", 10), ("N_TEST", 15)):
        monkeypatch.setattr(rates, name, n)
    files = rates._parts(written / "moods", Cell("moods", "bitfit", 1.0, 3, rows=20), written)
    lines = [path.read_text().splitlines() for path in (files.train, files.eval, files.test)]
    assert list(map(len, lines)) == [20, 10, 15]
    assert not set(lines[0]) & set(lines[1])
    assert (
        rates._parts(written / "moods", Cell("moods", "bitfit", 1.0, 4, rows=20), written).test.read_text().splitlines()
        == lines[2]
    )

    backbone = open_backbone(str(write_model(written / "bert", "bert")))
    methods = [method_named(name).from_settings({}) for name in ("bitfit", "layernorm")]
    export_bundle(backbone, [], written / "bundle", templates=methods)
    results = written / "results.jsonl"
    for seeds in (1, 2):
        monkeypatch.setattr(rates, "ProcessPoolExecutor", Here)
        given = ["run", results, "--bundle", written / "bundle", "--data", written, "--sets", "moods"]
        done = CliRunner().invoke(
            app, [*map(str, given), "--seeds", str(seeds), "--steps", "1,3", "--rows", "20", "--epochs", "1"]
        )
        assert done.exit_code == 0, done.output
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        assert len(rows) == 4 * seeds
    rate = method_named("bitfit").learning_rate
    assert {row["rate"] for row in rows if row["method"] == "bitfit"} == {rate, float(f"{3 * rate:.3g}")}
    for learnt, said in ((0.9, "| 1 | 2 |"), (0.5, "no data set on which something can be learnt |")):
        lines = (json.dumps({**row, "majority": 0.5, "linear head": learnt}) + "\n" for row in rows)
        results.write_text("".join(lines))
        shown = CliRunner().invoke(app, ["table", str(results)]).output
        assert shown.rstrip().endswith(said) and (f"| `bitfit` | {rate:g}: " in shown) == (learnt > 0.5)
    beside = CliRunner().invoke(app, ["table", str(results), "--beside", str(results)]).output
    assert "| all | 1 | 8 | " in beside and "+0.00 (0.00)" in beside


class Here:
    """Runs at once, in this process, which the settings above hold for."""

    def __init__(self, _):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @staticmethod
    def submit(function, *given):
        from concurrent.futures import Future

        future = Future()
        future.set_result(function(*given))
        return future
