"""`edgepeft train` as it is called: one document on standard output, usage errors before any work, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from typer.testing import CliRunner
from verbs import SURROUNDING

from edgepeft import train
from edgepeft.bundle.delta import Delta
from edgepeft.cli._main import app
from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.data.training_loop.run import rate_factor
from edgepeft.training import loop
from edgepeft.training.exporting.delta import export_delta


@pytest.fixture
def call(backbone_folder, data_file, tmp_path):
    def call(*more, out="out", method="houlsby"):
        arguments = ["--backbone", backbone_folder, "--data", data_file, "--task", "mood"]
        arguments += [] if method is None else ["--method", method]
        arguments += ["--out", tmp_path / out, "--threads", "1", "--batch-size", "8", *more]
        return CliRunner().invoke(app, ["train", *map(str, arguments)])

    yield call
    torch.set_num_threads(1)


def test_json_is_one_document_on_standard_output_and_equals_the_card(call, tmp_path):
    result = call("--set", "bottleneck=4", "--epochs", "1", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "delta.json").read_text())


def test_without_json_a_table_shows_the_score_of_the_rows_that_are_reported(call, tmp_path):
    result = call("--steps", "1")
    card = json.loads((tmp_path / "out" / "delta.json").read_text())
    (figure,) = card["metrics"]["headline"]
    assert figure["metric"] == "accuracy" and figure["score"] == card["metrics"]["test"]
    shown = " ".join(result.stdout.split())
    assert f"accuracy {figure['score']:.3f} {figure['low']:.3f} to {figure['high']:.3f} 0.667" in shown
    assert "6 rows held out of moods.jsonl" in " ".join(result.stdout.replace("│", " ").split())


def test_the_options_reach_the_run(call, tmp_path):
    asked = {"seed": 4, "steps": 2, "few-shot": 10, "max-length": 9, "metric": "f1:bad", "lr": 0.01, "head-lr": 0.02}
    call(*(part for name, value in asked.items() for part in (f"--{name}", value)))
    found = json.loads((tmp_path / "out" / "delta.json").read_text())["training"]
    names = ("seed", "steps", "few_shot", "max_length", "metric", "learning_rate", "head_learning_rate")
    assert [found[name] for name in names] == list(asked.values())


def test_shares_and_a_learning_curve_reach_the_card_and_the_table(call, tmp_path):
    result = call("--epochs", "1", "--eval", "0.2", "--test", "10%", "--curve", "--balanced", "--patience", "3")
    assert result.exit_code == 0, result.stderr
    card = json.loads((tmp_path / "out" / "delta.json").read_text())
    assert [card["metrics"][f"n_{part}"] for part in ("train", "eval", "test")] == [42, 12, 6]
    assert (card["training"]["patience"], card["training"]["class_weights"]) == (3, {"bad": 1.5, "good": 0.75})
    shown = " ".join(result.stdout.split())
    for point in card["metrics"]["curve"]:
        assert f"{point['rows']} {point['test']:.3f} {point['eval']:.3f}" in shown
    assert "share of rows that are right" in shown and "bad (weighs 1.5)" in shown


def test_a_task_that_names_no_method_gets_one_that_is_said(call):
    result = call("--steps", "1", "--json", method=None)
    assert "note: trains lora, for no --method was given" in result.stderr
    assert json.loads(result.stdout)["method"] == "lora"


def test_truncated_texts_are_mentioned_once(call):
    result = call("--steps", "1", "--max-length", "4")
    assert result.stderr.count("lost their ends") == 1


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        (["--epochs", "1", "--steps", "1"], UsageError, "--epochs and --steps exclude each other"),
        (["--epochs", "0"], UsageError, "--epochs must be at least 1"),
        (["--batch-size", "-1"], UsageError, "--batch-size must be at least 1"),
        (["--lr", "nan"], UsageError, "--lr must be a positive number"),
        (["--head-lr", "-0.1"], UsageError, "--head-lr must be a positive number"),
        (["--task", "../../etc"], UsageError, "cannot be a task's name"),
        (["--task", ".hidden"], UsageError, "cannot be a task's name"),
        (["--task", "m" * 101], UsageError, "at most 100"),  # else it trains, and no export takes it
        (["--metric", "acuracy"], UnknownName, "Did you mean 'accuracy'"),
        (["--metric", "pearson"], UsageError, "no metric of a classification"),
        (["--method", "holsby"], UnknownName, "Did you mean 'houlsby'"),
        (["--set", "bottleneck"], UsageError, "name=value"),
        (["--set", "botleneck=3"], UnknownName, "Did you mean 'bottleneck'"),
        (["--head", "liner"], UnknownName, "Did you mean 'linear'"),
        (["--patience", "0"], UsageError, "--patience must be at least 1"),
        (["--balanced", "--regression"], UsageError, "--balanced weighs classes"),
        (["--eval", "120%"], UsageError, "--eval '120%': give a share such as 5% or 0.05, under 100%"),
        (["--test", "20"], UsageError, "--test '20': give a share"),
        (["--eval", "0.6", "--test", "0.6"], UsageError, "can be held out"),
        (["--eval", "0.2.csv"], UsageError, "0.2.csv does not exist"),
        (["--resume"], UsageError, "nothing to resume"),
        (["--resume", "--force"], UsageError, "exclude each other"),
        (["--data", "none.jsonl"], UsageError, "none.jsonl does not exist"),
        (["--regression"], DataError, "moods.jsonl:1: the label of a regression is a finite number"),
    ],
)
def test_a_wrong_command_is_refused_with_its_reason_and_leaves_nothing(call, tmp_path, more, error, message):
    result = call(*more)
    assert isinstance(result.exception, error), result.exception
    assert message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_says_how_to_resume_and_the_resumed_run_ends_as_an_uninterrupted_one(call, tmp_path, monkeypatch):
    call("--epochs", "1", out="whole")
    before = signal.getsignal(signal.SIGINT)

    def interrupting(step, warmup, total):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return rate_factor(step, warmup, total)

    with monkeypatch.context() as patch:
        patch.setattr("edgepeft.data.training_loop.run.rate_factor", interrupting)
        stopped = call("--epochs", "1")
    assert stopped.exit_code == 130
    assert "stopped after step 3 of 6" in " ".join(stopped.stderr.split())
    assert "--resume" in stopped.stderr
    assert signal.getsignal(signal.SIGINT) is before
    assert call("--epochs", "1", "--resume").exit_code == 0
    for name in ("delta.json", "delta.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


STOPPED = """
import signal
from edgepeft.__main__ import main
from edgepeft.data.training_loop import run
usual = run.rate_factor
run.rate_factor = lambda step, *rest: (step == 2 and signal.raise_signal(signal.SIGTERM), usual(step, *rest))[1]
main()
"""


def test_sigterm_leaves_a_checkpoint_and_ends_the_process_as_whoever_sent_it_expects(
    backbone_folder, data_file, tmp_path
):
    asked = ["train", "--backbone", backbone_folder, "--data", data_file, "--task", "mood", "--method", "houlsby"]
    command = [sys.executable, "-c", STOPPED, *map(str, asked), "--out", str(tmp_path / "out"), "--batch-size", "8"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=os.environ | SURROUNDING, check=False)
    assert done.returncode == -signal.SIGTERM
    assert "stopped after step 3 of" in done.stderr and "--resume" in done.stderr


def test_trainings_in_threads_take_turns_and_end_as_one_alone(backbone_folder, data_file, tmp_path, monkeypatch):
    under_way, most, trained = list[str](), list[int](), loop.train_delta

    def watched(*given, **more):
        under_way.append("a run")
        most.append(len(under_way))
        try:
            return trained(*given, **more)
        finally:
            under_way.pop()

    def run(name):
        return train(backbone=backbone_folder, data=data_file, task="mood", out=tmp_path / name, steps=2, threads=1)

    monkeypatch.setattr(loop, "train_delta", watched)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, ("one", "two")))
    assert "array" not in repr(run("alone"))  # which a notebook shows
    assert most == [1, 1, 1]
    assert len({(tmp_path / name / "delta.safetensors").read_bytes() for name in ("one", "two", "alone")}) == 1


def test_what_a_delta_has_to_beat_stands_beside_its_score_and_is_said_where_it_is_not_beaten(call, tmp_path):
    result = call("--steps", "1")
    metrics = json.loads((tmp_path / "out" / "delta.json").read_text())["metrics"]
    labels = [json.loads(row)["label"] for row in (tmp_path / "moods.jsonl").read_text().splitlines()]
    assert set(metrics["baselines"]) == {"majority", "linear head"}
    assert metrics["baselines"]["majority"]["test"] == 4 / 6  # 4 of the 6 test rows are good, as 2 in 3 of all are
    assert labels.count("good") == 40
    for name, found in metrics["baselines"].items():
        assert f"{found['test']:.3f}" in result.stdout
        assert (f"not better than the {name} beyond chance" in result.stderr) == (not found["beaten"])
    assert "try --lr 0.0027 (this was 0.0009)" in " ".join(result.stderr.split())
    alone = call("--steps", "1", method="linear", out="alone")
    assert set(json.loads((tmp_path / "alone" / "delta.json").read_text())["metrics"]["baselines"]) == {"majority"}
    assert alone.exit_code == 0


def test_errors_by_class_are_shown_and_stay_in_the_deltas_folder(call, backbone, tmp_path):
    result = call("--steps", "1")
    card = json.loads((tmp_path / "out" / "delta.json").read_text())
    errors = card["metrics"]["errors"]
    assert {name: of["support"] for name, of in errors["by_class"].items()} == {"bad": 2, "good": 4}
    assert len(errors["worst"]) == 6 and all(each["row"].startswith("moods.jsonl:") for each in errors["worst"])
    assert "recall" in result.stdout and errors["worst"][0]["row"] in result.stdout
    exported = export_delta(Delta.load(tmp_path / "out", backbone), backbone)
    (kept,) = (json.loads(entry.value) for entry in exported.metadata_props if entry.key == "edgepeft.card")
    assert kept["metrics"] == {name: value for name, value in card["metrics"].items() if name != "errors"}
