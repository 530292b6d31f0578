"""Tables of speed from kept results: who is quickest, who is ahead, which run counts; and files that are none."""

from __future__ import annotations

import json

import pytest

from bench import figures
from bench.suites._result import SuiteHost, SuiteModel, SuiteResult, SuiteRow, Target
from edgepeft.bench.result.parts import ProfileRecord
from edgepeft.common.errors import UsageError


def result(rows, name="tiny", suite="batches", **more):
    return SuiteResult(
        suite=suite,
        title="Batches",
        host=SuiteHost(cpu="A CPU", gemm_gflops=100.0, versions={"onnxruntime": "9.9"}),
        profile=ProfileRecord(name="rpi4"),
        model=SuiteModel(name=name),
        threads=2,
        rounds=3,
        seed=0,
        rows=tuple(rows),
        **more,
    )


@pytest.fixture
def root(tmp_path):
    """A repository with an older run and a newer one, and the pages that read them."""
    kept = tmp_path / figures.RESULTS
    kept.mkdir(parents=True)
    what = "edgepeft, batches of 32 sorted by length"
    rows = [
        SuiteRow(f"{what}, lengths of sst2", "optimum", 0.1, (0.1, 0.1)),  # a set alone is in no table
        SuiteRow(f"{what}, geometric mean of sst2, mrpc, rte", "optimum", 1.25, (1.2, 1.3)),
        SuiteRow(f"{what}, geometric mean of sst2, mrpc, rte", "openvino", 0.96, (0.9, 1.1)),
        SuiteRow("edgepeft int8, a text of 8 tokens", "dynamic int8", 1.5, (1.4, 1.6), note="off by 0.1"),
        SuiteRow("a text", "ctranslate2", note="is not installed"),
        SuiteRow("a text", "ctranslate2 int8", note="is not installed"),
        SuiteRow("achieved FLOP/s", "gemm", 0.9, (0.8, 1.0)),
    ]
    older = [SuiteRow("edgepeft, a text of 8 tokens", "optimum", 3.0, (2.0, 4.0))]
    runs = {
        "2026-01-01": [result(older), result(older, "other")],
        "2026-01-01-evening": [result(rows, peers={"optimum": "o 1"})],
    }
    for run, results in runs.items():
        lines = [json.dumps(one.to_json()) + "\n" for one in results]
        (kept / f"{run}.jsonl").write_text("".join(lines))
    for page, name in (("README.md", "speed"), ("docs/figures.md", "figures")):
        (tmp_path / page).write_text(f"top\n<!-- {name}:begin -->\n<!-- {name}:end -->\nbottom\n")
    return tmp_path


def test_readme_has_the_quickest_peer_of_each_form_in_the_newest_run_of_a_suite_on_a_model(root):
    page = figures.generated_files(root)[root / "README.md"]
    assert page.splitlines()[2:-2] == [
        "|  | tiny | tiny, 8 bits | other |",
        "| --- | --- | --- | --- |",
        "| batches of 32 sorted by length | **0.96x** openvino | - | - |",
        "| a text of 8 tokens | - | 1.50x dynamic int8 | 3.00x optimum |",
    ]


def test_readme_keeps_what_a_later_run_of_another_suite_has_not(root):
    rows = [SuiteRow("edgepeft, a text of 8 tokens", "optimum", 2.0, (1.9, 2.1))]
    (root / figures.RESULTS / "2026-01-03.jsonl").write_text(json.dumps(result(rows, suite="single").to_json()) + "\n")
    page = figures.generated_files(root)[root / "README.md"]
    assert "| batches of 32 sorted by length | **0.96x** openvino |" in page
    assert "| a text of 8 tokens | 2.00x optimum | 1.50x dynamic int8 | 3.00x optimum |" in page


def test_batches_of_some_sets_are_a_form_of_their_own(root):
    rows = [SuiteRow("edgepeft, batches of 32 sorted by length, geometric mean of sst2", "optimum", 1.1, (1.0, 1.2))]
    (root / figures.RESULTS / "2026-01-03.jsonl").write_text(json.dumps(result(rows, "other").to_json()) + "\n")
    lines = figures.generated_files(root)[root / "README.md"].splitlines()
    assert "| batches of 32 sorted by length, lengths of sst2 | - | - | 1.10x optimum |" in lines


def test_what_was_not_measured_is_not_printed(root):
    once = result([SuiteRow("edgepeft, a text of 9 tokens", "optimum", 1.1, (1.1, 1.1))], "other")
    once = once.model_copy(update={"host": once.host.model_copy(update={"gemm_gflops": None})})
    (root / figures.RESULTS / "2026-01-03.jsonl").write_text(json.dumps(once.to_json()) + "\n")
    page = figures.generated_files(root)[root / "docs" / "figures.md"]
    assert "| a text of 9 tokens | 1.10x |" in page and "A CPU on 2 threads" in page and "GEMM 0" not in page


