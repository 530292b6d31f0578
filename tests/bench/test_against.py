"""Two versions in one run, with a fake clock; and real revisions of a small repository."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import edgepeft
from edgepeft.bench.against import Revision, SideBySide, open_revision, verdict
from edgepeft.bench.measuring.measure import HostLoad, WorkerProcess
from edgepeft.bench.measuring.sampler import Budget
from edgepeft.bench.planning.job import Job
from edgepeft.bench.result.statistics import Ratio
from edgepeft.bench.run import run_benchmark
from edgepeft.cli._main import main
from edgepeft.common.errors import UsageError
from edgepeft.options.verbs import BenchOptions

FIELDS = frozenset(Job.__dataclass_fields__)


@pytest.fixture
def base(tmp_path):
    """A revision whose bundle is this one's: nothing is started."""

    class Same(Revision):
        def random_bundle(self, folder, name, **options):
            self.asked_for.append((name, options))

    same = Same("main", "commit abc", tmp_path, FIELDS)
    object.__setattr__(same, "asked_for", [])
    return same


def bench(start, side, **options):
    settings = {"profile": "rpi4", "backbone": "all-MiniLM-L6-v2", "rounds": 20, "batch_size": 2, "length": 8}
    settings |= {"engines": ("onnxruntime",), "workloads": ("infer",)}
    return run_benchmark(BenchOptions(**{**settings, **options}), start=start, against=side)


def host(slower, noise=0.0, seed=0):
    """Seconds on a host whose speed wanders twofold; the new version takes ``slower`` times as long."""
    source, state = random.Random(seed), {"speed": 1.0}

    def seconds(label):
        state["speed"] = min(2.0, max(1.0, state["speed"] * source.uniform(0.97, 1.03)))
        own = 1.0 if label.endswith("of the base") else slower
        return 0.1 * own * state["speed"] * (1 + noise * source.gauss(0, 1))

    return seconds


def judged(fake_start, base, slower, seed=0, **options):
    side = SideBySide(base)
    outcome = bench(fake_start(host(slower, 0.03, seed)), side, **options)
    result, labels = side.annotate(outcome.result, outcome.measured, 0.05)
    (row,) = result.to_json()["results"]
    return labels, row


@pytest.mark.parametrize("seed", range(10))
def test_a_loss_of_a_tenth_is_found_on_a_host_that_wanders(fake_start, base, seed):
    labels, row = judged(fake_start, base, 1.10, seed)
    assert len(labels) == 1
    assert row["against"]["verdict"] == "slower"
    assert row["against"]["value"] == pytest.approx(1 / 1.10, abs=0.04)


@pytest.mark.parametrize("seed", range(20))
def test_the_same_code_is_never_slower_on_a_host_that_wanders(fake_start, base, seed):
    assert judged(fake_start, base, 1.0, seed)[0] == []


def test_what_became_faster_is_said_and_passes(fake_start, base):
    labels, row = judged(fake_start, base, 0.8)
    assert (labels, row["against"]["verdict"]) == ([], "faster")


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.90, 0.88, 0.92, "slower"),
        (0.94, 0.90, 0.99, "slower"),  # beyond noise, and more than 5 %
        (0.96, 0.95, 0.97, "same"),  # beyond noise, less than 5 %
        (0.90, 0.80, 1.01, "same"),  # noise could explain it
        (1.10, 1.05, 1.15, "faster"),
        (1.02, 1.01, 1.03, "same"),
    ],
)
def test_a_verdict_needs_an_effect_that_matters_and_is_beyond_noise(value, low, high, expected):
    assert verdict(Ratio(value, low, high, 30), 0.05) == expected


def test_both_versions_do_every_round_and_launches_split_them(fake_start, base):
    start, side = fake_start(0.1), SideBySide(base, launches=3)
    outcome = bench(start, side, rounds=10)
    (row,) = side.annotate(outcome.result, outcome.measured, 0.05)[0].to_json()["results"]
    assert len(row["samples_s"]) == len(row["against"]["base_samples_s"]) == 10
    gemm = [label for label, _ in start.log if "gemm" in label.lower()]
    assert 3 <= len(gemm) - 3 * len(outcome.result.to_json()["schedule"]["warmup_batches"]) < 10, (
        "the probe is in fewer rounds"
    )
    started = [group for group in start.together if any("of the base" in label for label in group)]
    assert len(started) >= 3


class Nth:
    """Starts fake workers; the one that matches ``label`` in launch ``number`` is changed by ``change``."""

    def __init__(self, start, label, number, change):
        self.start, self.label, self.number, self.change, self.launched = start, label, number, change, 0

    @contextmanager
    def __call__(self, label, job):
        with self.start(label, job) as worker:
            if label == self.label:
                self.launched += 1
                if self.launched == self.number:
                    self.change(worker)
            yield worker


