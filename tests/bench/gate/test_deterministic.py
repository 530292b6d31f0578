from __future__ import annotations

import json

import pytest

from edgepeft.bench.gate.compare import compare_results
from edgepeft.bench.result.result_file import ResultFile
from edgepeft.common.errors import DataError, UsageError


@pytest.fixture
def counted(tmp_path):
    """Writes a result that was not timed; ``values`` by what they are of."""
    made = []

    def make(values, **top):
        path = tmp_path / f"{len(made)}.json"
        made.append(path)
        metrics = [{"of": of, "values": found} for of, found in values.items()]
        path.write_text(json.dumps({"schema": "edgepeft.bench/1", "results": [], "metrics": metrics, **top}))
        return ResultFile.open(path)

    return make


def test_equal_counts_pass_on_any_host(counted):
    base = counted({"backbone": {"nodes": 250, "flops": 10**12}}, host={"cpu": "one"})
    new = counted({"backbone": {"nodes": 250, "flops": 10**12}}, host={"cpu": "another"})
    comparison = compare_results(base, new, 0.05)
    assert not comparison.failed
    assert len(comparison.metrics) == 2


@pytest.mark.parametrize("name", ["nodes", "flops", "bytes_moved", "weights_bytes", "a_figure_of_tomorrow"])
def test_one_more_of_what_is_counted_is_a_regression(counted, name):
    (grown,) = compare_results(counted({"a": {name: 10_000}}), counted({"a": {name: 10_001}}), 0.05).grown
    assert (grown.name, grown.before, grown.now) == (name, 10_000, 10_001)


@pytest.mark.parametrize(("now", "failed"), [(1005, False), (1006, True), (900, False)])
def test_sizes_of_files_may_move_by_half_a_per_cent(counted, now, failed):
    assert (
        compare_results(counted({"a": {"delta_bytes": 1000}}), counted({"a": {"delta_bytes": now}}), 0.05).failed
        is failed
    )


def test_fewer_are_no_regression_but_ask_for_a_new_baseline(counted):
    (verdict,) = compare_results(counted({"a": {"nodes": 10}}), counted({"a": {"nodes": 9}}), 0.05).metrics
    assert verdict.shrunk
    assert not verdict.grown


def test_from_nothing_to_something_is_growth(counted):
    assert compare_results(counted({"a": {"nodes": 0}}), counted({"a": {"nodes": 1}}), 0.05).failed


def test_a_figure_that_vanished_is_refused_by_name(counted):
    with pytest.raises(UsageError, match="flops of a"):
        compare_results(counted({"a": {"nodes": 1, "flops": 1}}), counted({"a": {"nodes": 1}}), 0.05)


def test_instructions_are_judged_where_both_have_them(counted):
    base = counted({"a": {"nodes": 1, "instructions": 1000}})
    assert not compare_results(base, counted({"a": {"nodes": 1}}), 0.05).failed
    assert compare_results(base, counted({"a": {"nodes": 1, "instructions": 1006}}), 0.05).failed


def test_the_same_thing_counted_twice_is_refused(counted, tmp_path):
    path = tmp_path / "twice.json"
    entry = {"of": "a", "values": {"nodes": 1}}
    path.write_text(json.dumps({"schema": "edgepeft.bench/1", "results": [], "metrics": [entry, entry]}))
    with pytest.raises(DataError, match="two metrics"):
        compare_results(ResultFile.open(path), ResultFile.open(path), 0.05)
