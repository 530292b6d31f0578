from __future__ import annotations

import json

import numpy as np
import pytest

from edgepeft.bench.compare import ResultFile, compare_results
from edgepeft.common.errors import DataError, UsageError

HOST = {"cpu": "Test CPU", "isa": ["avx2"], "cores": {"usable": 2}, "versions": {"onnxruntime": "1.31"}}
PROFILE = {"name": "rpi4", "limits": {"requested": {"cores": 4}, "in_force": {"cores": 2}}}


def noisy(seconds, n=40, spread=0.03, seed=0):
    return [float(s) for s in np.random.default_rng(seed).normal(seconds, spread * seconds, n)]


def row(samples, **fields):
    return {
        "scenario": "offline",
        "workload": "infer",
        "engine": "onnxruntime",
        "method": None,
        "task": None,
        "batch_size": 32,
        "sequence_length": 128,
        "threads": 2,
        "samples_s": samples,
        **fields,
    }


@pytest.fixture
def result(tmp_path):
    """Writes a result file and reads it back."""
    made = []

    def make(*rows, gemm=None, **top):
        path = tmp_path / f"{len(made)}.json"
        made.append(path)
        host = {**HOST, **({"gemm_samples_gflops": {"infer": gemm}} if gemm else {})}
        document = {"schema": "edgepeft.bench/1", "host": host, "profile": PROFILE, "results": list(rows)}
        path.write_text(json.dumps({**document, **top}))
        return ResultFile.open(path)

    return make


def test_the_same_samples_are_no_regression(result):
    base = result(row(noisy(1.0)))
    assert compare_results(base, base, 0.0).regressions == ()


def test_noise_alone_is_no_regression(result):
    for seed in range(1, 20):
        base, new = result(row(noisy(1.0, seed=seed))), result(row(noisy(1.0, seed=seed + 100)))
        assert compare_results(base, new, 0.05).regressions == ()


@pytest.mark.parametrize("slowdown", [1.10, 1.25, 2.0])
def test_a_planted_slowdown_is_found(result, slowdown):
    comparison = compare_results(result(row(noisy(1.0, seed=1))), result(row(noisy(slowdown, seed=2))), 0.05)
    (verdict,) = comparison.regressions
    assert verdict.ratio.value == pytest.approx(1 / slowdown, rel=0.02)


def test_a_slowdown_within_the_threshold_passes(result):
    comparison = compare_results(result(row(noisy(1.0, seed=1))), result(row(noisy(1.10, seed=2))), 0.15)
    assert comparison.regressions == ()


def test_a_slowdown_that_noise_could_explain_passes(result):
    base = [0.6, 0.9, 1.0, 1.3, 1.6]
    new = [1.1 * seconds for seconds in base]
    assert compare_results(result(row(base)), result(row(new)), 0.05).regressions == ()


@pytest.mark.parametrize(("n_old", "n_new", "judged"), [(1, 1, False), (2, 2, False), (3, 3, True), (2, 8, True)])
def test_samples_that_chance_could_order_are_not_judged_and_it_is_said(result, n_old, n_new, judged):
    comparison = compare_results(result(row([1.0] * n_old)), result(row([1.5] * n_new)), 0.05)
    assert bool(comparison.regressions) is judged  # 1 in 2, 6, 20 and 45 orders has all the new ones last
    assert any("too few samples" in note for note in comparison.notes) is not judged


def test_becoming_faster_is_no_regression(result):
    comparison = compare_results(result(row(noisy(1.0))), result(row(noisy(0.5))), 0.05)
    assert comparison.regressions == ()
    assert comparison.verdicts[0].ratio.value == pytest.approx(2.0, rel=0.02)


def test_a_host_that_was_slower_for_everything_is_no_regression_but_is_said(result):
    base = result(row(noisy(1.0, seed=1)), gemm=noisy(100.0, seed=2))
    new = result(row(noisy(1.2, seed=3)), gemm=noisy(100.0 / 1.2, seed=4))
    comparison = compare_results(base, new, 0.05)
    assert comparison.regressions == ()
    assert any("GEMM rate was -16" in note or "GEMM rate was -17" in note for note in comparison.notes)


def test_slower_code_on_an_equally_fast_host_is_a_regression(result):
    base = result(row(noisy(1.0, seed=1)), gemm=noisy(100.0, seed=2))
    new = result(row(noisy(1.2, seed=3)), gemm=noisy(100.0, seed=4))
    assert len(compare_results(base, new, 0.05).regressions) == 1


def test_a_faster_host_does_not_hide_nor_make_a_regression(result):
    base = result(row(noisy(1.0, seed=1)), gemm=noisy(100.0, seed=2))
    new = result(row(noisy(1.0, seed=3)), gemm=noisy(150.0, seed=4))
    assert compare_results(base, new, 0.05).regressions == ()


