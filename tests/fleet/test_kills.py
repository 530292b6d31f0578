"""SIGKILL at a random moment of a pull: the bundle answers with the old or the new version, and the next pull ends the work."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from boards_of import all_of_it, answers, one_task
from kills import DONE, WRITING, run_child, wait

from edgepeft.bundle.bundle import TASKS_FOLDER
from edgepeft.bundle.manifest import Manifest
from edgepeft.bundle.versions import content_of
from edgepeft.fleet.pull import pull


def killed(change, published, retrained, folder, times, seed):
    """How many of so many kills hit a pull that was writing; every one is looked at."""
    repository = Path(shutil.copytree(published / "repository", folder / "repository"))
    keys = Path(shutil.copytree(published / "keys", folder / "keys"))
    new = answers(change(repository, keys, retrained))
    old, flags, draw = answers(published / "board"), mmap.mmap(-1, 2), random.Random(seed)
    duration, hits = None, 0
    for n in range(times + 1):
        board = Path(shutil.copytree(published / "board", folder / f"board-{n}", symlinks=True))
        before, began = Manifest.read(board), time.monotonic()
        process = run_child(
            lambda bundle, _: pull(str(repository), bundle, root=repository / "metadata" / "1.root.json") and None,
            board,
            repository,
            flags,
        )
        if duration is None:  # the first goes through, and is the measure of the others
            assert wait(process) == 0
            duration = time.monotonic() - began
            assert answers(board) == new
        else:
            time.sleep(draw.uniform(0, 1.2 * duration))
            os.kill(process, signal.SIGKILL)
            wait(process)
            hits += bool(flags[WRITING]) and not flags[DONE]
            now = Manifest.read(board)
            for task, entry in now.tasks.items():
                content_of(board / TASKS_FOLDER, task, entry)  # BundleError: missing or altered
            assert answers(board) == (old if now.tasks["mood"].sha256 == before.tasks["mood"].sha256 else new)
            if n % 2 == 0:
                pull(str(repository), board, root=repository / "metadata" / "1.root.json")
                assert answers(board) == new and list((board / ".fleet").glob("files/*")) == []
                assert [path.name for path in folder.glob(f".board-{n}*")] == []
        shutil.rmtree(board)
    return hits


@pytest.mark.parametrize("change", [one_task, all_of_it])
def test_a_killed_pull_leaves_the_old_version_or_the_new_one(change, published, retrained, tmp_path):
    killed(change, published, retrained, tmp_path, 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("change", [one_task, all_of_it])
def test_100_killed_pulls(change, published, retrained, tmp_path):
    hits = killed(change, published, retrained, tmp_path, 100, 1)
    assert hits > 20  # else the moments do not fall where files are written
    print(f"{change.__name__}: 100 kills, {hits} of them while files were written, nothing lost")
