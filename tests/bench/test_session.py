"""Scenarios, one document that grows, and runs that go on where another stopped; nothing here waits for a clock."""

from __future__ import annotations

import itertools
import json
import tomllib

import pytest

from edgepeft.bench.planning.scenario import LENGTHS, SCENARIOS, load_lengths, load_scenario, shipped
from edgepeft.bench.run import earlier_result, run_benchmark, run_scenarios
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import DataError, EdgepeftError, UnknownName, UsageError
from edgepeft.common.resources import data_folder
from edgepeft.options.verbs import BenchOptions

REQUEST = BenchOptions(
    profile="rpi4",
    backbone="all-MiniLM-L6-v2",
    engines=("onnxruntime",),
    workloads=("infer",),
    batch_size=2,
    length=8,
    rounds=4,
)


@pytest.mark.parametrize("name", shipped(SCENARIOS))
def test_every_scenario_is_valid_and_named_after_its_file(name):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.lengths is None or scenario.lengths in shipped(LENGTHS)


def test_mlperfs_scenarios_have_mlperfs_names():
    # MLPerf Inference rules, "Scenarios".
    assert {load_scenario(name).mlperf for name in shipped(SCENARIOS)} - {None} == {
        "Offline",
        "SingleStream",
        "MultiStream",
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rounds = 0", "rounds"),
        ("min_rounds = 40\nrounds = 30", "least number"),
        ("colour = 'red'", "colour"),
        ("max_seconds = inf", "max_seconds"),
        ("kind = 'odd'", "kind"),
        ("workloads = ['sleep']", "workloads"),
        ("rounds = [", "TOML"),
    ],
)
def test_a_scenario_of_ones_own_that_is_wrong_is_refused_by_what_is_wrong(tmp_path, line, words):
    lines = (data_folder("bench/scenarios") / "offline.toml").read_text().splitlines()
    given = {entry.split("=")[0].strip() for entry in line.splitlines()}
    kept = [entry for entry in lines if entry.split("=")[0].strip() not in given]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join([*kept, line]))
    with pytest.raises(DataError, match=rf"(?s)mine\.toml.*{words}"):
        load_scenario(str(path))


def test_an_unknown_scenario_is_answered_with_the_known_ones():
    with pytest.raises(UnknownName, match="offline"):
        load_scenario("ofline")


