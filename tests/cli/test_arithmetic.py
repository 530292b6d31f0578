"""What int8 and half precision cost on a Cortex-A72 is said where they are chosen, measured and run."""

from __future__ import annotations

import sys
from functools import partial

import pytest
from boards import PI4_CPUINFO, put
from deltas import TEXTS, random_delta, saved

from edgepeft.backbones.source import open_backbone
from edgepeft.cli._main import main
from edgepeft.device import machine
from edgepeft.training.exporting.bundle import export_bundle


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """(backbone's folder, delta's folder, a bundle of 8-bit weights with a half-precision delta)."""
    folder = tmp_path_factory.mktemp("small")
    backbone = open_backbone(str(tiny("bert", vocab_size=1100, mean=True)))
    delta = saved(random_delta(backbone, "lora", "mood"), folder / "delta")
    export_bundle(backbone, [delta], folder / "bundle", texts=TEXTS, weights="int8", delta_weights="fp16")
    return backbone.folder, delta, folder / "bundle"


@pytest.fixture
def said(monkeypatch, capsys):
    """Runs a verb in this process; what it wrote to standard error."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["edgepeft", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        return " ".join(capsys.readouterr().err.split())

    return run


@pytest.fixture
def on_a_pi_4(monkeypatch, tmp_path):
    put(tmp_path, "cpuinfo", PI4_CPUINFO)
    monkeypatch.setattr(machine, "missing_arithmetic", partial(machine.missing_arithmetic, proc=tmp_path))


def test_export_for_a_pi_4_says_what_int8_and_fp16_cost_there(made, said, tmp_path):
    backbone, delta, _ = made
    asked = ["export", "--backbone", backbone, "--delta", delta, "--out", tmp_path / "out", "--weights", "int8"]
    text = said(*asked, "--delta-weights", "fp16", "--profile", "rpi4")
    assert "int8 on rpi4: it has no dot product" in text
    assert "half precision on rpi4: it has no fp16 arithmetic" in text


def test_export_for_a_device_that_has_the_instructions_says_nothing(made, said, tmp_path):
    backbone, delta, _ = made
    asked = ["export", "--backbone", backbone, "--delta", delta, "--out", tmp_path / "out", "--weights", "int8"]
    assert "dot product" not in said(*asked, "--profile", "rpi5")


def test_running_such_a_bundle_on_a_pi_4_says_it(made, said, on_a_pi_4):
    text = said("run", made[2], "a fine film")
    assert "int8 on Cortex-A72" in text or "int8 on Raspberry Pi 4" in text
    assert "half precision on" in text


def test_running_it_elsewhere_says_nothing(made, said):
    assert "dot product" not in said("run", made[2], "a fine film")


def test_a_benchmark_under_the_profile_has_it_among_its_notes(made):
    from edgepeft.bench.run import run_benchmark
    from edgepeft.options.verbs import BenchOptions

    document = run_benchmark(
        BenchOptions(profile="rpi4", bundle=made[2], mode="predicted", batch_size=2, length=8)
    ).result.to_json()
    notes = " ".join(document["profile"]["notes"])
    assert "int8 on rpi4" in notes and "half precision on rpi4" in notes


def test_a_wheel_of_this_host_that_dies_on_the_profiles_device_is_named(made, monkeypatch):
    from edgepeft.bench.planning.target import open_subject
    from edgepeft.bench.result import conditions
    from edgepeft.device.profiles import load_profile

    monkeypatch.setattr(conditions, "versions", lambda: {"onnxruntime": "1.21.0"})
    subject = open_subject(made[2])
    notes = conditions.arithmetic_notes(load_profile("rpi4"), subject)
    assert any("onnxruntime 1.21.0 dies" in note and "rpi4" in note for note in notes)
    assert not any("dies" in note for note in conditions.arithmetic_notes(load_profile("rpi5"), subject))