def test_mixed_batches_are_compared_batch_by_batch(result):
    lengths = {"source": "sst2"}
    seconds = [1.0, 5.0, 9.0, 2.0] * 8
    # Fewer rounds in the new run: its median batch is another one, its batches took the same time.
    base = result(row(seconds, lengths=lengths))
    new = result(row(seconds[:6], lengths=lengths))
    comparison = compare_results(base, new, 0.05)
    assert comparison.verdicts[0].ratio.value == pytest.approx(1.0)
    slower = result(row([1.2 * s for s in seconds], lengths=lengths))
    assert len(compare_results(base, slower, 0.05).regressions) == 1


def test_rows_are_matched_by_what_they_measured_not_by_their_order(result):
    one, two = row(noisy(1.0), task="a"), row(noisy(3.0), task="b")
    comparison = compare_results(result(one, two), result(two, one), 0.05)
    assert [round(v.ratio.value, 6) for v in comparison.verdicts] == [1.0, 1.0]


def test_rows_that_the_new_file_lacks_are_refused_and_listed(result):
    both, gone, fresh = row([1.0] * 5), row([1.0] * 5, task="gone"), row([1.0] * 5, task="fresh")
    with pytest.raises(UsageError, match=r"(?s)lacks.*only in .*gone.*only in .*fresh"):
        compare_results(result(both, gone), result(both, fresh), 0.05)


def test_partial_judges_what_both_files_hold_and_says_what_one_lacks(result):
    both, gone, fresh = row([1.0] * 5), row([1.0] * 5, task="gone"), row([1.0] * 5, task="fresh")
    comparison = compare_results(result(both, gone), result(both, fresh), 0.05, partial=True)
    assert len(comparison.verdicts) == 1
    assert [("gone" in label) for label in comparison.missing] == [True]
    assert [("fresh" in label) for label in comparison.added] == [True]


def test_rows_that_only_the_new_file_has_are_said(result):
    both, fresh = row([1.0] * 5), row([1.0] * 5, task="fresh")
    assert [("fresh" in label) for label in compare_results(result(both), result(both, fresh), 0.05).added] == [True]


@pytest.mark.parametrize("other", [{"sequence_length": 64}, {"task": "b"}, {"lengths": {"source": "sst2"}}])
def test_results_of_other_tasks_and_lengths_are_not_compared(result, other):
    with pytest.raises(UsageError, match="in common"):
        compare_results(result(row([1.0] * 5, task="a")), result(row([1.0] * 5, **{"task": "a", **other})), 0.05)


def test_a_row_that_could_not_be_measured_any_more_is_refused(result):
    both, measured = row([1.0] * 5), row([1.0] * 5, task="t")
    with pytest.raises(UsageError, match="lacks"):
        compare_results(result(both, measured), result(both, {**measured, "samples_s": []}), 0.05)


def test_zero_samples_on_both_sides_are_nothing_to_compare(result):
    with pytest.raises(UsageError, match="in common"):
        compare_results(result(row([])), result(row([])), 0.05)


def test_nothing_in_common_is_a_usage_error(result):
    with pytest.raises(UsageError, match="in common"):
        compare_results(result(row([1.0], threads=2)), result(row([1.0], threads=4)), 0.05)


@pytest.mark.parametrize(
    ("top", "named"),
    [
        ({"host": {**HOST, "cpu": "Other CPU"}}, "Other CPU"),
        ({"profile": {**PROFILE, "name": "iphone11"}}, "iphone11"),
        ({"profile": {**PROFILE, "limits": {"in_force": {"cores": 1}}}}, "limits"),
        ({"host": {**HOST, "cores": {"usable": 4}}}, "cores"),
        ({"host": {**HOST, "versions": {"onnxruntime": "1.30"}}}, "onnxruntime's version was 1.31 and is 1.30"),
    ],
)
def test_other_hosts_and_limits_are_refused_by_what_differs(result, top, named):
    with pytest.raises(UsageError, match=named):
        compare_results(result(row([1.0] * 9)), result(row([1.0] * 9), **top), 0.05)


def test_another_version_of_edgepeft_is_what_a_comparison_is_about(result):
    versions = [{"onnxruntime": "1.31", "edgepeft": version} for version in ("0.1", "0.2")]
    base, new = (result(row([1.0] * 9), host={**HOST, "versions": found}) for found in versions)
    assert not compare_results(base, new, 0.05).failed


def other_host(gemm, **fields):
    return {"host": {**HOST, "cpu": "Other CPU", **fields, "gemm_samples_gflops": {"infer": gemm}}}


def test_normalised_results_of_another_host_are_judged_per_unit_of_its_gemm_rate(result):
    base = result(row(noisy(1.0, seed=1)), gemm=noisy(100.0, seed=2))
    half = result(row(noisy(2.0, seed=3)), **other_host(noisy(50.0, seed=4)))
    slower = result(row(noisy(2.4, seed=3)), **other_host(noisy(50.0, seed=4)))
    fine = compare_results(base, half, 0.05, normalise=True)
    assert not fine.failed
    assert fine.verdicts[0].per_gemm.value == pytest.approx(1.0, rel=0.03)
    assert any("Other CPU" in note for note in fine.notes)
    assert len(compare_results(base, slower, 0.05, normalise=True).regressions) == 1


