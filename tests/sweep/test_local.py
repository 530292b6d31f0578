"""Runs in processes of their own: killed, stopped and gone on with, they end as runs that nobody disturbed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from inline import inline
from verbs import ENTRY, SURROUNDING, edgepeft

from edgepeft.sweep.local import CellRun, Ended, Moved, run_local
from edgepeft.sweep.run import run_sweep

TENSORS = "delta.safetensors"


def contents(folder):
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob(f"runs/*/{TENSORS}"))}


def workers():
    """The processes of runs: children of the server that forks them."""
    found = psutil.Process().children(recursive=True)
    return [each for each in found if not each.children() and "forkserver" in " ".join(each.cmdline())]


@pytest.mark.slow  # Ctrl-C and what fails stay: the same executor
def test_a_run_whose_process_is_killed_is_started_again_and_ends_the_same(swept, tmp_path):
    import dataclasses

    sweep = swept(steps=40)
    sweep = dataclasses.replace(sweep, cells=sweep.cells[2:4])
    whole = dataclasses.replace(sweep, folder=tmp_path / "whole")
    for told in inline([CellRun(whole, cell) for cell in whole.cells]):
        assert told.outcome.state == "done"
    killed, ended = 0, []
    for told in run_local([CellRun(sweep, cell) for cell in sweep.cells], 1):
        if isinstance(told, Moved) and not killed:
            os.kill(max(workers(), key=lambda each: each.create_time()).pid, signal.SIGKILL)
            killed += 1
        ended += [told] if isinstance(told, Ended) else []
    assert killed and [each.outcome.state for each in ended] == ["done", "done"]
    assert contents(sweep.folder) == contents(whole.folder) and len(contents(sweep.folder)) == 2


def test_what_cannot_be_computed_is_told_and_the_rest_goes_on(swept, tmp_path):
    sweep = swept()
    first = sweep.cells[0]
    first.options["data"] = str(tmp_path / "gone.jsonl")
    ended = [
        told for told in run_local([CellRun(sweep, cell) for cell in sweep.cells[:2]], 2) if isinstance(told, Ended)
    ]
    errors = {told.job.cell.name: told.error for told in ended}
    assert "gone.jsonl" in errors[first.name] and errors[sweep.cells[1].name] is None


def test_workers_beyond_the_gpus_share_them(swept, tmp_path):
    sweep = swept()
    for cell in sweep.cells[:3]:
        cell.options["data"] = str(tmp_path / "gone.jsonl")
    told = [*run_local([CellRun(sweep, cell) for cell in sweep.cells[:3]], workers=3, gpus=2)]
    assert [isinstance(each, Moved) for each in told[:3]] == [True, True, True]  # all begin before one is over
    assert sorted(each.job.gpu for each in told if isinstance(each, Ended)) == [0, 0, 1]


def command(plan, out, *more):
    return [sys.executable, "-c", ENTRY, "sweep", str(plan), "--out", str(out), *more]


def test_ctrl_c_leaves_checkpoints_and_the_same_command_goes_on(plan, tmp_path):
    path, out = plan(steps=4_000), tmp_path / "out"
    running = subprocess.Popen(
        command(path, out, "--workers", "1"), stderr=subprocess.PIPE, text=True, env=os.environ | SURROUNDING
    )
    ends = time.monotonic() + 120
    while not list(out.glob("runs/*/checkpoint/*")) and time.monotonic() < ends:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130 and "runs over; the same command goes on with the rest" in errors
    assert "Traceback" not in errors
    listed = edgepeft("sweep", path, "--out", out, "--dry-run")
    assert listed.returncode == 0 and "begun" in listed.stdout and "1 begun" in listed.stderr


def test_ctrl_c_on_a_terminal_which_all_processes_get_is_told_by_the_sweep_alone(plan, tmp_path):
    running = subprocess.Popen(
        command(plan(steps=4_000), tmp_path / "out", "--workers", "1"),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | SURROUNDING,
        start_new_session=True,
    )
    ends, sweep = time.monotonic() + 120, psutil.Process(running.pid)
    while not any("forkserver" in " ".join(each.cmdline()) for each in sweep.children()) and time.monotonic() < ends:
        time.sleep(0.02)
    time.sleep(0.5)  # of the seconds in which it imports PyTorch
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=120)
    assert running.returncode == 130 and "the same command goes on with the rest" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_what_is_over_at_a_signal_is_a_line_of_results(plan, tmp_path, number, code):
    path, out = plan(steps=300), tmp_path / "out"
    running = subprocess.Popen(
        command(path, out, "--workers", "1", "--keep", "results"),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | SURROUNDING,
    )
    ends = time.monotonic() + 120
    while not (over := list(out.glob("runs/*.json"))) and time.monotonic() < ends:
        time.sleep(0.05)
    running.send_signal(number)
    running.communicate(timeout=120)
    assert running.returncode == code
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [line["run"] for line in lines] == [over[0].stem] and not over[0].exists()


def test_a_run_that_was_killed_before_its_answers_were_written_is_run_again(done, plan):
    """Its card comes first, and looks whole; ``make faults`` kills at any moment."""
    cell = done.cells[0]
    (done.run(cell) / "test.npz").unlink()
    done.run(cell).with_suffix(".json").unlink()
    assert done.outcome(cell) is None
    runs = done.run(cell).parent
    (runs / f".{cell.name}").mkdir()
    left = [runs / f".{cell.name}.json.0123abcd", done.folder / ".results.jsonl.0123abcd"]
    (runs / f".{cell.name}" / ".edgepeft.lock").touch()
    for path in left:
        path.touch()
    assert not run_sweep(done, inline, CellRun(done, cell), watch=lambda _: None)
    targets, _ = done.answers(cell)
    assert len(targets) == 40
    assert not list(done.folder.rglob(".*"))


@pytest.mark.slow
def test_a_sweep_that_is_killed_twenty_times_makes_the_same_table(plan, swept, tmp_path):
    path, out = plan(steps=120), tmp_path / "sweep"
    whole = swept(steps=120)
    calm = run_sweep(whole, inline, CellRun(whole, whole.cells[0]), watch=lambda _: None)
    expected, table = contents(whole.folder), edgepeft("sweep", path, "--out", out, "--json").stdout
    assert not calm and len(expected) == len(whole.cells)
    again, drawn, killed = tmp_path / "again", random.Random(0), 0
    while killed < 20:
        running = subprocess.Popen(command(path, again), stderr=subprocess.DEVNULL, env=os.environ | SURROUNDING)
        try:
            running.wait(6 + 4 * drawn.random())
            break
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            killed += 1
    done = edgepeft("sweep", path, "--out", again, "--json")
    assert done.returncode == 0 and done.stdout == table and contents(again) == expected
