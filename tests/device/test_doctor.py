from __future__ import annotations

import json
import os

import pytest
from boards import PI4_CPUINFO, pi4, put
from verbs import edgepeft

from edgepeft.device import cgroups, doctor


def by_check(root):
    found = {}
    for one in doctor.findings(root):
        found.setdefault(one.check, []).append(one)
    return found


def test_a_known_bad_wheel_is_bad_and_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.machine, "versions", lambda: {"onnxruntime": "1.21.0"})
    (finding,) = by_check(pi4(tmp_path))["wheels"]
    assert finding.status == "bad"
    assert "onnxruntime>=1.24.4" in finding.found


def test_a_pi_4_is_told_what_its_arithmetic_lacks(tmp_path):
    found = by_check(pi4(tmp_path))
    assert "rpi4" in found["board"][0].found
    assert [one.status for one in found["arithmetic"]] == ["note", "note"]


def test_a_board_that_throttles_is_warned_about(tmp_path):
    (finding,) = by_check(pi4(tmp_path, throttled="50005", temperature=84.0))["condition"]
    assert finding.status == "warning"
    assert "84 C" in finding.found and "under-voltage, throttled" in finding.found


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_more_threads_than_cores_is_a_warning_that_names_the_variable(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "4097")
    found = by_check(tmp_path)["threads"]
    assert any(one.status == "warning" and f"{name}=4097" in one.found for one in found)


def test_the_tokenizers_threads_are_told_unless_they_are_off(tmp_path, monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    assert "threads of its own" in by_check(tmp_path)["threads"][-1].found
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert by_check(tmp_path)["threads"][-1].status == "ok"


def test_a_host_without_control_groups_is_told_what_limits_fall_back_to(tmp_path, monkeypatch):
    monkeypatch.setattr("edgepeft.device.placement.BOOTED", tmp_path / "nowhere")
    put(tmp_path, "proc/cpuinfo", PI4_CPUINFO)
    (finding,) = by_check(tmp_path)["control groups"]
    assert finding.status == "warning"
    assert "affinity and address space" in finding.found


def test_limits_around_this_process_are_told(v2):
    put(v2.root, "cgroup.procs", "")
    (v2.own / "cpu.max").write_text("150000 100000")
    (v2.own / "memory.max").write_text(str(64 << 20))
    (finding,) = by_check(v2.proc.parent)["limits in force"]
    assert "1.5 cores' time" in finding.found and "67,108,864 of" in finding.found


def test_an_unwritable_cache_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (finding,) = by_check(tmp_path)["cache"]
    assert (finding.status, "EDGEPEFT_CACHE" in finding.advice) == ("warning", True)


def test_a_check_that_fails_itself_is_a_finding_and_the_others_go_on(tmp_path, monkeypatch):
    def broken(root):
        raise OSError("no such device")
        yield

    monkeypatch.setattr(doctor, "_CHECKS", (broken, *doctor._CHECKS))
    found = doctor.findings(tmp_path)
    assert (found[0].status, "no such device" in found[0].found) == ("warning", True)
    assert len(found) > 5


def test_looking_for_rights_leaves_no_group_behind(tmp_path):
    doctor.findings()
    left = [str(path) for own in set(cgroups.groups_of().values()) for path in own.glob(f"edgepeft-{os.getpid()}-*")]
    assert left == []


def test_the_verb_prints_one_json_document():
    done = edgepeft("doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["findings"]
    assert {"processor", "wheels", "control groups", "threads", "cache", "memory", "disk"} <= {
        one["check"] for one in found
    }


def test_a_bad_wheel_exits_1_through_the_verb(tmp_path, monkeypatch, capsys):
    import sys

    from edgepeft.cli._main import main

    monkeypatch.setattr(doctor, "ROOT", pi4(tmp_path))
    monkeypatch.setattr(doctor.machine, "versions", lambda: {"onnxruntime": "1.21.0"})
    monkeypatch.setattr(doctor.findings, "__defaults__", (pi4(tmp_path),))
    monkeypatch.setattr(sys, "argv", ["edgepeft", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "onnxruntime 1.21.0 dies" in capsys.readouterr().err


def test_the_doctor_itself_needs_no_wheel_that_may_be_bad():
    import subprocess
    import sys

    code = (
        "import sys; from edgepeft.cli import doctor; from edgepeft.device.doctor import findings; findings();"
        "print([name for name in ('torch', 'onnxruntime', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_opening_the_runtime_with_a_bad_wheel_is_refused_before_it_is_imported(tmp_path):
    """As a subprocess, whose /proc/cpuinfo and package versions are a Pi's: no import, no crash, the name in the message."""
    import subprocess
    import sys

    put(tmp_path, "cpuinfo", PI4_CPUINFO)
    code = (
        "import sys; from pathlib import Path; from edgepeft.device import machine, cgroups;"
        f"machine.refuse_bad_wheels.__kwdefaults__['proc'] = Path({str(tmp_path)!r});"
        "machine.versions = lambda: {'onnxruntime': '1.21.0'}\n"
        "try:\n    import edgepeft.runtime.session\n"
        "except Exception as error:\n    print(error, 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "onnxruntime 1.21.0 dies" in done.stdout
    assert done.stdout.strip().endswith("False")
