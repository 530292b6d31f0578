"""What holds for every way to limit: tried with those that work on this machine, really."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from limited import run_limited

from edgepeft.common.errors import DoesNotFit, EdgepeftError, UsageError
from edgepeft.device import cgroups, placement
from edgepeft.device.limited_process import LimitedProcess
from edgepeft.device.placement import Limits, Placement, Unavailable

MIB = 1 << 20
CGROUPS = {"v2": placement.prepare_v2, "v1": placement.prepare_v1}
ALLOCATE = "import sys; block = bytearray(int(sys.argv[1])); print(len(block))"
LOOK = (
    "import json, os, resource; print(json.dumps([len(os.sched_getaffinity(0)),"
    " resource.getrlimit(resource.RLIMIT_AS)[0], open('/proc/self/cgroup').read()]))"
)


def usable(prepare):
    try:
        prepare(Limits(1, 64 * MIB), None).remove()
    except Unavailable as reason:
        return str(reason)
    return None


def available(name):
    """A backend's ``prepare``; skips where the machine does not have it."""
    if name == "rlimit":
        return placement.prepare_rlimit
    if (reason := usable(CGROUPS[name])) is not None:
        pytest.skip(f"cgroup {name} cannot be used here: {reason}")
    return CGROUPS[name]


@pytest.fixture(params=[*CGROUPS, "rlimit"])
def backend(request):
    return available(request.param)


@pytest.fixture(params=[*CGROUPS])
def cgroup(request):
    return available(request.param)


def python(code, *arguments):
    return [sys.executable, "-c", code, *map(str, arguments)]


def groups_left(pid=None):
    """Groups named after a process, anywhere this process could have made them."""
    prefix = f"edgepeft-{pid or os.getpid()}-"
    return [folder for own in set(cgroups.groups_of().values()) for folder in own.glob(f"{prefix}*")]


def test_a_child_sees_one_core_when_one_was_asked(backend):
    run = run_limited(python(LOOK), Limits(cores=1, memory_bytes=1024 * MIB), backends=[backend])
    assert json.loads(run.stdout)[0] == 1 == run.in_force.cores


def test_within_its_memory_a_program_runs_as_ever(backend):
    run = run_limited(python(ALLOCATE, 50 * MIB), Limits(1, 400 * MIB), backends=[backend])
    assert (run.returncode, run.stdout.strip()) == (0, b"52428800")


def test_beyond_its_memory_a_program_does_not_fit_and_the_message_says_how_much_is_allowed(backend):
    with pytest.raises(DoesNotFit, match=r"157286400 bytes \(157 MB\).* more than that needed") as caught:
        run_limited(python(ALLOCATE, 400 * MIB), Limits(1, 150 * MIB), backends=[backend])
    assert caught.value.exit_code == 5


def test_a_limit_too_small_to_start_in_does_not_fit_either(backend):
    with pytest.raises(DoesNotFit, match="1048576 bytes"):
        run_limited(python("pass"), Limits(1, MIB), backends=[backend])


def test_a_program_that_fails_for_another_reason_keeps_its_status_and_words(backend):
    run = run_limited(python("import sys; sys.exit('broken')"), Limits(1, 400 * MIB), backends=[backend])
    assert (run.returncode, run.stderr.strip()) == (1, b"broken")


def test_a_program_killed_by_somebody_else_is_not_called_out_of_memory(backend):
    with LimitedProcess(python("input()"), Limits(1, 400 * MIB), backends=[backend]) as process:
        process.popen.kill()
        process.popen.wait()
        process.raise_if_out_of_memory()
        assert not process.oom_killed()


def test_input_and_output_pass_through(backend):
    run = run_limited(["cat"], Limits(1, 400 * MIB), input=b"x" * 300_000, backends=[backend])
    assert run.stdout == b"x" * 300_000


def test_the_environment_is_the_one_given(backend):
    code = "import os; print(os.environ.get('A'), os.environ.get('HOME'))"
    env = {"A": "1", "PATH": os.environ["PATH"]}
    assert run_limited(python(code), Limits(1), env=env, backends=[backend]).stdout.split() == [b"1", b"None"]


def test_a_segmentation_fault_within_ample_memory_is_not_called_out_of_memory(backend):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert run_limited(python(code), Limits(1, 400 * MIB), backends=[backend]).returncode == -11


