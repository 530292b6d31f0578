"""The choice for a board: planted scores and costs, then a whole command."""

import json

import numpy as np
import pytest
from verbs import edgepeft

from edgepeft.common.errors import DoesNotFit, UsageError
from edgepeft.device.profiles import load_profile
from edgepeft.sweep.choice import (
    Budget,
    Candidate,
    MethodCosts,
    Seconds,
    candidates,
    choose,
    costs_of,
    export_untrained,
)
from edgepeft.sweep.run import fold


def planted(sweep, right, costs):
    """The sweep's two methods with so many of 400 test rows right, each of the first method's among the other's."""
    found = candidates(sweep)
    for arms, n in zip(found.values(), right, strict=True):
        for arm in arms:
            for cell, card in zip(arm.cells, arm.cards, strict=True):
                card.metrics["test"] = n / 400
                targets = np.arange(400) % 2
                kept = sweep.answers(cell)[1]
                answers = np.where(np.arange(400) < n, targets, 1 - targets)
                outputs = answers.astype(kept.dtype) if kept.ndim == 1 else np.eye(2, dtype=kept.dtype)[answers]
                np.savez(sweep.run(cell) / "test.npz", targets=targets, outputs=outputs)
    return [Candidate(name, arms, cost) for (name, arms), cost in zip(found.items(), costs, strict=True)]


FAST = MethodCosts(100.0, (50.0, 200.0), 50_000_000, 4_000, 2)
SLOW = MethodCosts(40.0, (20.0, 80.0), 60_000_000, 2_000, 0)
NEAR = MethodCosts(97.0, (50.0, 200.0), 60_000_000, 2_000, 0)


@pytest.mark.parametrize(
    ("right", "costs", "budget", "expected"),
    [
        # 2 rows of 400 are chance: (398/400)**400 = 0.14 of resamples draw none of them.
        ((300, 302), (FAST, SLOW), Budget(), "linear"),
        ((300, 340), (FAST, SLOW), Budget(), "lora:rank=2"),
        ((300, 340), (FAST, SLOW), Budget(per_minute=50), "linear"),
        ((300, 340), (FAST, SLOW), Budget(memory=55_000_000), "linear"),
        ((340, 300), (FAST, SLOW), Budget(disk=3_000), "lora:rank=2"),
        # Within 5 % of the time, bytes decide.
        ((300, 301), (FAST, NEAR), Budget(), "lora:rank=2"),
    ],
)
def test_the_cheapest_within_the_budget_that_is_not_worse_beyond_chance_is_taken(done, right, costs, budget, expected):
    assert choose(planted(done, right, costs), budget).chosen.method == expected


def test_a_budget_that_nothing_keeps_is_refused_with_the_nearest(done):
    found = planted(done, (300, 340), (FAST, SLOW))
    with pytest.raises(
        DoesNotFit, match=r"at most 100 texts a minute are answered, 500 are asked for; .*50 MB .*10 MB"
    ):
        choose(found, Budget(per_minute=500, memory=10_000_000))


def test_what_another_beats_in_everything_is_not_on_the_front(done):
    worse = MethodCosts(30.0, (15.0, 60.0), 70_000_000, 5_000, 0)
    assert choose(planted(done, (340, 300), (FAST, worse)), Budget()).front == ("linear",)
    assert choose(planted(done, (300, 340), (FAST, worse)), Budget()).front == ("linear", "lora:rank=2")


def test_a_data_set_that_is_not_there_is_refused_with_those_that_are(done):
    with pytest.raises(UsageError, match="its data sets: tone"):
        candidates(done, "mood")


