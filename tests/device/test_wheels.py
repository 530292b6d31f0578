"""A Cortex-A72 has no LSE atomics, no dot product and no fp16 arithmetic."""

from __future__ import annotations

import pytest
from boards import PI4_CPUINFO, PI5_CPUINFO, pi4, put

from edgepeft.common.errors import EdgepeftError
from edgepeft.device import machine
from edgepeft.device.machine import board_name
from edgepeft.device.profiles import is_this_board, load_profile, profile_of_board


def installed(monkeypatch, **versions):
    monkeypatch.setattr(machine, "versions", lambda: versions)


@pytest.mark.parametrize(
    ("package", "version", "instead"),
    [
        ("onnxruntime", "1.21.0", "onnxruntime>=1.24.4,<1.28"),
        ("torch", "2.10.0", "torch<=2.9.1"),
        ("torch", "2.10.0+cpu", "torch<=2.9.1"),
    ],
)
def test_a_wheel_that_dies_on_a_cortex_a72_is_refused_by_name(tmp_path, monkeypatch, package, version, instead):
    put(tmp_path, "cpuinfo", PI4_CPUINFO)
    installed(monkeypatch, **{package: version})
    with pytest.raises(EdgepeftError) as caught:
        machine.refuse_bad_wheels(package, proc=tmp_path)
    said = str(caught.value)
    assert f"{package} {version.partition('+')[0]} dies" in said
    assert "Cortex-A72" in said and instead in said


@pytest.mark.parametrize("version", ["1.20.1", "1.22.0", "1.21.1", "1.31.0"])
def test_other_versions_are_let_pass(tmp_path, monkeypatch, version):
    put(tmp_path, "cpuinfo", PI4_CPUINFO)
    installed(monkeypatch, onnxruntime=version)
    machine.refuse_bad_wheels("onnxruntime", "torch", proc=tmp_path)


def test_on_a_processor_with_atomics_the_same_wheel_is_let_pass(tmp_path, monkeypatch):
    put(tmp_path, "cpuinfo", PI5_CPUINFO)
    installed(monkeypatch, onnxruntime="1.21.0", torch="2.10.0")
    machine.refuse_bad_wheels("onnxruntime", "torch", proc=tmp_path)


def test_a_pc_has_no_atomics_flag_and_is_let_pass(tmp_path, monkeypatch):
    put(tmp_path, "cpuinfo", "model name\t: AMD EPYC\nflags\t\t: sse4_2 avx2\n")
    installed(monkeypatch, onnxruntime="1.21.0")
    machine.refuse_bad_wheels("onnxruntime", proc=tmp_path)


def test_a_wheel_that_is_not_asked_for_does_not_stop_the_others(tmp_path, monkeypatch):
    put(tmp_path, "cpuinfo", PI4_CPUINFO)
    installed(monkeypatch, onnxruntime="1.24.0", torch="2.10.0")
    machine.refuse_bad_wheels("onnxruntime", proc=tmp_path)


def test_int8_on_a_pi_4_says_what_was_gained_there_and_with_what():
    (said,) = machine.missing_arithmetic(load_profile("rpi4"), weights="int8", fp16=False)
    assert "no dot product" in said
    # k2-fsa/sherpa: real-time factors 0.520 -> 0.386 and 0.685 -> 0.547 of 16.715 s
    assert "Whisper tiny.en 1.35x (8692 -> 6452 ms, onnxruntime, 4 threads)" in said
    assert "Whisper tiny.en 1.25x (11450 -> 9143 ms, onnxruntime, 1 thread)" in said
    assert "ncnn" not in said and "encoder" not in said


def test_int4_on_a_pi_4_says_that_only_its_size_is_known():
    (said,) = machine.missing_arithmetic(load_profile("rpi4"), weights="int4", fp16=False)
    assert "no dot product" in said and "must be measured there" in said and "x (" not in said


def test_where_onnx_runtimes_gain_is_not_known_that_of_others_is_said():
    rows = tuple(row for row in load_profile("rpi4").latencies if row.runtime != "onnxruntime")
    profile = load_profile("rpi4").model_copy(update={"latencies": rows})
    (said,) = machine.missing_arithmetic(profile, weights="int8", fp16=False)
    assert "ResNet-50 1.34x (263 -> 197 ms, ncnn, 4 threads)" in said  # Tencent/ncnn
    assert "MobileNet v1 2.48x (67.6 -> 27.3 ms, TFLite 2.7.1)" in said  # mlcommons v2.1
    assert "with ONNX Runtime nothing is known" in said


def test_half_precision_on_a_pi_4_saves_the_file_only():
    (said,) = machine.missing_arithmetic(load_profile("rpi4"), weights="fp32", fp16=True)
    assert "no fp16 arithmetic" in said and "neither time nor memory" in said


def test_float32_costs_nothing_extra():
    assert machine.missing_arithmetic(load_profile("rpi4"), weights="fp32", fp16=False) == []


def test_a_device_that_has_the_instructions_is_not_warned_about():
    assert machine.missing_arithmetic(load_profile("iphone11"), weights="int8", fp16=True) == []


@pytest.mark.parametrize(("cpuinfo", "n"), [(PI4_CPUINFO, 2), (PI5_CPUINFO, 0), ("flags\t: avx2\n", 0)])
def test_the_host_is_judged_by_its_own_cpuinfo(tmp_path, cpuinfo, n):
    put(tmp_path, "cpuinfo", cpuinfo)
    for weights in ("int8", "int4"):
        assert len(machine.missing_arithmetic(None, weights=weights, fp16=True, proc=tmp_path)) == n


def test_a_pi_4_is_recognised_and_its_profile_found(tmp_path):
    root = pi4(tmp_path)
    assert board_name(root) == "Raspberry Pi 4 Model B Rev 1.4"
    assert profile_of_board(root).name == "rpi4"
    assert not is_this_board(load_profile("iphone11"), root)


def test_without_a_device_tree_cpuinfo_names_the_board(tmp_path):
    put(tmp_path, "proc/cpuinfo", PI4_CPUINFO)
    assert board_name(tmp_path) == "Raspberry Pi 4 Model B Rev 1.4"


def test_a_pc_is_no_board(tmp_path):
    put(tmp_path, "proc/cpuinfo", "model name\t: AMD EPYC\n")
    assert board_name(tmp_path) is None
    assert profile_of_board(tmp_path) is None
