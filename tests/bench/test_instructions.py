"""Counting under QEMU: what is missing is said; where an emulator is, counts repeat."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgepeft.bench import qemu
from edgepeft.bench.operators import count_instructions
from edgepeft.bench.planning.target import random_subject
from edgepeft.bench.qemu import MORE, ROOT_VARIABLE, Guest, find_guest
from edgepeft.bench.run import run_benchmark
from edgepeft.options.verbs import BenchOptions


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.setattr(qemu.shutil, "which", lambda name: f"/usr/bin/{name}")


def root(folder: Path, packages="usr/local/lib/python3.11/site-packages", python="usr/local/bin/python3.11") -> Path:
    (folder / packages / "onnxruntime").mkdir(parents=True)
    (folder / packages / "onnxruntime-1.26.0.dist-info").mkdir()
    (folder / python).parent.mkdir(parents=True, exist_ok=True)
    (folder / python).write_text("")
    return folder


@pytest.mark.parametrize("missing", ["qemu-aarch64", "cc"])
def test_a_program_that_is_missing_is_named(monkeypatch, missing):
    monkeypatch.setattr(qemu.shutil, "which", lambda name: None if name == missing else name)
    assert find_guest({}).startswith(f"{missing} is not installed")


def test_a_root_that_was_not_named_or_lacks_the_runtime_is_said(tools, tmp_path):
    assert ROOT_VARIABLE in find_guest({})
    assert "no onnxruntime" in find_guest({ROOT_VARIABLE: str(tmp_path)})


@pytest.mark.parametrize(
    ("packages", "python"),
    [
        ("usr/local/lib/python3.11/site-packages", "usr/local/bin/python3.11"),
        ("usr/lib/python3/dist-packages", "usr/bin/python3"),
        ("opt/edgepeft/lib/python3.11/site-packages", "usr/bin/python3.11"),
    ],
)
def test_python_is_found_where_distributions_and_images_have_it(tools, tmp_path, packages, python):
    found = find_guest({ROOT_VARIABLE: str(root(tmp_path, packages, python))})
    assert isinstance(found, Guest)
    assert found.python == tmp_path / python
    assert found.runtime == "1.26.0"


def test_packages_of_a_python_that_is_not_there_are_refused(tools, tmp_path):
    assert "no Python" in find_guest({ROOT_VARIABLE: str(root(tmp_path, python="usr/bin/python3.12"))})


class Counts(Guest):
    """An emulator with a start of a million instructions and a thousand for each answer."""

    def prepare(self, work):
        pass

    def count(self, work, script, arguments):
        folder, runs = arguments
        assert {"model.onnx", "inputs.npz", "model.safetensors"} <= {path.name for path in Path(folder).iterdir()}
        return 1_000_000 + 1000 * int(runs)


def test_an_inferences_instructions_are_what_more_of_them_add(tmp_path):
    subject = random_subject("all-MiniLM-L6-v2", tmp_path, methods=["bitfit"])
    entries = count_instructions(Counts(tmp_path, tmp_path, root(tmp_path / "r")), subject, [8, 8])
    assert [entry.values["instructions"] for entry in entries] == [1000.0, 1000.0]
    assert MORE > 1
    assert [entry.of.split(",")[0] for entry in entries] == ["backbone", "task bitfit"]


def test_without_an_emulator_the_rest_is_measured_and_the_reason_said(fake_start, monkeypatch):
    monkeypatch.setattr(qemu.shutil, "which", lambda name: None)
    request = BenchOptions(
        profile="rpi4",
        backbone="all-MiniLM-L6-v2",
        length=8,
        batch_size=1,
        timed=False,
        counted=True,
        instructions=True,
    )
    document = run_benchmark(request, start=fake_start()).result.to_json()
    assert "qemu-aarch64" in document["instructions_skipped"]
    assert document["metrics"]


@pytest.mark.slow
@pytest.mark.skipif(isinstance(find_guest(os.environ), str), reason=f"needs QEMU and {ROOT_VARIABLE}")
def test_counts_repeat_within_half_a_per_cent(tmp_path):
    subject, guest = random_subject("all-MiniLM-L6-v2", tmp_path), find_guest()
    one, two = (count_instructions(guest, subject, [8])[0].values["instructions"] for _ in range(2))
    assert abs(one / two - 1) < 0.005
    # 170 million multiplications and additions of 32 bits, at most 8 in an instruction.
    assert one > 170e6 / 8