def test_nothing_of_the_launcher_is_left_in_the_program(backend):
    code = "import os; print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))); print(os.getpid())"
    with LimitedProcess(python(code), Limits(1, 400 * MIB), text=True, backends=[backend]) as process:
        out, _ = process.popen.communicate()
        assert out.splitlines() == ["[0, 1, 2, 3]", str(process.popen.pid)]  # 3 is the listing's own


def test_a_program_that_does_not_exist_is_named(backend):
    with pytest.raises(UsageError, match="'no-such-program' cannot be started"):
        run_limited(["no-such-program"], Limits(1, 400 * MIB), backends=[backend])
    assert groups_left() == []


def test_a_program_still_running_when_the_block_is_left_is_stopped(backend):
    with LimitedProcess(["sleep", "60"], Limits(1, 400 * MIB), backends=[backend]) as process:
        pid = process.popen.pid
    assert not psutil.pid_exists(pid)
    assert groups_left() == []


def test_more_cores_than_the_host_has_are_clamped_and_said(backend):
    run = run_limited(python(LOOK), Limits(4096, 1024 * MIB), backends=[backend])
    assert json.loads(run.stdout)[0] == run.in_force.cores == len(os.sched_getaffinity(0))
    assert run.in_force.emulation == "partial"
    assert any("4096" in note and "clamped" in note for note in run.in_force.notes)


def test_more_memory_than_the_host_has_is_said(cgroup):
    run = run_limited(python("pass"), Limits(1, 1 << 49), backends=[cgroup])
    assert run.in_force.emulation == "partial"
    assert run.in_force.memory_bytes == psutil.virtual_memory().total
    assert any(str(1 << 49) in note for note in run.in_force.notes)


def test_control_groups_emulate_fully_what_the_host_can_hold(cgroup):
    run = run_limited(python(LOOK), Limits(1, 300 * MIB), backends=[cgroup])
    assert (run.in_force.emulation, run.in_force.memory_bytes) == ("full", 300 * MIB)
    assert f"edgepeft-{os.getpid()}-" in json.loads(run.stdout)[2]


def test_address_space_is_not_called_a_full_emulation_of_memory():
    run = run_limited(python(LOOK), Limits(1, 1024 * MIB), backends=[placement.prepare_rlimit])
    assert json.loads(run.stdout)[1] == 1024 * MIB == run.in_force.memory_bytes
    assert run.in_force.emulation == "partial"
    assert "RLIMIT_AS" in run.in_force.notes[0]


def test_the_peak_is_the_groups_own(cgroup):
    small = run_limited(python(ALLOCATE, 1 * MIB), Limits(1, 500 * MIB), backends=[cgroup]).peak_bytes
    large = run_limited(python(ALLOCATE, 200 * MIB), Limits(1, 500 * MIB), backends=[cgroup]).peak_bytes
    assert 190 * MIB < large - small < 230 * MIB


def test_counters_stay_readable_after_the_end(cgroup):
    with LimitedProcess(
        python(ALLOCATE, 300 * MIB), Limits(1, 100 * MIB), stderr=subprocess.DEVNULL, backends=[cgroup]
    ) as process:
        process.popen.wait()
    assert process.oom_killed()
    assert process.peak_bytes() == pytest.approx(100 * MIB, rel=0.05)


def test_a_grandchild_counts_and_is_stopped_too(cgroup):
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True)"
    run = LimitedProcess(python(code), Limits(1, 400 * MIB), text=True, backends=[cgroup])
    grandchild = int(run.popen.stdout.readline())
    run.popen.wait()
    assert psutil.pid_exists(grandchild)
    run.close()
    gone_by = time.monotonic() + 5
    while psutil.pid_exists(grandchild) and psutil.Process(grandchild).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < gone_by
        time.sleep(0.02)
    assert groups_left() == []


def test_a_quota_is_in_force_and_read_back(cgroup):
    run = run_limited(python("pass"), Limits(1, 400 * MIB, cpu_quota=0.5), backends=[cgroup])
    assert (run.in_force.cpu_quota, run.in_force.emulation) == (0.5, "full")


def test_a_quota_without_control_groups_is_reported_missing():
    run = run_limited(python("pass"), Limits(1, 400 * MIB, cpu_quota=0.5), backends=[placement.prepare_rlimit])
    assert run.in_force.cpu_quota is None
    assert any("quota" in note for note in run.in_force.notes)


