"""What CI systems are given, read back by parsers that are not ours."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from edgepeft.bench.compare import ResultFile, compare_results
from edgepeft.cli.compare import benchmark_figures, junit_xml, step_summary


@pytest.fixture
def result(tmp_path):
    def make(name, seconds, task="plain", nodes=10):
        row = {"scenario": "offline", "workload": "infer", "engine": "onnxruntime", "task": task, "threads": 2}
        row |= {"samples_s": [seconds, 1.01 * seconds] * 5, "instances_per_minute": 60 / seconds}
        metrics = [{"of": "backbone", "values": {"nodes": nodes}}]
        path = tmp_path / name
        path.write_text(
            json.dumps(
                {"schema": "edgepeft.bench/1", "host": {"cpu": "C"}, "metrics": metrics, "results": [row]},
            )
        )
        return ResultFile.open(path)

    return make


def test_junit_has_a_failure_for_each_regression(result):
    comparison = compare_results(result("a", 1.0), result("b", 2.0, nodes=11), 0.05)
    suite = ElementTree.fromstring(junit_xml(comparison))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert all(case.find("failure") is not None for case in suite.iter("testcase"))


def test_junit_of_a_pass_has_none(result):
    suite = ElementTree.fromstring(junit_xml(compare_results(result("a", 1.0), result("b", 1.0), 0.05)))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "0")


def test_a_task_whose_name_is_markup_stays_text(result):
    name = '<b>|x\x00`"&'
    comparison = compare_results(result("a", 1.0, name), result("b", 2.0, name), 0.05)
    (case,) = [
        c
        for c in ElementTree.fromstring(junit_xml(comparison)).iter("testcase")
        if c.get("classname") != "deterministic"
    ]
    assert '<b>|x\\x00`"&' in case.get("name")
    (line,) = [line for line in step_summary(comparison, 0.05).splitlines() if line.startswith("| slower")]
    assert "\\<b\\>\\|x" in line


def test_the_summary_says_the_verdict_first(result):
    bad = step_summary(compare_results(result("a", 1.0), result("b", 2.0), 0.05), 0.05)
    good = step_summary(compare_results(result("a", 1.0), result("b", 1.0), 0.05), 0.05)
    assert bad.splitlines()[0].endswith("**1 regression**")
    assert "0.500" in bad
    assert "No regression" in good.splitlines()[0]


def test_the_benchmark_actions_json_has_its_three_fields(result):
    # README of benchmark-action/github-action-benchmark: an array of objects with name, unit and value.
    (entry,) = benchmark_figures(result("a", 0.5).document)
    assert entry["value"] == 120.0
    assert (entry["unit"], "infer" in entry["name"]) == ("instances/min", True)
