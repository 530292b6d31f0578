"""Scopes against a stand-in for systemd-run that does what --scope does: a group, then exec."""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial

import psutil
import pytest
from limited import run_limited

from edgepeft.common.errors import DoesNotFit
from edgepeft.device import placement
from edgepeft.device.limited_process import LimitedProcess
from edgepeft.device.placement import Limits, Unavailable

MIB = 1 << 20
STAND_IN = """#!/bin/sh
printf '%s\\n' "$*" >> {log}
unit=none memory=max
while [ "$1" != -- ]; do
    case $1 in
        --unit=*) unit=${{1#--unit=}} ;;
        MemoryMax=*) memory=${{1#MemoryMax=}} ;;
    esac
    shift
done
shift
group={root}/$unit.scope
mkdir -p $group {proc}/$$
echo $$ > $group/cgroup.procs
echo $memory > $group/memory.max
echo 'oom_kill 0' > $group/memory.events
echo 7340032 > $group/memory.peak
echo "0::/$unit.scope" > {proc}/$$/cgroup
{extra}
exec "$@"
"""


@pytest.fixture
def systemd(v2, tmp_path, monkeypatch):
    """Install the stand-in; returns (prepare, log, function that rewrites it with an extra line)."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "log"

    def install(extra=""):
        script = folder / "systemd-run"
        script.write_text(STAND_IN.format(log=log, root=v2.root, proc=v2.proc, extra=extra))
        script.chmod(0o755)

    install()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return partial(placement.prepare_scope, proc=v2.proc, booted=tmp_path), log, install


def keepers(folder):
    """Keepers of scopes made by this test: nobody else's PATH starts in its folder."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() == ["cat"] and process.environ().get("PATH", "").startswith(str(folder)):
                found.add(process.pid)
    return found


def test_the_scope_is_asked_for_memory_swap_and_cores(systemd):
    prepare, log, _ = systemd
    run = run_limited(["true"], Limits(1, 100 * MIB), backends=[prepare])
    assert (run.in_force.backend, run.in_force.emulation) == ("systemd scope", "full")
    assert run.in_force.memory_bytes == 100 * MIB
    probe, real = log.read_text().splitlines()
    for command in (probe, real):
        for part in ("--scope", "MemoryMax=104857600", "MemorySwapMax=0", "AllowedCPUs=", "--no-ask-password"):
            assert part in command
        assert ("--user" in command) == (os.geteuid() != 0)


def test_the_counters_are_read_after_the_work_ended_and_then_the_scope_is_let_go(systemd, v2, tmp_path):
    prepare, _, _ = systemd
    with LimitedProcess(["true"], Limits(1, 100 * MIB), backends=[prepare]) as process:
        process.popen.wait()
        deadline = time.monotonic() + 10  # it may not have become `cat` yet
        while not keepers(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(keepers(tmp_path)) == 1  # what keeps a scope alive
        (group,) = (path for path in v2.root.glob("edgepeft-*.scope") if "probe" not in path.name)
        (group / "memory.events").write_text("oom_kill 2")
        with pytest.raises(DoesNotFit):
            process.raise_if_out_of_memory()
        assert process.peak_bytes() == 7340032
    gone_by = time.monotonic() + 5
    while keepers(tmp_path):
        assert time.monotonic() < gone_by
        time.sleep(0.02)


def test_the_work_finds_no_child_that_it_did_not_start(systemd):
    prepare, _, _ = systemd
    code = "import os\ntry: print(os.wait())\nexcept ChildProcessError: print('none')"
    run = run_limited(["python3", "-c", code], Limits(1, 100 * MIB), backends=[prepare])
    assert run.stdout.strip() == b"none"


def test_a_refusal_is_given_as_the_reason_and_the_next_way_is_taken(systemd):
    prepare, _, install = systemd
    install("echo 'Failed to connect to bus: No medium found' >&2; exit 1")
    run = run_limited(["true"], Limits(1, 100 * MIB), backends=[prepare, placement.prepare_rlimit])
    assert run.in_force.backend == "affinity and rlimit"
    assert any("Failed to connect to bus" in note for note in run.in_force.notes)


def test_a_launcher_that_the_scope_has_no_memory_for_does_not_fit(systemd):
    prepare, _, install = systemd
    install("case $unit in *probe) ;; *) kill -9 $$ ;; esac")  # what the kernel does; seen on systemd 252
    with pytest.raises(DoesNotFit, match="1048576 bytes"):
        run_limited(["true"], Limits(1, MIB), backends=[prepare, placement.prepare_rlimit])


def test_a_child_outside_the_scope_is_not_believed(systemd, v2):
    prepare, _, install = systemd
    install(f'echo "0::/work" > {v2.proc}/$$/cgroup')
    run = run_limited(["true"], Limits(1, 100 * MIB), backends=[prepare, placement.prepare_rlimit])
    assert run.in_force.backend == "affinity and rlimit"


def test_a_scope_that_ignored_the_memory_limit_is_only_partial(systemd):
    prepare, _, install = systemd
    install("echo max > $group/memory.max")
    run = run_limited(["true"], Limits(1, 100 * MIB), backends=[prepare])
    assert (run.in_force.memory_bytes, run.in_force.emulation) == (None, "partial")
    assert "memory is not limited" in run.in_force.notes


def test_without_systemd_as_init_it_is_unavailable(systemd, tmp_path):
    with pytest.raises(Unavailable, match="systemd does not run here"):
        placement.prepare_scope(Limits(1), [0], booted=tmp_path / "nothing")