def test_normalised_a_faster_host_does_not_hide_slower_code(result):
    # Twice as fast a host, the same time: half the work per unit of its speed.
    base = result(row(noisy(1.0, seed=1)), gemm=noisy(100.0, seed=2))
    new = result(row(noisy(1.0, seed=3)), **other_host(noisy(200.0, seed=4)))
    assert len(compare_results(base, new, 0.05, normalise=True).regressions) == 1


def test_normalised_rows_match_whatever_their_threads(result):
    base = result(row(noisy(1.0, seed=1), threads=2), gemm=noisy(100.0, seed=2))
    new = result(row(noisy(0.5, seed=3), threads=4), **other_host(noisy(200.0, seed=4)))
    assert not compare_results(base, new, 0.05, normalise=True).failed


def test_without_a_gemm_rate_nothing_can_be_normalised(result):
    with pytest.raises(UsageError, match="GEMM rate"):
        compare_results(result(row([1.0] * 9)), result(row([1.0] * 9)), 0.05, normalise=True)


def test_an_impossible_threshold_is_a_usage_error(result):
    file = result(row([1.0]))
    for threshold in (-0.1, 1.0, float("nan")):
        with pytest.raises(UsageError, match="max-regression"):
            compare_results(file, file, threshold)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[1, 2]",
        b'"text"',
        b"[" * 100_000,
        b'{"schema": "edgepeft.bench/2", "results": []}',
        b'{"schema": "edgepeft.bench/1"}',
        b'{"schema": "edgepeft.bench/1", "results": []}',
        b'{"schema": "edgepeft.bench/1", "results": {"a": 1}}',
        b'{"schema": "edgepeft.bench/1", "results": [3]}',
        b'{"schema": "edgepeft.bench/1", "results": [{}]}',
        b'{"schema": "edgepeft.bench/1", "results": [], "metrics": [3]}',
        b'{"schema": "edgepeft.bench/1", "results": [], "metrics": [{"of": "a", "values": {"n": NaN}}]}',
        b'{"schema": "edgepeft.bench/1", "results": [], "metrics": [{"of": "a", "values": {"n": -1}}]}',
        b'{"schema": "edgepeft.bench/1", "results": [], "metrics": [{"values": {"n": 1}}]}',
    ],
)
def test_a_file_that_is_no_result_is_refused_by_name(tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"odd\.json"):
        ResultFile.open(path)


@pytest.mark.parametrize(
    "samples", ["[1.0, -1.0]", "[0]", "[NaN]", "[Infinity]", '["1"]', "[true]", "3", "null", "[1e999]", f"[{10**400}]"]
)
def test_samples_that_no_clock_gives_are_refused(tmp_path, samples):
    path = tmp_path / "odd.json"
    document = json.dumps({"schema": "edgepeft.bench/1", "results": [row(["HERE"])]})
    path.write_text(document.replace('["HERE"]', samples))
    with pytest.raises(DataError, match="samples_s"):
        ResultFile.open(path)


def test_a_row_whose_identity_is_nested_is_refused(result):
    with pytest.raises(DataError, match=r"results\.0\.task must be text, found an object"):
        result(row([1.0], task={"a": 1}))


def test_two_rows_of_one_kind_are_refused(result):
    file = result(row([1.0]), row([2.0]))
    with pytest.raises(DataError, match="two results"):
        compare_results(file, file, 0.05)


def test_a_host_rate_that_is_no_number_is_refused(result):
    with pytest.raises(DataError, match=r"gemm_samples_gflops\.infer\.0 must be a number above 0, found -1\.0"):
        result(row([1.0] * 3), gemm=[-1.0])


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.json"):
        ResultFile.open(tmp_path / "nowhere.json")


def test_results_of_different_modes_are_never_compared(result):
    base, new = result(row([1.0] * 9), mode="limits"), result(row([1.0] * 9), mode="calibrated")
    with pytest.raises(UsageError, match="mode was limits and is calibrated"):
        compare_results(base, new, 0.05)


def test_calibrated_results_are_compared_though_their_quotas_differ(result):
    def under(quota):
        limits = {"requested": {"cores": 4, "cpu_quota": quota}, "in_force": {"cores": 2, "cpu_quota": quota}}
        return result(row([1.0] * 9), mode="calibrated", profile={"name": "rpi4", "limits": limits})

    assert compare_results(under(0.16), under(0.17), 0.05).regressions == ()


def test_a_prediction_is_no_measurement_to_compare(result):
    base = result(row([1.0] * 9), mode="predicted")
    with pytest.raises(UsageError, match="was predicted"):
        compare_results(base, base, 0.05)


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
