"""A disk that fills while a sweep runs, on one machine or where a cluster's runs come back to: it is said, and with room
again the same command ends the work."""

import os
import shutil

import pytest
from inline import inline

from edgepeft.common.errors import EdgepeftError
from edgepeft.sweep.cluster import _packed, _unpack
from edgepeft.sweep.local import CellRun
from edgepeft.sweep.plan import read_plan
from edgepeft.sweep.run import run_sweep, sweep_of
from edgepeft.sweep.table import document


def fill(disk, kilobytes):
    found = os.statvfs(disk)
    (filling := disk / "filling").write_bytes(bytes(max(0, found.f_bavail * found.f_frsize - 1024 * kilobytes)))
    return filling


def run(sweep):
    return run_sweep(sweep, inline, CellRun(sweep, sweep.cells[0]), watch=lambda _: None)


def test_a_sweep_says_that_its_disk_is_full_and_goes_on_with_room(plan, disk, tmp_path):
    read = read_plan(plan())
    whole = sweep_of(read, tmp_path / "whole")
    assert not run(whole)
    ended = []
    for kilobytes in (0, 8, 24, 48, 72, 100, 150, 200, 400, 4000):
        filling, sweep = fill(disk, kilobytes), sweep_of(read, disk / "sweep")
        try:
            failed = run(sweep)
        except EdgepeftError as error:
            failed = {"the sweep itself": str(error)}
        assert all("no space left" in why.lower() for why in failed.values()), failed
        ended.append(len(failed))
        filling.unlink()
        assert not run(sweep)
        assert document(sweep) == document(whole)  # with what the answers say beyond the cards
        shutil.rmtree(disk / "sweep")
    assert ended[-1] == 0 and len(set(ended)) > 2, ended


def test_a_run_that_comes_back_to_a_full_disk_leaves_what_was_there(done, disk):
    cell = done.cells[-1]
    packed = _packed(done.run(cell))
    (begun := disk / "runs" / cell.name).mkdir(parents=True)
    (begun / "checkpoint").touch()
    filling = fill(disk, len(packed) // 1024 // 2)
    with pytest.raises(EdgepeftError, match="no space left"):
        _unpack(packed, begun)
    assert [path.name for path in begun.parent.rglob("*")] == [cell.name, "checkpoint"]
    filling.unlink()
    _unpack(packed, begun)
    assert _packed(begun) != b"" and sorted(p.name for p in begun.iterdir()) == sorted(
        p.name for p in done.run(cell).iterdir()
    )