def test_units_that_share_a_probe_get_each_of_its_samples_once(fake_start, base):
    start = fake_start(0.1)
    outcome = bench(start, SideBySide(base), methods=("lora", "bitfit"), rounds=40)
    assert len(outcome.measured) == 3
    # Rounds 1 and 11 of either launch's 20; what the probe did besides was warming up.
    assert len(outcome.result.to_json()["host"]["gemm_samples_gflops"]["infer"]) == 4
    assert [len(one.gemm.samples) for one in outcome.measured] == [4, 4, 4]
    assert [len(one.series.samples) for one in outcome.measured] == [40, 40, 40]
    probed = [label for label, _ in start.log if label == "infer onnxruntime gemm"]
    assert [len(one.gemm.warmup) for one in outcome.measured] == 3 * [len(probed) - 4]


@pytest.mark.parametrize("label", ["infer onnxruntime backbone", "infer onnxruntime backbone of the base"])
def test_limits_that_a_later_launch_lost_are_reported(fake_start, base, label):
    def lose(worker):
        worker.in_force, worker.notes = replace(worker.in_force, emulation="partial"), ("limits were lost: memory",)

    outcome = bench(Nth(fake_start(0.1), label, 2, lose), SideBySide(base))
    assert outcome.result.to_json()["profile"]["emulation"] == "partial"
    (row,) = outcome.result.to_json()["results"]
    assert [warning for warning in row["warnings"] if "limits were lost: memory" in warning]


def test_what_others_did_during_a_later_launch_is_warned_of(fake_start, base, monkeypatch):
    loads = iter([HostLoad(0.0, 0.0, 0, 0), HostLoad(1.5, 0.0, 3_000_000, 0)])
    monkeypatch.setattr("edgepeft.bench.measuring.measure.load_between", lambda *arguments: next(loads))
    (row,) = bench(fake_start(0.1), SideBySide(base)).result.to_json()["results"]
    assert any("1.50 cores" in warning for warning in row["warnings"])
    assert any("3 MB were swapped" in warning for warning in row["warnings"])


def cut_off(start, label="infer onnxruntime backbone", after=8):
    """A start of workers of which one, in the first launch, is stopped by Ctrl-C."""

    def press(worker):
        step, done = worker.step, itertools.count()

        def stepped(batch):
            if next(done) == after:
                raise KeyboardInterrupt
            return step(batch)

        worker.step = stepped

    return Nth(start, label, 1, press)


def test_ctrl_c_starts_no_further_launch_and_gives_no_verdict(fake_start, base):
    start, side = cut_off(fake_start(host(2.0))), SideBySide(base)
    outcome = bench(start, side)
    assert start.launched == 1
    assert all(one.series.interrupted for one in outcome.measured)
    result, slower = side.annotate(outcome.result, outcome.measured, 0.05)
    assert slower == []
    (row,) = result.to_json()["results"]
    assert row["against"]["verdict"] == "interrupted"
    assert 0 < len(row["samples_s"]) == len(row["against"]["base_samples_s"]) < 20


def test_a_workload_that_lacks_its_second_launch_has_no_verdict_either(fake_start, base):
    start, side = cut_off(fake_start(host(2.0)), "finetune pytorch full"), SideBySide(base)
    outcome = bench(start, side, engines=("onnxruntime", "pytorch"), workloads=("infer", "finetune"))
    assert side.annotate(outcome.result, outcome.measured, 0.05)[1] == []
    assert {one.unit.workload for one in outcome.measured if one.series.interrupted} == {"infer", "finetune"}


