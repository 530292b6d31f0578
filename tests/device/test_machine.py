from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest
from boards import PI4_CPUINFO

from edgepeft.device import machine
from edgepeft.device.machine import cpu_quota, pick_cpus, thread_count, usable_cores

PC = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu sse4_2 avx2 fma smep nx\n"


def test_a_pi_names_its_board_and_its_core(tmp_path):
    (tmp_path / "cpuinfo").write_text(PI4_CPUINFO)
    assert machine.cpu_model(tmp_path) == "Raspberry Pi 4 Model B Rev 1.4, Cortex-A72"
    assert machine.isa_flags(tmp_path) == ("asimd", "crc32")


def test_a_pc_names_its_processor(tmp_path):
    (tmp_path / "cpuinfo").write_text(PC)
    assert machine.cpu_model(tmp_path) == "AMD EPYC 7B13"
    assert machine.isa_flags(tmp_path) == ("avx2", "fma", "sse4_2")


def test_a_host_without_cpuinfo_still_has_a_name(tmp_path):
    assert machine.cpu_model(tmp_path)


def test_memory_is_less_where_a_group_says_so(v2):
    (v2.own / "memory.max").write_text(str(64 << 20))
    assert machine.memory_bytes(v2.proc) == 64 << 20


def test_facts_are_json_and_name_the_installed_versions():
    facts = json.loads(json.dumps(machine.host_facts()))
    assert facts["versions"]["numpy"] == metadata.version("numpy")
    assert facts["cores"]["usable"] >= 1
    assert facts["memory_bytes"] > 1 << 27


def test_asking_for_versions_imports_neither_torch_nor_onnxruntime():
    code = (
        "import sys; from edgepeft.device import machine; from edgepeft.device import limited_process; from edgepeft.device import profiles; machine.host_facts();"
        "profiles.load_profile('rpi4');"
        "print([name for name in ('torch', 'transformers', 'onnxruntime', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("processor", "flags", "saturates"),
    [("x86_64", ("avx2",), True), ("x86_64", ("avx2", "avx512_vnni"), False), ("aarch64", ("asimd",), False)],
)
def test_8_bit_products_overflow_on_x86_without_vnni(monkeypatch, processor, flags, saturates):
    monkeypatch.setattr("platform.machine", lambda: processor)
    monkeypatch.setattr(machine, "isa_flags", lambda: flags)
    assert machine.saturates_in_8_bits() is saturates


def test_affinity_decides_not_the_number_of_processors():
    one = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{one}]); from edgepeft.device.machine import *; print(usable_cores())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_v1_quota_of_an_outer_group_counts(v1_proc, monkeypatch):
    proc, _ = v1_proc
    monkeypatch.setattr(machine, "affinity", lambda: tuple(range(8)))
    assert cpu_quota(proc) == 2.5
    assert usable_cores(proc) == 2  # a third thread would be throttled


def test_the_tightest_v1_quota_decides(v1_proc, monkeypatch):
    proc, group = v1_proc
    monkeypatch.setattr(machine, "affinity", lambda: tuple(range(8)))
    (group / "cpu.cfs_quota_us").write_text("30000")
    assert cpu_quota(proc) == 0.3
    assert usable_cores(proc) == 1


def test_a_v2_quota_counts(v2, monkeypatch):
    monkeypatch.setattr(machine, "affinity", lambda: tuple(range(8)))
    (v2.own / "cpu.max").write_text("max 100000")
    (v2.root / "cpu.max").write_text("300000 100000")
    assert cpu_quota(v2.proc) == 3.0
    assert usable_cores(v2.proc) == 3


@pytest.mark.parametrize("name", [b"Fotos_\xfc", "two\u2028lines".encode(), b"a\rb", b"a\x85b"])
def test_another_mount_may_have_a_name_of_any_bytes(v2, name):
    (v2.own / "cpu.max").write_text("150000 100000")
    mounts = v2.proc / "self" / "mountinfo"
    # The kernel escapes space, tab, newline and backslash, and nothing else (fs/proc_namespace.c).
    stick = b"77 1 8:17 / /media/pi/" + name + b" rw,nosuid - vfat /dev/sda1 rw\n"
    mounts.write_bytes(stick + mounts.read_bytes())
    assert cpu_quota(v2.proc) == 1.5


def test_the_own_group_may_have_a_name_of_any_bytes(v2):
    odd = v2.root / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    (odd / "cgroup.procs").write_text("")
    (odd / "cpu.max").write_text("50000 100000")
    (v2.proc / "self" / "cgroup").write_bytes(b"0::/caf\xe9\n")
    assert cpu_quota(v2.proc) == 0.5


def test_no_control_groups_means_no_quota(tmp_path):
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("profile", "usable", "threads"), [(4, 8, 4), (6, 2, 2), (None, 3, 3), (1, 1, 1)])
def test_threads_are_the_least_of_profile_affinity_and_quota(monkeypatch, tmp_path, profile, usable, threads):
    monkeypatch.setattr(machine, "affinity", lambda: tuple(range(usable)))
    assert thread_count(profile, tmp_path) == threads


def test_whole_cores_are_taken_before_hyper_threads(tmp_path):
    for cpu, siblings in enumerate(["0,4", "1,5", "2,6", "3,7"] * 2):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings)
    assert pick_cpus(4, range(8), tmp_path) == (0, 1, 2, 3)
    assert pick_cpus(2, [0, 4, 5], tmp_path) == (0, 5)
    assert pick_cpus(6, range(8), tmp_path) == (0, 1, 2, 3, 4, 5)


def test_siblings_may_be_written_as_a_range(tmp_path):
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3", "2-3"]):
        (tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(siblings)
    assert pick_cpus(2, range(4), tmp_path) == (0, 2)
