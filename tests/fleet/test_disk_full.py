"""A disk that fills while a board pulls: the old or the new version answers, and with room again the next pull ends the work.

Before it fetches anything a pull looks whether there is room; here the look is deceived, as by another program that
fills the disk meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter, namedtuple
from pathlib import Path

import pytest
from boards_of import all_of_it, answers, one_task

from edgepeft.bundle.bundle import TASKS_FOLDER
from edgepeft.bundle.manifest import Manifest
from edgepeft.bundle.versions import content_of
from edgepeft.common.errors import EdgepeftError
from edgepeft.fleet.pull import pull
from edgepeft.fleet.remote import State

PLENTY = namedtuple("usage", "total used free")(1 << 40, 0, 1 << 40)


def room(disk):
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


def filled(change, published, retrained, folder, disk, rooms, monkeypatch):
    """How each pull ended, for so many bytes of room in turn.

    ``refused`` with the old version, ``unnoted`` or ``done`` with the new one.
    """
    repository = Path(shutil.copytree(published / "repository", folder / "repository"))
    keys = Path(shutil.copytree(published / "keys", folder / "keys"))
    new, old = answers(change(repository, keys, retrained)), answers(published / "board")
    monkeypatch.setattr("shutil.disk_usage", lambda _: PLENTY)
    ended = []
    for left in rooms:
        board = Path(shutil.copytree(published / "board", disk / "board", symlinks=True))
        filling = disk / "filling"
        filling.write_bytes(bytes(max(0, room(disk) - left)))
        try:
            pull(str(repository), board, root=repository / "metadata" / "1.root.json")
        except EdgepeftError as error:
            assert "no space left" in str(error).lower(), error
            ended.append("unnoted" if "in force as published" in str(error) else "refused")
        else:
            ended.append("done")
        now = Manifest.read(board)
        for task, entry in now.tasks.items():
            content_of(board / TASKS_FOLDER, task, entry)  # BundleError: missing or altered
        assert answers(board) == (old if ended[-1] == "refused" else new)
        filling.unlink()
        pull(str(repository), board, root=repository / "metadata" / "1.root.json")
        assert answers(board) == new and list((board / ".fleet").glob("files/*")) == []
        assert [path.name for path in disk.iterdir()] == ["board"]
        shutil.rmtree(board)
    return ended


@pytest.mark.parametrize("change", [one_task, all_of_it])
def test_a_disk_that_fills_leaves_the_old_version_or_the_new_one(
    change, published, retrained, tmp_path, disk, monkeypatch
):
    rooms = (0, 60_000, 4_000_000)
    ended = filled(change, published, retrained, tmp_path, disk, rooms, monkeypatch)
    assert ended == ["refused", "refused", "done"]


@pytest.mark.slow
@pytest.mark.parametrize("change", [one_task, all_of_it])
def test_100_disks_that_fill(change, published, retrained, tmp_path, disk, monkeypatch):
    ended = filled(change, published, retrained, tmp_path, disk, range(0, 800_000, 8_000), monkeypatch)
    counts = Counter(ended)
    assert 10 < counts["refused"] < 100  # else the room does not end where files are written
    print(f"{change.__name__}: 100 full disks: {dict(counts)}, nothing lost")


def test_a_task_in_force_that_could_not_be_noted_is_noted_by_the_next_pull(fleet, board, retrained, monkeypatch):
    fleet.publish(retrained / "newer")
    write, wrote = State.write, []

    def full(state, work):
        wrote.append(work)
        if len(wrote) == 2:  # the first is before the commit
            raise EdgepeftError("no space left")
        write(state, work)

    monkeypatch.setattr(State, "write", full)
    with pytest.raises(EdgepeftError, match=r"mood: in force as published, but .* the next pull notes it"):
        fleet.pull(board)
    assert answers(board) == answers(retrained / "newer")
    assert fleet.pull(board).kept == {} and State.read(board / ".fleet", {}).pending == {}
