"""What a board answers, what lies in its folder, and what is published for it to take up."""

from __future__ import annotations

import hashlib

from edgepeft.bundle.bundle import Bundle
from edgepeft.deploy.install import commit_tasks, prepare_exported
from edgepeft.fleet.publish import publish, withdraw
from edgepeft.runtime.runtime import Runtime

TEXTS = ["w5 w6 w7", "w9", "w20 w21 w22 w23"]


def answers(folder, task="mood"):
    with Runtime(folder, cache=False, threads=1) as runtime:
        return [(each.label, round(each.score, 5)) for each in runtime.predict(task, TEXTS)]


def tree(folder, but=".fleet"):
    """The hash of every file that answers may depend on."""
    files = [path for path in folder.rglob("*") if path.is_file() and but not in path.parts]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def tuned(board, source, task="mood"):
    """The board's own version of a task, in the way ``edgepeft tune`` puts it in force."""
    bundle = Bundle(board)
    commit_tasks(bundle, [prepare_exported(bundle, source / "tasks" / f"{task}.onnx")], replace=True)


def downloads(board):
    """What lies in the board's folder of downloads."""
    return sorted(path.name for path in (board / ".fleet" / "files").glob("*"))


def one_task(repository, keys, retrained):
    """Another version of one task is published; the bundle that boards come to."""
    publish(retrained / "newer", repository, keys)
    return retrained / "newer"


def all_of_it(repository, keys, retrained):
    """Another backbone with its tasks."""
    withdraw(repository, keys, ["pair", "score"])
    publish(retrained / "other", repository, keys)
    return retrained / "other"
