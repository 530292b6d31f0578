"""What may happen to limits while a program runs, and how exactly they hold: on this machine, really."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.device import cgroups, placement
from edgepeft.device.doctor import try_limits
from edgepeft.device.limited_process import LimitedProcess
from edgepeft.device.placement import Limits, Unavailable

MIB = 1 << 20
CGROUPS = {"v2": placement.prepare_v2, "v1": placement.prepare_v1}


@pytest.fixture(params=[*CGROUPS])
def cgroup(request):
    try:
        CGROUPS[request.param](Limits(1, 64 * MIB, 0.5), None).remove()
    except Unavailable as reason:
        pytest.skip(f"cgroup {request.param} cannot be used here: {reason}")
    return CGROUPS[request.param]


def limited(cgroup, **limits):
    given = {"cores": 1, "memory_bytes": 400 * MIB, "cpu_quota": 0.5, **limits}
    return LimitedProcess(["sleep", "60"], Limits(**given), backends=[cgroup])


def test_limits_that_still_hold_are_not_lost(cgroup):
    with limited(cgroup) as process:
        assert process.lost() is None


def test_a_quota_can_be_changed_while_the_program_runs(cgroup):
    with limited(cgroup) as process:
        assert process.change_quota(0.25) == 0.25
        assert process._placement.quota_in_force() == 0.25
        assert process.lost() is None


def test_a_quota_below_a_millisecond_is_refused_and_the_old_one_stays(cgroup):
    with limited(cgroup) as process:
        with pytest.raises(UsageError, match="1 ms in each 100 ms"):
            process.change_quota(0.009)
        assert process._placement.quota_in_force() == 0.5


def test_a_quota_without_control_groups_cannot_be_changed():
    with limited(placement.prepare_rlimit) as process, pytest.raises(EdgepeftError, match="no CPU quota"):
        process.change_quota(0.25)


def test_a_limit_that_somebody_changes_meanwhile_is_lost(cgroup):
    with limited(cgroup) as process:
        folder = _memory_folder(process)
        cgroups.write(next(folder.glob("memory.max")) if (folder / "memory.max").exists() else _v1(folder), 300 * MIB)
        assert "memory limit changed from 419430400 to 314572800" in process.lost()


def _v1(folder):
    return folder / "memory.limit_in_bytes"


def _memory_folder(process):
    placement = process._placement
    return placement.folders["memory"] if hasattr(placement, "folders") else placement.folder


def test_a_program_moved_out_of_its_group_has_lost_its_limits_and_the_end_is_clean(cgroup):
    with limited(cgroup) as process:
        pid, folder = process.popen.pid, _memory_folder(process)
        cgroups.write(folder.parent / "cgroup.procs", pid)
        folder.rmdir()  # a group that is removed under us
        assert "left its group" in process.lost()
    assert not psutil.pid_exists(pid)


def test_a_worker_whose_limits_were_lost_says_so(cgroup, monkeypatch):
    from edgepeft.bench.measuring.measure import WorkerProcess
    from edgepeft.bench.planning.job import Job

    with WorkerProcess("gemm", Job("gemm", 1), Limits(1, 2000 * MIB)) as worker:
        worker.ready()
        monkeypatch.setattr(worker._process, "lost", lambda: "the memory limit changed")
        worker.finish()
        assert worker.in_force.emulation == "partial"
        assert any("limits were lost: the memory limit changed" in note for note in worker.notes)


ORPHAN = """
import sys
from edgepeft.device.limited_process import LimitedProcess, Limits
process = LimitedProcess(["sleep", "60"], Limits(1, 400 << 20, 0.5))
print(process.popen.pid, flush=True)
process.popen.wait()
"""


def test_what_a_killed_run_left_is_removed_by_the_next_with_what_still_runs_in_it(cgroup):
    outer = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    inner = int(outer.stdout.readline())
    outer.kill()
    outer.wait()
    assert psutil.pid_exists(inner)
    left = [path for path in cgroups.leftovers() if f"-{outer.pid}-" in path.name]
    assert left
    with limited(cgroup):
        pass
    assert not any(path.exists() for path in left)
    gone_by = time.monotonic() + 5
    while psutil.pid_exists(inner) and psutil.Process(inner).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < gone_by
        time.sleep(0.02)


def test_a_group_of_another_process_namespace_is_left_alone_while_somebody_is_in_it(tmp_path):
    own = tmp_path
    dead = 2**22 + 17  # above the kernel's largest pid
    for name, inside in (
        (f"edgepeft-{dead}-99.ab", "123"),
        (f"edgepeft-{dead}-99.cd", ""),
        (f"edgepeft-{os.getpid()}-99.ef", ""),
    ):
        (own / name).mkdir()
        (own / name / "cgroup.procs").write_text(inside)
    assert [path.name for path in cgroups._left_in(own)] == [f"edgepeft-{dead}-99.cd"]


def test_the_tightest_quota_of_the_groups_around_decides(v1_proc):
    _, group = v1_proc
    quota_file = group / "cpu.cfs_quota_us"
    for own, decides in (("-1", 2.5), ("50000", 0.5), ("900000", 2.5)):
        quota_file.write_text(own)
        assert cgroups.tightest_quota(group) == decides


def test_in_version_2_too(v2):
    for around, own, decides in (
        ("max 100000", "max 100000", None),
        ("150000 100000", "max 100000", 1.5),
        ("max 100000", "2000 100000", 0.02),
    ):
        (v2.root / "cpu.max").write_text(around)
        (v2.own / "cpu.max").write_text(own)
        assert cgroups.tightest_quota(v2.own) == decides


@pytest.mark.slow
def test_limits_hold_as_exactly_as_promised(cgroup):
    """Memory within 1 %, cores as reported, CPU share within 2 % of the quota."""
    found = try_limits(backends=[cgroup])
    assert [one.what for one in found if not one.good] == []
    memory, *_, share = found
    assert abs(memory.seen / memory.asked - 1) <= 0.01
    assert abs(share.seen / share.asked - 1) <= 0.02