def gate(start, base, monkeypatch, *options):
    monkeypatch.setattr("edgepeft.bench.run.run_benchmark", partial(run_benchmark, start=start))
    monkeypatch.setattr("edgepeft.bench.against.open_revision", lambda asked, work: base)
    asked = ["bench", "--profile", "rpi4", "--backbone", "all-MiniLM-L6-v2", "--rounds", "20", "--length", "8"]
    asked += ["--batch-size", "2", "--engine", "onnxruntime", "--workload", "infer"]
    monkeypatch.setattr(sys, "argv", ["edgepeft", *asked, "--against", "main", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_gate_that_was_cut_off_exits_130_and_keeps_what_there_is(fake_start, base, tmp_path, monkeypatch, capsys):
    start, path = cut_off(fake_start(host(2.0))), tmp_path / "kept.json"
    assert gate(start, base, monkeypatch, "--json", str(path)) == 130
    done = len(json.loads(path.read_text())["results"][0]["samples_s"])
    assert f"{done} of 20 rounds are in the JSON" in capsys.readouterr().err


def test_a_gate_without_time_for_any_row_does_not_pass(fake_start, base, monkeypatch, capsys):
    assert gate(fake_start(host(2.0)), base, monkeypatch, "--max-seconds", "0.000001") == 2
    assert "nothing was compared with main: left out: no time was left" in capsys.readouterr().err


def test_a_gate_without_time_for_some_rows_names_them_and_does_not_pass(fake_start, base, monkeypatch, capsys):
    start, clock = fake_start(0.1), [0.0]

    def late(label, job):
        clock[0] += 1000.0 * label.startswith("finetune")
        return start(label, job)

    monkeypatch.setattr("edgepeft.bench.run.Budget.of", lambda seconds: Budget(seconds, lambda: clock[0]))
    asked = ("--workload", "finetune", "--launches", "1", "--max-seconds", "100")
    assert gate(late, base, monkeypatch, *asked) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "For want of time these were not compared with main: finetune pytorch full. Raise --max-seconds" in said


def test_the_other_versions_workers_get_its_package_and_its_own_bundle(fake_start, base):
    start = fake_start(0.1)
    bench(start, SideBySide(base))
    jobs = {label.endswith("of the base"): job for label, job in start.jobs.items() if "gemm" not in label}
    assert jobs[True].package == str(base.path)
    assert jobs[False].package == ""
    assert jobs[True].bundle != jobs[False].bundle
    assert base.asked_for[0][0] == "all-MiniLM-L6-v2"


def test_a_worker_is_not_told_what_says_nothing():
    said = json.loads(Job("infer_onnxruntime", 2, ((3,),), package="/somewhere").to_json())
    assert set(said) == {"workload", "threads", "batches"}


def test_an_option_that_the_other_version_does_not_know_is_refused_by_name():
    job = Job("infer_onnxruntime", 2, ((3,),), cache=False)
    assert job.known_to({"workload", "threads", "batches", "cache"}, "main") is job
    with pytest.raises(UsageError, match=r"main.*cache"):
        job.known_to({"workload", "threads", "batches"}, "main")


def package(folder: Path, version: str) -> Path:
    for wing in ("measuring", "planning"):
        (folder / "edgepeft" / "bench" / wing).mkdir(parents=True)
        (folder / "edgepeft" / "bench" / wing / "__init__.py").write_text("")
    (folder / "edgepeft" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "edgepeft" / "bench" / "__init__.py").write_text("")
    (folder / "edgepeft" / "bench" / "measuring" / "worker.py").write_text("")
    job = "from dataclasses import dataclass\n@dataclass\nclass Job:\n    workload: str\n    threads: int = 1\n"
    (folder / "edgepeft" / "bench" / "planning" / "job.py").write_text(job)
    return folder


def test_a_folder_is_measured_as_it_is(tmp_path):
    found = open_revision(str(package(tmp_path / "old", "0.0.7")), tmp_path / "work")
    assert found.path == (tmp_path / "old").resolve()
    assert found.fields == {"workload", "threads"}
    assert "0.0.7" in found.described


@pytest.mark.parametrize("inside", ["", "edgepeft", ".venv"])
def test_a_git_revision_is_unpacked_and_the_checkout_left_alone(tmp_path, monkeypatch, inside):
    work, place = tmp_path / "work", package(tmp_path / "repository", "0.0.8")
    work.mkdir()
    git = ["git", "-C", str(place), "-c", "user.name=n", "-c", "user.email=e@x"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "then"]):
        subprocess.run([*git, *command], check=True)
    (place / "edgepeft" / "__init__.py").write_text('__version__ = "0.0.9"\n')
    (place / inside).mkdir(exist_ok=True)
    monkeypatch.chdir(place / inside)
    found = open_revision("then", work)
    assert "0.0.8" in found.described
    assert found.path == work
    assert (place / "edgepeft" / "__init__.py").read_text() == '__version__ = "0.0.9"\n'


@pytest.mark.parametrize("asked", ["no-such-revision", "--help", "", "../nowhere"])
def test_what_is_no_version_is_a_usage_error(asked, tmp_path):
    with pytest.raises(UsageError, match="neither a git revision"):
        open_revision(asked, tmp_path)


def test_a_release_is_never_asked_of_a_package_index(tmp_path, monkeypatch):
    """The name is nobody's there: whoever takes it would be run here."""
    started = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **how: started.append(command) or run(command, **how))
    with pytest.raises(UsageError, match="pip install --no-deps --target FOLDER"):
        open_revision("0.1.0", tmp_path)
    assert {command[0] for command in started} == {"git"}


def test_a_version_without_a_worker_is_refused(tmp_path):
    place = package(tmp_path / "old", "0.0.1")
    (place / "edgepeft" / "bench" / "planning" / "job.py").unlink()
    with pytest.raises(UsageError, match="cannot be measured"):
        open_revision(str(place), tmp_path)


def test_a_worker_runs_the_version_that_was_asked_for_wherever_it_is_started(tmp_path, monkeypatch):
    from edgepeft.common.errors import EdgepeftError
    from edgepeft.device.placement import Limits

    place = package(tmp_path / "old", "0.0.1")
    (place / "edgepeft" / "bench" / "measuring" / "worker.py").write_text('raise SystemExit("the old worker")\n')
    monkeypatch.chdir(Path(edgepeft.__file__).parent.parent)  # a checkout in the current folder
    worker = WorkerProcess("w", Job("gemm", 1, package=str(place)), Limits())
    with worker, pytest.raises(EdgepeftError, match="the old worker"):
        worker.ready()


def test_launches_must_be_one_at_least():
    with ExitStack() as stack, pytest.raises(UsageError, match="--launches"):
        SideBySide.open("main", stack, launches=0)