def test_two_limited_processes_live_side_by_side(backend):
    limits = Limits(1, 400 * MIB)
    with (
        LimitedProcess(["cat"], limits, backends=[backend]) as one,
        LimitedProcess(["cat"], limits, backends=[backend]) as two,
    ):
        assert one.popen.communicate(b"1")[0] + two.popen.communicate(b"2")[0] == b"12"
    assert groups_left() == []


# Ctrl-C counts, even where a shell started the tests in the background and so ignores it.
INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from edgepeft.device.limited_process import LimitedProcess, Limits
with LimitedProcess(["sleep", "60"], Limits(1, 400 << 20)) as process:
    print(process.popen.pid, flush=True)
    process.popen.wait()
"""


def start_interruptible():
    outer = subprocess.Popen(python(INTERRUPTED), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return outer, int(outer.stdout.readline())


def test_ctrl_c_leaves_neither_group_nor_program():
    outer, inner = start_interruptible()
    outer.send_signal(2)
    outer.wait(10)
    assert not psutil.pid_exists(inner)
    assert groups_left(outer.pid) == []


def test_groups_of_a_parent_that_was_killed_outright_are_removed_by_the_next(cgroup):
    for _ in range(5):  # a test beside this one may be the next, and remove them first
        outer, inner = start_interruptible()
        outer.kill()
        outer.wait()
        psutil.Process(inner).kill()
        time.sleep(0.1)
        if left := groups_left(outer.pid):
            break
    assert left
    run_limited(["true"], Limits(1, 400 * MIB), backends=[cgroup])
    assert groups_left(outer.pid) == []


def test_the_own_group_is_left_as_it_was(cgroup):
    own = cgroups.groups_of().get("memory")
    if own is None:
        pytest.skip("version 2 has no memory.limit_in_bytes")
    before = (own / "memory.limit_in_bytes").read_text()
    run_limited(["true"], Limits(1, 400 * MIB), backends=[cgroup])
    assert (own / "memory.limit_in_bytes").read_text() == before


def test_when_a_backend_is_not_available_the_next_is_tried_and_the_reason_noted():
    def missing(limits, cpus):
        raise Unavailable("not on this machine")

    run = run_limited(python("pass"), Limits(1, 400 * MIB), backends=[missing, placement.prepare_rlimit])
    assert run.in_force.backend == "affinity and rlimit"
    assert any("not on this machine" in note for note in run.in_force.notes)


def test_a_backend_that_does_not_hold_is_given_up_before_the_work_starts(tmp_path):
    trace = tmp_path / "runs"

    class Leaky(Placement):
        def entered(self, report):
            raise Unavailable("read back wrong")

    command = python(f"open({str(trace)!r}, 'a').write('x')")
    run_limited(command, Limits(1), backends=[lambda limits, cpus: Leaky("leaky"), placement.prepare_rlimit])
    assert trace.read_text() == "x"


def test_no_backend_at_all_is_an_error():
    with pytest.raises(EdgepeftError, match="no way to limit"):
        run_limited(["true"], Limits(1), backends=[])


@pytest.mark.parametrize("bad", [{"cores": 0}, {"memory_bytes": 4}, {"cpu_quota": 0.0}, {"cpu_quota": float("nan")}])
def test_limits_that_nothing_can_run_under_are_refused(bad):
    with pytest.raises(UsageError):
        Limits(**bad)


def test_a_hard_limit_that_is_lower_is_read_back_not_assumed():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30));"
        "from edgepeft.device import placement; from edgepeft.device.limited_process import *;"
        "process = LimitedProcess(['true'], Limits(1, 4 << 30), backends=[placement.prepare_rlimit]);"
        "print(process.in_force.memory_bytes); process.close()"
    )
    done = subprocess.run(python(code), capture_output=True, text=True, check=True)
    assert int(done.stdout) == 2 << 30


def test_the_launcher_needs_the_standard_library_alone():
    source = Path(sys.modules["edgepeft.device.launcher"].__file__).read_text()
    assert "import edgepeft" not in source and "from edgepeft" not in source and "psutil" not in source


def test_a_program_is_waited_for_though_its_output_cannot_be_closed():
    process = LimitedProcess(
        python("input()"), Limits(1), backends=[placement.prepare_rlimit], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.popen.stdout.detach()
    process.close()
    assert process.popen.returncode == -9
