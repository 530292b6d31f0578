"""Version 2 against a hierarchy of plain files that behaves like the kernel's where it matters."""

from __future__ import annotations

import os
import sys
from functools import partial

import pytest
from limited import run_limited

from edgepeft.common.errors import DoesNotFit
from edgepeft.device import placement
from edgepeft.device.limited_process import LimitedProcess
from edgepeft.device.placement import Limits, Unavailable

MIB = 1 << 20


@pytest.fixture
def backend(v2):
    return partial(placement.prepare_v2, proc=v2.proc)


def test_memory_swap_cores_and_quota_are_written_to_the_childs_group(v2, backend):
    limits = Limits(1, 100 * MIB, cpu_quota=0.5)
    with LimitedProcess(["cat"], limits, backends=[backend]) as process:
        (folder,) = (path for path in v2.own.iterdir() if path.is_dir())
        written = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "cpu.max")}
        assert written == {"memory.max": str(100 * MIB), "memory.swap.max": "0", "cpu.max": "50000 100000"}
        assert (folder / "cpuset.cpus").read_text() == str(min(os.sched_getaffinity(0)))
        assert (folder / "cgroup.procs").read_text() == str(process.popen.pid)
        assert process.in_force.backend == "cgroup v2"
        assert (process.in_force.emulation, process.in_force.memory_bytes) == ("full", 100 * MIB)
    assert v2.removed == [folder.name]


def test_a_tighter_limit_around_the_own_group_decides(v2, backend):
    (v2.own / "memory.max").write_text(str(64 * MIB))
    run = run_limited(["true"], Limits(1, 100 * MIB), backends=[backend])
    assert (run.in_force.memory_bytes, run.in_force.emulation) == (64 * MIB, "partial")


def test_a_size_that_is_not_whole_pages_is_still_exact(backend):
    run = run_limited(["true"], Limits(1, 100 * MIB + 7), backends=[backend])
    assert (run.in_force.memory_bytes, run.in_force.emulation) == (100 * MIB, "full")


def test_a_kill_for_memory_is_told_by_the_groups_events(v2, backend):
    with LimitedProcess(["cat"], Limits(1, 100 * MIB), backends=[backend]) as process:
        (folder,) = (path for path in v2.own.iterdir() if path.is_dir())
        (folder / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0")
        (folder / "memory.peak").write_text(str(100 * MIB))
        process.popen.kill()
        with pytest.raises(DoesNotFit, match="104857600 bytes"):
            process.raise_if_out_of_memory()
    assert process.oom_killed()
    assert process.peak_bytes() == 100 * MIB


def test_reaching_the_limit_without_a_kill_is_no_failure(v2, backend):
    with LimitedProcess(["cat"], Limits(1, 100 * MIB), backends=[backend]) as process:
        (folder,) = (path for path in v2.own.iterdir() if path.is_dir())
        (folder / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 0")
        process.raise_if_out_of_memory()


def test_processes_in_the_own_group_make_it_unavailable(v2, backend):
    v2.populated = True  # the kernel's no-internal-process rule: EBUSY
    with pytest.raises(Unavailable, match="busy"):
        backend(Limits(1, 100 * MIB), [0])
    assert [path for path in v2.own.iterdir() if path.is_dir()] == []


def test_controllers_that_are_enabled_already_are_not_enabled_again(v2, backend):
    (v2.own / "cgroup.subtree_control").write_text("memory cpuset cpu")
    v2.populated = True
    assert run_limited(["true"], Limits(1, 100 * MIB), backends=[backend]).in_force.emulation == "full"


def test_without_a_cpuset_controller_affinity_holds_the_cores(v2, backend):
    (v2.own / "cgroup.controllers").write_text("cpu memory pids")
    code = "import os; print(len(os.sched_getaffinity(0)))"
    run = run_limited([sys.executable, "-c", code], Limits(1, 100 * MIB), backends=[backend])
    assert (run.stdout.strip(), run.in_force.emulation) == (b"1", "full")


def test_without_a_memory_controller_it_is_unavailable(v2, backend):
    (v2.own / "cgroup.controllers").write_text("hugetlb")  # a hybrid host
    with pytest.raises(Unavailable, match="memory controller"):
        backend(Limits(1, 100 * MIB), [0])


def test_a_read_only_hierarchy_is_unavailable_and_leaves_nothing(v2, backend, monkeypatch):
    def refuse(own):
        raise PermissionError(13, "Permission denied", str(own))

    monkeypatch.setattr("edgepeft.device.cgroups.make_child", refuse)
    with pytest.raises(Unavailable, match="Permission denied"):
        backend(Limits(1, 100 * MIB), [0])


def test_without_cgroup_v2_it_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="not mounted"):
        placement.prepare_v2(Limits(1), [0], proc=tmp_path)


def test_a_group_is_removed_when_a_limit_cannot_be_written(v2, backend, monkeypatch):
    def write(path, value):
        if path.name == "memory.max":
            raise OSError(22, "Invalid argument", str(path))
        v2.write(path, value)

    monkeypatch.setattr("edgepeft.device.cgroups.write", write)
    with pytest.raises(Unavailable, match="Invalid argument"):
        backend(Limits(1, 100 * MIB), [0])
    assert [path for path in v2.own.iterdir() if path.is_dir()] == []
