"""A profile measured on a board that is made of files and of arithmetic."""

from __future__ import annotations

import tomllib
from contextlib import contextmanager

import pytest
from boards import pi4, put

from edgepeft.bench import board_profile
from edgepeft.bench.measuring.sampler import Sample
from edgepeft.common.errors import UsageError
from edgepeft.device.profiles import load_profile, toml_of

# Seconds of a step on a board of 3 GFLOP/s a core, 2 GB/s of copies on one thread and 4 on four, 5 us an operator.
GEMM_FLOPS = 8 * 2 * 1024 * 768 * 3072
COPIED = 4 * 64 * 2**20


class Board:
    def __init__(self, root=None, throttle_at=None):
        self.root, self.throttle_at, self.steps, self.jobs = root, throttle_at, 0, []

    @contextmanager
    def __call__(self, label, job):
        self.jobs.append((job.workload, job.threads))
        yield Work(self, job)


class Work:
    def __init__(self, board, job):
        self.board, self.job = board, job

    def ready(self):
        pass

    def step(self, batch):
        self.board.steps += 1
        if self.board.steps == self.board.throttle_at:
            put(self.board.root, "sys/devices/platform/soc/soc:firmware/get_throttled", "40000")
        seconds = {
            "gemm": GEMM_FLOPS / (3e9 * self.job.threads),
            "copy": COPIED / (2e9 if self.job.threads == 1 else 4e9),
            "operators": 20 * (0.001 + (1010 if batch else 10) * 5e-6),
            "reference": 1.9,
        }[self.job.workload]
        return Sample(seconds, seconds)


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(board_profile, "usable_cores", lambda: 4)
    monkeypatch.setattr(board_profile.psutil, "cpu_percent", lambda interval: 3.0)


@pytest.fixture
def written(tmp_path, four_cores):
    def write(board):
        document, notes = board_profile.measured_profile("my-board", start=board, root=tmp_path)
        path = tmp_path / "my-board.toml"
        path.write_text(toml_of(document))
        return load_profile(path), notes

    return write


def test_what_was_measured_stands_in_the_file_with_its_source(written, tmp_path):
    profile, notes = written(Board(pi4(tmp_path)))
    value = {key: figure.value for key, figure in profile.figures.items()}
    assert value["gemm_one_core"] == pytest.approx(3.0, rel=1e-3)
    assert value["gemm_all_cores"] == pytest.approx(12.0, rel=1e-3)
    assert value["copy_one_thread"] == pytest.approx(2.0, rel=1e-3)
    assert value["copy_all_cores"] == pytest.approx(8.0, rel=1e-3)  # read and written
    assert value["operator_overhead"] == pytest.approx(5.0, rel=1e-3)
    assert (profile.cores.value, profile.isa.value) == (4, ("asimd", "crc32"))
    assert set(profile.isa.absent) == {"atomics", "asimddp", "asimdhp", "fphp"}
    assert all(
        figure.kind == "measured" and "measured by edgepeft" in figure.source for figure in profile.figures.values()
    )
    assert notes == []


def test_its_reference_is_what_calibration_on_other_hosts_will_run(written, tmp_path):
    profile, _ = written(Board(pi4(tmp_path)))
    assert profile.reference_seconds == pytest.approx(1.9)
    assert profile.reference.runtime == "onnxruntime"
    assert profile.reference.threads == 4


def test_the_board_is_recognised_by_the_profile_it_got(written, tmp_path):
    from edgepeft.device.profiles import is_this_board

    profile, _ = written(Board(pi4(tmp_path)))
    assert is_this_board(profile, tmp_path)


def test_a_board_that_throttled_gets_that_into_its_file(written, tmp_path):
    profile, notes = written(Board(pi4(tmp_path), throttle_at=4))
    assert notes == ["The board throttled in 1 of 35 samples (throttled); cooled, it is faster."]
    assert notes[0] in profile.about


def test_rates_measured_beside_other_programs_are_said_to_be_too_low(written, tmp_path, monkeypatch):
    monkeypatch.setattr(board_profile.psutil, "cpu_percent", lambda interval: 62.0)
    profile, notes = written(Board(pi4(tmp_path)))
    assert notes == ["Other programs kept the processors 62% busy when it began: the rates are too low."]
    assert notes[0] in profile.about


def test_a_small_board_gets_a_small_reference(written, tmp_path, monkeypatch):
    monkeypatch.setattr(board_profile, "memory_bytes", lambda *_: 512_000_000)
    profile, _ = written(Board(pi4(tmp_path)))
    assert profile.reference.n_layers == 6
    assert profile.memory_bytes == 512_000_000


def test_a_shipped_name_is_refused_before_anything_is_measured(tmp_path, four_cores):
    board = Board()
    with pytest.raises(UsageError, match="'rpi4' is shipped"):
        board_profile.measured_profile("rpi4", start=board, root=tmp_path)
    assert board.jobs == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["new"], "--measure"),
        (["new", "x"], "--measure"),
        (["new", "My Board", "--measure"], "small letters"),
        (["new", "../x", "--measure"], "small letters"),
        (["new", "x", "--measure", "--out", "x.json"], "is a .toml file"),
        (["rpi4", "x"], "profiles new NAME"),
        (["rpi4", "--measure"], "profiles new NAME"),
    ],
)
def test_wrong_uses_are_usage_errors(arguments, says):
    from verbs import edgepeft

    done = edgepeft("profiles", *arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())


def test_an_existing_file_is_not_replaced(tmp_path):
    from verbs import edgepeft

    path = tmp_path / "x.toml"
    path.write_text("mine")
    done = edgepeft("profiles", "new", "x", "--measure", "--out", path)
    assert (done.returncode, path.read_text()) == (2, "mine")


def test_this_machine_measured_for_real_can_be_used_as_a_profile(tmp_path, monkeypatch):
    monkeypatch.setattr(board_profile, "_ROUNDS", 1)
    monkeypatch.setattr(board_profile, "memory_bytes", lambda *_: 512_000_000)
    document, _ = board_profile.measured_profile("here")
    figures = {key: figure["value"] for key, figure in tomllib.loads(toml_of(document))["figures"].items()}
    assert 0.1 < figures["gemm_one_core"] < 2000
    assert 0.05 < figures["copy_one_thread"] < 500
    assert 0 <= figures["operator_overhead"] < 1000
