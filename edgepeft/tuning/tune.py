"""``edgepeft tune``: from a bundle, a task and data to the task's next version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle
from edgepeft.bundle.manifest import Manifest, TaskEntry
from edgepeft.common.errors import UsageError
from edgepeft.common.task_name import check_task_name
from edgepeft.data.training_loop.checkpoint import latest
from edgepeft.data.training_loop.run import Progress, TrainingLoopResult
from edgepeft.deploy.install import commit_tasks, prepare_task
from edgepeft.tuning.claim import claim, discard
from edgepeft.tuning.options import TuneOptions
from edgepeft.tuning.run import TuningRun
from edgepeft.tuning.target import Files, TuningSubject, from_task, from_template

__all__ = ["TuneResult", "put_in_force", "tune"]


@dataclass(frozen=True)
class TuneResult:
    """The run, and the task's entry now; None where no step beat what was there, which then stays."""

    tuned: TrainingLoopResult
    entry: TaskEntry | None


def tune(
    folder: Path | str,
    task: str,
    files: Files | Path | str,
    options: TuneOptions | None = None,
    *,
    template: str | None = None,
    kind: str | None = None,
    resume: bool = False,
    force: bool = False,
    threads: int | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda _: None,
) -> TuneResult:
    """Tune a task, or start one from a template, and put the result in force in one step.

    Args:
        folder: the bundle's.
        task: one of the bundle, or with ``template`` a new one's name.
        files: rows in parts, or one file of labelled rows, of which two tenths are held out to choose and to report.
        options: numbers of the run.
        template: the bundle's template to start from.
        kind: of the task that is started; None is a classification.
        resume: continue the task's interrupted run.
        force: start anew in place of an interrupted run.
        threads: at most as many as the host allows; None takes those.
        watch: gets each progress.
        stop: whether to write a checkpoint and end; called after every step.
        note: gets sentences for people about how steps are computed.

    Raises:
        UsageError: no such task or template, one that cannot be tuned, another run holds it or was interrupted.
        DataError: the rows cannot be used.
        EdgepeftError: the loss is not finite; the bundle cannot be written.
        Interrupted: ``stop`` returned True; ``resume`` continues.
    """
    folder, options = Path(folder), options or TuneOptions()
    files = files if isinstance(files, Files) else Files(Path(files))
    check_task_name(task)
    if kind is not None and template is None:
        raise UsageError(f"--kind {kind} is of a task that is started; without --template, {task} is of its own kind.")
    Manifest.read(folder)  # that it is a bundle at all, before anything is made in it
    with claim(folder, task) as work:
        bundle = Bundle(folder)  # read under the lock: another run may just have replaced the task
        checkpoint = _checkpoint(work, task, resume=resume, force=force)
        subject = (
            from_task(bundle, task, files, options)
            if template is None
            # A run that was killed after its result was in force finds a task of its own.
            else from_template(bundle, task, template, files, options, kind=kind, new=checkpoint is None)
        )
        run = TuningRun(bundle, subject, options, work, threads=threads, watch=watch, stop=stop)
        for line in run.layout.notes:
            note(line)
        if checkpoint is not None:
            run.loop.resume(checkpoint)
        tuned = run.finish()
        check = run.engine.check()
        del run  # with its sessions
        entry = put_in_force(bundle, subject, tuned, check, watch) if tuned.improved else None
        discard(work)
    return TuneResult(tuned, entry)


def _checkpoint(work: Path, task: str, *, resume: bool, force: bool) -> Path | None:
    """The checkpoint to continue from, or None for a new run."""
    if resume and force:
        raise UsageError("--resume and --force exclude each other: continue the interrupted run, or start anew.")
    interrupted = latest(work)
    if resume and interrupted is None:
        raise UsageError(f"there is nothing to resume: no run of task {task} was interrupted. Leave --resume out.")
    if interrupted is not None and not (resume or force):
        raise UsageError(
            f"a run of task {task} was interrupted. Give --resume to continue it, or --force to start anew."
        )
    if force:
        for path in work.glob("*.safetensors"):
            path.unlink()
        return None
    return interrupted


def put_in_force(
    bundle: Bundle,
    subject: TuningSubject,
    tuned: TrainingLoopResult,
    check: bytes,
    watch: Callable[[Progress], None] = lambda _: None,
) -> TaskEntry:
    """Make a run's result the task's version, once it answers as ``check`` says; ``watch`` gets the phase commit.

    Raises:
        EdgepeftError: it does not, or the bundle cannot be written.
    """
    account = {name: getattr(tuned, name) for name in ("metrics", "training")}
    kind = subject.facts.kind
    begun = {name: kind.chosen[name] for name in kind.begun(0) if name in kind.chosen}
    account["chosen"] = {**begun, **tuned.chosen}
    graph = subject.with_tensors(tuned.tensors, **account)
    where = bundle.folder / TASKS_FOLDER / f"{subject.task}.onnx"
    content = graph.SerializeToString(deterministic=True)
    prepared = prepare_task(bundle, content, check, where, reference="training graph")
    watch(Progress("commit", 0, 1))
    return commit_tasks(bundle, [prepared], replace=True).task(subject.task)