def test_the_command_counts_what_tasks_share(done, tmp_path, monkeypatch):
    # Of a process, which is never the same twice.
    monkeypatch.setattr("edgepeft.sweep.choice._base", lambda: 50_000_000)
    cards = [arms[0].cards[0] for arms in candidates(done).values()]
    bundle = export_untrained(cards, done.cells[0].options["backbone"], tmp_path)
    how = {"bundle": bundle, "profile": load_profile("rpi4"), "length": None}
    found = [costs_of(**how, tasks=n).values() for n in (1, 8)]
    (linear, eight_linear), (lora, eight_lora) = zip(*found, strict=True)
    # Linear heads are one run of the backbone; what LoRA changes from the first layer on is a run each.
    assert eight_linear.shared_layers == 2 and eight_linear.per_minute > linear.per_minute / 2
    assert eight_lora.shared_layers == 0 and eight_lora.per_minute == pytest.approx(lora.per_minute / 8)
    assert eight_lora.disk == 8 * lora.disk and 0 < eight_lora.memory - lora.memory <= 8 * lora.disk
    # A measured time takes the prediction's place; what linear heads share of it stays shared.
    times = {"t0": Seconds(0.1, (0.05, 0.2)), "t1": Seconds(0.1, (0.05, 0.2))}
    timed, timed_lora = costs_of(**how, tasks=8, measured=times).values()
    share = eight_linear.per_minute / linear.per_minute
    assert (timed_lora.per_minute, timed_lora.interval) == (pytest.approx(75), pytest.approx((37.5, 150)))
    assert (timed.per_minute, timed.memory) == (pytest.approx(600 * share), eight_linear.memory)
    called = edgepeft("choose", done.folder, "--profile", "rpi4", "--tasks", 8, "--json")
    assert called.returncode == 0, called.stderr
    (shown,) = (each for each in json.loads(called.stdout)["methods"] if each["method"] == "lora:rank=2")
    assert (shown["per_minute"], shown["disk"]) == (pytest.approx(eight_lora.per_minute), eight_lora.disk)
    fold(done)  # lines of results have what is chosen by
    folded = edgepeft("choose", done.folder, "--profile", "rpi4", "--tasks", 8, "--json")
    assert folded.stdout == called.stdout, folded.stderr


def test_what_the_device_has_no_memory_for_is_not_chosen(done):
    many = edgepeft("choose", done.folder, "--profile", "rpi4", "--tasks", 1_000_000_000, "--memory", "90000000GB")
    assert many.returncode == 5 and "8,590 MB are allowed" in many.stderr


def test_a_length_that_no_task_reads_is_refused_before_anything_is_exported(done, monkeypatch):
    monkeypatch.setattr("edgepeft.sweep.choice.export_bundle", None)
    refused = edgepeft("choose", done.folder, "--profile", "rpi4", "--length", 100_000)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--length 100000: this backbone takes 1 to 64 tokens" in refused.stderr


@pytest.mark.slow
def test_the_command_measures_under_the_limits_where_that_is_asked(done):
    asked = ["choose", done.folder, "--profile", "rpi4", "--mode", "limits", "--max-seconds", "30"]
    shown = edgepeft(*asked, "--json")
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert (found["predicted"], found["mode"]) == (False, "limits")
    assert all(low <= each["per_minute"] <= high for each in found["methods"] for low, high in [each["interval"]])
    assert "at this host's speed" in edgepeft(*asked).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--throughput", "fast"], "--throughput 'fast': give texts a minute"),
        (["--throughput", "0/min"], "--throughput '0/min'"),
        (["--memory", "much"], "--memory 'much' is no amount of memory"),
        (["--disk", "2"], "--disk 2 has no unit"),
        (["--mode", "quick"], "'quick'"),
        (["--max-seconds", "3"], "--max-seconds bounds what is measured"),
        (["--minutes", "3"], "--minutes is of a small sweep"),
        (["--text-column", "review"], "--text-column is of a small sweep"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path, words, message):
    called = edgepeft("choose", tmp_path, "--profile", "rpi4", *words)
    assert called.returncode == 2 and message in called.stderr
    assert edgepeft("choose", "--profile", "rpi4").returncode == 2


@pytest.mark.slow
def test_without_a_sweep_a_small_one_is_made_of_the_rows_in_the_time_there_is(plan, tiny, tmp_path):
    plan()
    rows = tmp_path / "tone.jsonl"
    rows.write_text(rows.read_text().replace("sentence1", "review"))
    asked = [
        "--data",
        rows,
        "--text-column",
        "review",
        "--backbone",
        tiny("bert", mean=True),
        "--out",
        tmp_path / "small",
    ]
    short = edgepeft("choose", *asked, "--profile", "rpi4", "--minutes", "0.001")
    assert short.returncode == 2 and "the time allowed 0 of 7 methods" in short.stderr
    whole = edgepeft("choose", *asked, "--profile", "rpi4", "--minutes", "10")
    assert whole.returncode == 0 and "edgepeft export --backbone" in whole.stderr
    assert all(name in whole.stdout for name in ("linear", "lora", "spartan", "chosen"))
