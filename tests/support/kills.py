"""SIGKILL at a random moment of add, remove, tune, sweep and cache building: afterwards all is whole, and the work can be done.

    python tests/support/kills.py --kills 250 [--operation NAME ...]

Moments are uniform over the operation's measured duration.  The share of kills inside the write window, between the first
opening of a file for writing and the end of the operation, is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import onnx
from subject import subject

from edgepeft.bundle.bundle import TASKS_FOLDER
from edgepeft.bundle.manifest import Manifest, TaskEntry
from edgepeft.bundle.versions import content_of, hashes

WRITING, DONE = 0, 1


def add(bundle: Path, spare: Path) -> None:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.deploy.install import commit_tasks, prepare_exported

    opened = Bundle(bundle)
    commit_tasks(opened, [prepare_exported(opened, spare / "tasks" / "mood.onnx")], replace=True)


def remove(bundle: Path, _: Path) -> None:
    from edgepeft.common.errors import UnknownName
    from edgepeft.deploy.install import remove_task

    with contextlib.suppress(UnknownName):  # an earlier try had done it
        remove_task(bundle, "mood")


def tune(bundle: Path, spare: Path) -> None:
    from edgepeft.options.verbs import TuneOptions
    from edgepeft.tuning.tune import tune_task

    given = {"bundle": bundle, "task": "mood", "data": spare / "rows.jsonl", "force": True, "threads": 1}
    tune_task(TuneOptions(**given, steps=12, batch_size=8, lr=0.02, head_lr=0.05, save_every=3))


def cache(bundle: Path, _: Path) -> None:
    from edgepeft.runtime.runtime import Runtime

    os.environ["EDGEPEFT_CACHE"] = str(bundle.parent / "cache")
    with Runtime(bundle, threads=1) as runtime:
        runtime.predict("score", ["w5 w6"])


def sweep(bundle: Path, spare: Path) -> None:
    import torch
    from inline import inline

    from edgepeft.sweep.local import CellRun
    from edgepeft.sweep.plan import read_plan
    from edgepeft.sweep.run import fold, run_sweep, sweep_of

    torch.set_num_threads(1)
    asked = sweep_of(read_plan(spare / "plan.toml"), bundle.parent / "sweep")
    if failed := run_sweep(asked, inline, CellRun(asked, asked.cells[0]), watch=lambda _: None):
        raise SystemExit(str(failed))
    fold(asked)


OPERATIONS: dict[str, Callable[[Path, Path], None]] = {
    "add": add,
    "remove": remove,
    "tune": tune,
    "sweep": sweep,
    "cache": cache,
}
PLAN = """
backbones = ["{backbone}"]
methods = ["linear", "lora:rank=2"]
seeds = [0, 1]
[rates]
"lora:rank=2" = [1e-3]
linear = ["1x"]
[train]
steps = 4
batch_size = 8
max_length = 16
[data.tone]
data = "rows.jsonl"
test = 0.25
"""


def run_child(operation: Callable[[Path, Path], None], bundle: Path, spare: Path, flags: mmap.mmap) -> int:
    """Fork, do it, and mark when the first file is opened for writing and when all is done; the child's id."""
    flags[:] = b"\0" * len(flags)
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        root = str(bundle.parent)

        def heard(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes and os.path.realpath(str(arguments[0])).startswith(
                root
            ):  # also what is open: /proc/self/fd/7/...
                flags[WRITING] = 1

        sys.addaudithook(heard)
        operation(bundle, spare)
        flags[DONE] = 1
        status = 0
    finally:
        os._exit(status)


def wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def check(name: str, bundle: Path, before: Manifest) -> str | None:
    """What is lost, if anything: each task that the manifest lists is whole and as it was, but the one that ``name`` works on.

    That one may be gone after ``remove``, and after ``add`` and ``tune`` be what comes after the one before.
    """
    now = Manifest.read(bundle)
    gone = {"mood"} if name == "remove" else set()
    lost = [task for task in before.tasks if task not in now.tasks and task not in gone]
    if lost:
        return f"lost: {lost}"
    replaced = {"mood"} if name in ("add", "tune") else set()
    for task, entry in now.tasks.items():
        if task not in before.tasks:
            return f"{task} is nobody's"
        if entry != before.tasks[task] and not (task in replaced and follows(entry, before.tasks[task])):
            return f"{task} changed"
        content_of(bundle / TASKS_FOLDER, task, entry)  # BundleError: missing or altered
        if entry.previous is not None:
            content_of(bundle / TASKS_FOLDER, task, entry.previous)
    return None


def check_sweep(found: Path, whole: Path, over: bool) -> str | None:
    """What is wrong with a sweep: what it says is done has its answers, and when it is ``over`` they are the undisturbed one's."""
    if not over and not (found / "sweep.json").is_file():
        return None  # it had not begun
    from edgepeft.sweep.folder import open_sweep

    here, there = open_sweep(found), open_sweep(whole)
    for cell in here.cells:
        if here.state(cell) != "done":
            if over:
                return f"{cell.name} is {here.state(cell)}"
            continue
        for ours, theirs in zip(here.answers(cell) or (), there.answers(cell) or (), strict=True):
            if not (ours == theirs).all():
                return f"{cell.name} gives other answers"
        if here.card(cell).trainable_parameters != there.card(cell).trainable_parameters:
            return f"{cell.name} is another module"
    return None


def left_behind(folder: Path) -> str | None:
    """What is neither the bundle's, nor a sweep's, nor the cache's."""
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    found = [name for name in names if "/." in f"/{name}" or name.endswith((".tmp", ".part"))]
    return f"left behind: {found}" if found else None


def follows(entry: TaskEntry, before: TaskEntry) -> bool:
    """Whether it is the same version, verified anew, or one that can be rolled back to it."""
    if hashes(entry) == hashes(before):
        return entry.previous == before.previous
    return entry.previous == before.model_copy(update={"previous": None})


def trial(
    name: str, sound: Path, spare: Path, folder: Path, delay: float | None, flags: mmap.mmap
) -> tuple[bool, str | None, float]:
    """One kill after ``delay`` seconds (None: let it end): inside the write window, what was found, seconds."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bundle = Path(shutil.copytree(sound, folder / "bundle"))
    before = Manifest.read(bundle)
    begin = time.monotonic()
    process = run_child(OPERATIONS[name], bundle, spare, flags)
    if delay is not None:
        time.sleep(delay)
        os.kill(process, signal.SIGKILL)
    code = wait(process)
    took = time.monotonic() - begin
    inside = bool(flags[WRITING]) and not flags[DONE]
    if delay is None and code:
        return inside, f"the operation itself failed with {code}", took
    try:
        problem = check(name, bundle, before)
        if name == "sweep":
            problem = problem or check_sweep(folder / "sweep", spare / "sweep", over=delay is None)
        if problem is None:
            before = Manifest.read(bundle)
            again = wait(run_child(OPERATIONS[name], bundle, spare, flags))
            problem = f"it cannot be done afterwards: exit {again}" if again else check(name, bundle, before)
            if name == "sweep":
                problem = problem or check_sweep(folder / "sweep", spare / "sweep", over=True)
            problem = problem or left_behind(folder)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return inside, problem, took


def prepare_spare(sound: Path) -> Path:
    """A second copy of the bundle, with another version of a task to be added, rows to tune on, and a sweep to be repeated."""
    spare = sound.parent / "spare"
    if not (spare / "rows.jsonl").is_file():
        shutil.rmtree(spare, ignore_errors=True)
        shutil.copytree(sound, spare)
        graph = onnx.load(spare / "tasks" / "mood.onnx")
        graph.doc_string = "another version"
        onnx.save(graph, spare / "tasks" / "mood.onnx")
        rows = [{"sentence1": f"w{20 + i} w{10 + i % 2}", "label": ("no", "yes")[i % 2]} for i in range(40)]
        (spare / "plan.toml").write_text(PLAN.format(backbone=sound.parent / "bert"))
        (spare / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if wait(run_child(sweep, spare / "bundle", spare, mmap.mmap(-1, 2))):
            raise SystemExit("the sweep itself failed")
    return spare


def main() -> None:
    """Prints one JSON document; exit 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=250)
    parser.add_argument("--operation", action="append", choices=OPERATIONS, help="only this one; may repeat")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    names = asked.operation or list(OPERATIONS)
    if asked.kills < len(names):
        parser.error(f"--kills: at least one for each of {len(names)} operations; found {asked.kills}")
    folder = (asked.folder or Path(tempfile.mkdtemp(prefix="edgepeft-kills."))).resolve()
    sound = subject(folder / "subject")
    spare = prepare_spare(sound)
    source, flags = random.Random(asked.seed), mmap.mmap(-1, 2)
    found: dict[str, Any] = {}
    for name in names:
        times = []
        for _ in range(3):
            _, problem, took = trial(name, sound, spare, folder / "trial", None, flags)
            if problem:
                raise SystemExit(f"{name}: {problem}")
            times.append(took)
        duration = median(times)
        kills = asked.kills // len(names)
        inside, problems = 0, []
        for _ in range(kills):
            within, problem, _ = trial(name, sound, spare, folder / "trial", source.uniform(0, duration), flags)
            inside += within
            problems += [problem] if problem else []
        found[name] = {
            "kills": kills,
            "duration_s": round(duration, 3),
            "inside_the_write_window": inside,
            "problems": problems,
        }
        print(f"{name}: {kills} kills, {inside} inside the write window, {len(problems)} problems", file=sys.stderr)
    lost = sum(len(each["problems"]) for each in found.values())
    total = sum(each["kills"] for each in found.values())
    inside = sum(each["inside_the_write_window"] for each in found.values())
    print(json.dumps({"kills": total, "share_inside_the_write_window": round(inside / total, 3), "problems": lost, "operations": found}, indent=2))  # fmt: skip
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