def test_the_page_has_every_peer_with_its_interval_conditions_and_what_is_missing(root):
    page = figures.generated_files(root)[root / "docs" / "figures.md"]
    assert "| batches of 32 sorted by length | 1.25x [1.20, 1.30] | **0.96x** [0.90, 1.10] |" in page
    assert "A CPU, GEMM 100 GFLOP/s on 2 threads; 3 rounds at most" in page and "onnxruntime 9.9, o 1" in page
    assert "- ctranslate2, ctranslate2 int8: is not installed" in page and "0.10x" not in page
    assert page.index("### Run 2026-01-01-evening") < page.index("### Run 2026-01-01\n")


def test_where_two_runs_differ_in_who_is_ahead_beyond_both_intervals_is_named(root):
    page = root / "docs" / "figures.md"
    assert "Where runs differ" not in figures.generated_files(root)[page]  # no figure is in both
    what = "edgepeft, batches of 32 sorted by length, geometric mean of sst2, mrpc, rte"
    rows = [
        SuiteRow(what, "optimum", 0.9, (0.8, 0.95)),  # 1.25 [1.2, 1.3] before
        SuiteRow(what, "openvino", 1.1, (1.0, 1.2)),  # 0.96 [0.9, 1.1] before: within the interval
        SuiteRow("edgepeft int8, a text of 8 tokens", "dynamic int8", 1.4, (1.3, 1.5)),  # ours both times
    ]
    (root / figures.RESULTS / "2026-01-03.jsonl").write_text(json.dumps(result(rows).to_json()) + "\n")
    wide = [SuiteRow(what, "optimum", 1.3, (0.5, 1.9))]  # higher, and less clear
    (root / figures.RESULTS / "2026-01-02.jsonl").write_text(json.dumps(result(wide).to_json()) + "\n")
    said = figures.generated_files(root)[page].partition("### Where runs differ\n\n")[2].splitlines()
    assert said[0].startswith("Of 3 figures") and "differs in 2; in 1 of them beyond both intervals: " in said[0]
    name = "tiny, batches of 32 sorted by length, over optimum"
    assert said[2] == f"- {name}, 3 runs: 1.25x [1.20, 1.30] (2026-01-01-evening), **0.90x** [0.80, 0.95] (2026-01-03)"


def test_a_suite_has_a_column_for_the_newest_run_on_each_processor(root):
    """And bold where what is promised is missed; neither what was not measured nor one set of lengths."""
    least, most = Target(1.0), Target(2.0, at_least=False)

    def run(ratio, seconds, date, cpu="A CPU"):
        rows = [
            SuiteRow("a ratio", "optimum", ratio, (ratio, ratio), target=least),
            SuiteRow("a ratio, lengths of sst2", "optimum", 5.0, (5.0, 5.0)),
            SuiteRow("seconds", None, seconds, None, "s", most),
            SuiteRow("a peer that is absent", "openvino", note="is not installed"),
        ]
        one = result(rows, suite="sharing", date=date)
        return json.dumps(one.model_copy(update={"host": one.host.model_copy(update={"cpu": cpu})}).to_json()) + "\n"

    (root / figures.SUITES).mkdir(parents=True)
    (root / figures.SUITES / "b.jsonl").write_text(run(0.9, 1.0, "2026-01-02") + run(7.0, 7.0, "2026-01-01"))
    (root / figures.SUITES / "a.jsonl").write_text(run(1.5, 3.0, "2026-01-03", "B CPU"))
    page = root / "docs" / "figures.md"
    with pytest.raises(UsageError, match="suite-sharing"):
        figures.generated_files(root)
    page.write_text(page.read_text() + "<!-- suite-sharing:begin -->\n<!-- suite-sharing:end -->\n")
    assert [line for line in figures.generated_files(root)[page].splitlines() if line.startswith("| ")][-4:] == [
        "|  | beside | promised | B CPU, 2026-01-03 | A CPU, 2026-01-02 |",
        "| --- | --- | --- | --- | --- |",
        "| a ratio | optimum | at least 1 | 1.500 [1.500, 1.500] | **0.900 [0.900, 0.900]** |",
        "| seconds | - | at most 2 | **3.000 s** | 1.000 s |",
    ]


def test_a_run_is_kept_as_a_line_a_result_and_what_is_none_is_refused(root, monkeypatch, capsys):
    monkeypatch.setattr(figures, "_REPOSITORY", root)
    good, bad = root / "good.json", root / "bad.json"
    good.write_text(json.dumps(result([]).to_json(), indent=2))
    bad.write_text("{}")
    calls = root / "calls.json"
    calls.write_text(json.dumps(result([], suite="calls").to_json()))
    assert figures.main(["today", str(good), str(calls), str(good)]) == 0
    kept = [(root / each / "today.jsonl").read_text().splitlines() for each in (figures.RESULTS, figures.SUITES)]
    assert [[json.loads(line)["suite"] for line in lines] for lines in kept] == [["batches"] * 2, ["calls"]]
    assert figures.main(["other", str(good), str(bad)]) == 1 and "bad.json is no result" in capsys.readouterr().err
    assert not (root / figures.RESULTS / "other.jsonl").exists()
    assert figures.main([str(good)]) == 2


def test_a_kept_file_that_was_damaged_is_named(root):
    (root / figures.RESULTS / "2026-01-01-evening.jsonl").write_text("half a li")
    with pytest.raises(UsageError, match="2026-01-01-evening"):
        figures.generated_files(root)