def test_sorted_batches_have_rows_of_like_length(fake_start):
    start = fake_start(0.1)
    run_benchmark(
        BenchOptions(**{**REQUEST.__dict__, "length": None, "scenario": "offline-sorted", "batch_size": 32}),
        start=start,
    )
    batches = next(job.batches for label, job in start.jobs.items() if "backbone" in label)
    values = sorted(load_lengths("sst2").values)
    assert [n for batch in batches for n in batch] == values[: len(values) // 32 * 32]


def test_a_scenario_measures_its_own_workloads_only(fake_start):
    start = fake_start(0.1)
    run_benchmark(BenchOptions(**{**REQUEST.__dict__, "workloads": (), "scenario": "single-stream"}), start=start)
    assert all(label.startswith("infer") for label in start.jobs)
    with pytest.raises(UsageError, match=r"single-stream.*infer.*finetune"):
        run_benchmark(
            BenchOptions(**{**REQUEST.__dict__, "workloads": ("finetune",), "scenario": "single-stream"}), start=start
        )


def test_measuring_stops_when_the_medians_are_known(fake_start):
    outcome = run_benchmark(BenchOptions(**{**REQUEST.__dict__, "rounds": None}), start=fake_start(0.1))
    (row,) = outcome.result.to_json()["results"]
    # Samples that are all alike: the least number of rounds.
    assert len(row["samples_s"]) == load_scenario("offline").min_rounds
    assert not any("cut short" in warning for warning in row["warnings"])


def test_who_names_a_number_of_rounds_gets_it(fake_start):
    (row,) = run_benchmark(BenchOptions(**{**REQUEST.__dict__, "rounds": 25}), start=fake_start(0.1)).result.to_json()[
        "results"
    ]
    assert len(row["samples_s"]) == 25


def test_two_scenarios_are_kept_one_by_one_in_one_document(fake_start):
    kept = []
    session = run_scenarios(
        REQUEST,
        ["offline", "single-stream"],
        keep=lambda one: kept.append(json.dumps(one.to_json())),
        start=fake_start(0.1),
    )
    assert [[row["scenario"] for row in json.loads(text)["results"]] for text in kept] == [
        ["offline"],
        ["offline", "single-stream"],
    ]
    assert json.loads(kept[-1]) == json.loads(json.dumps(session.result.to_json()))
    assert len(session.result.to_json()["host"]["gemm_samples_gflops"]["infer"]) == 8


@pytest.mark.parametrize("most_s", [0.0, -1.0, float("nan"), float("inf")])
def test_no_time_at_all_is_refused_and_not_made_a_little(fake_start, most_s):
    with pytest.raises(UsageError, match="--max-seconds must be above 0"):
        run_scenarios(REQUEST.model_copy(update={"max_seconds": most_s}), ["offline"], start=fake_start(0.1))


def test_a_batch_that_no_host_holds_is_refused_before_its_rows_are_made(fake_start):
    with pytest.raises(UsageError, match=r"--batch-size 1000000000: .* at most 1,048,576 tokens"):
        run_scenarios(REQUEST.model_copy(update={"batch_size": 10**9}), ["offline"], start=fake_start(0.1))


class Stops:
    """Starts workers of which one presses Ctrl-C in its n-th step."""

    def __init__(self, start, at, only="backbone"):
        self.start, self.at, self.only, self.done = start, at, only, 0

    def __call__(self, label, job):
        from contextlib import contextmanager

        @contextmanager
        def entered():
            with self.start(label, job) as worker:
                step = worker.step

                def stepped(batch):
                    if self.only in label:
                        self.done += 1
                        if self.done == self.at:
                            raise KeyboardInterrupt
                    return step(batch)

                worker.step = stepped
                yield worker

        return entered()


def test_an_interrupted_run_keeps_what_it_has_and_resumes(fake_start, tmp_path):
    path = tmp_path / "r.json"
    stops = Stops(fake_start(0.1), at=12 + 5)
    # Offline: 2 + 8 steps to warm up and 4 rounds at most; it stops within the second scenario.
    request = BenchOptions(**{**REQUEST.__dict__, "rounds": 9})
    names = ["offline", "single-stream"]
    session = run_scenarios(request, names, keep=lambda one: write_json(path, one.to_json()), start=stops)
    assert session.interrupted
    first = json.loads(path.read_text())
    assert first["completed"] == [["offline", "infer"]]
    assert len(first["results"][0]["samples_s"]) == 9

    again = fake_start(0.1)
    resumed = run_scenarios(request, names, earlier=earlier_result(path), start=again)
    assert resumed.result.completed == (("offline", "infer"), ("single-stream", "infer"))
    assert [row["scenario"] for row in resumed.result.to_json()["results"]] == names
    assert resumed.result.to_json()["results"][0] == first["results"][0]
    assert [len(row["samples_s"]) for row in resumed.result.to_json()["results"]] == [9, 9]
    assert len(again.together) == 2  # one worker and the yardstick: the first scenario was not measured again


def test_what_is_complete_is_not_measured_again(fake_start, tmp_path):
    path = tmp_path / "r.json"
    run_scenarios(REQUEST, ["offline"], keep=lambda one: write_json(path, one.to_json()), start=fake_start(0.1))
    again = fake_start(0.1)
    run_scenarios(REQUEST, ["offline"], earlier=earlier_result(path), start=again)
    assert again.log == []


def test_resuming_with_other_options_is_refused_by_what_differs(fake_start, tmp_path):
    path = tmp_path / "r.json"
    run_scenarios(REQUEST, ["offline"], keep=lambda one: write_json(path, one.to_json()), start=fake_start(0.1))
    other = BenchOptions(**{**REQUEST.__dict__, "batch_size": 3})
    with pytest.raises(UsageError, match="batch_size was 2 and is 3"):
        run_scenarios(other, ["offline"], earlier=earlier_result(path), start=fake_start(0.1))


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"schema": "edgepeft.bench/1", "results": [',
        '{"schema": "edgepeft.bench/2", "results": []}',
        '{"schema": "edgepeft.bench/1", "results": [], "metrics": [{"of": "a", "values": {}}]}',
    ],
)
def test_a_file_that_cannot_be_resumed_is_refused_by_name(tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(EdgepeftError, match=r"odd\.json"):
        earlier_result(path)


def test_there_is_nothing_to_resume_before_the_first_run(tmp_path):
    assert earlier_result(tmp_path / "none.json") is None


def several(**more):
    return BenchOptions(
        **{**REQUEST.__dict__, "methods": ("lora", "bitfit"), "length": None, "batch_size": None, **more}
    )


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("multi-stream", {"one mixed batch", "task after task"}),
        ("mixed-tasks", {"one mixed batch", "task after task"}),
        ("task-switch", {"another task each time", "the same task"}),
        ("cold-start", {"a new process"}),
    ],
)
def test_ways_of_asking_are_rows_of_their_own_with_ratios_to_each_other(fake_start, name, sides):
    outcome = run_benchmark(several(scenario=name), start=fake_start(0.1))
    rows = {row["variant"]: row for row in outcome.result.to_json()["results"]}
    assert set(rows) == sides
    for told, row in rows.items():
        assert set(row["ratio_to"]) == {f"variant:{other}" for other in sides - {told}}
        assert row["instances_per_minute"] > 0
        assert row["gemm_fraction"] is None


def test_requests_go_to_the_tasks_in_turn_or_always_to_one(fake_start):
    start = fake_start(0.1)
    run_benchmark(several(scenario="task-switch", lengths="rte"), start=start)
    asked = {
        label: [request["tasks"] for request in job.settings["requests"]]
        for label, job in start.jobs.items()
        if "requests" in label
    }
    switching = next(tasks for label, tasks in asked.items() if "another" in label)
    staying = next(tasks for label, tasks in asked.items() if "same" in label)
    assert all(one != two for one, two in itertools.pairwise(switching))
    assert {tuple(tasks) for tasks in staying} == {("lora",)}
    assert len(switching) == len(staying)


def test_tasks_cannot_be_mixed_where_there_is_one(fake_start):
    with pytest.raises(UsageError, match="two tasks or more, found 1"):
        run_benchmark(several(scenario="mixed-tasks", methods=("lora",)), start=fake_start(0.1))


def test_histograms_of_glue_hold_counts_alone():
    folder = data_folder("bench/scenarios") / "lengths"
    names = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}
    assert names <= {path.stem for path in folder.glob("*.toml")}
    for path in folder.glob("*.toml"):
        document = tomllib.loads(path.read_text())
        known = {"title", "rows", "tokenizer", "order", "lengths", "histogram"}
        assert set(document) <= known
        assert all(isinstance(n, int) for n in document.get("lengths", document.get("histogram", {}).values()))
