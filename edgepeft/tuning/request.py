"""``edgepeft.tune``: a run as its options ask for it."""

from __future__ import annotations

from typing import Any

from edgepeft.common.progress import messages, shown_run
from edgepeft.data.parts import given_rows
from edgepeft.data.readers import source_of
from edgepeft.data.rows import Columns
from edgepeft.data.told import told
from edgepeft.data.training_loop.run import resumable
from edgepeft.options.base import function_of
from edgepeft.options.tune import TuneOptions
from edgepeft.tuning.target import Files, TuneSettings
from edgepeft.tuning.tune import TuneResult
from edgepeft.tuning.tune import tune as tune_task

__all__ = ["run", "tune"]


def run(options: TuneOptions) -> TuneResult:
    """Tune as the options say, with progress and notes on standard error."""
    if options.template is not None:  # a task that is there has its own kind
        options = told(options)
    numbers = TuneOptions.model_fields.keys() & TuneSettings.__dataclass_fields__.keys()
    asked: dict[str, Any] = {name: getattr(options, name) for name in numbers}
    settings = TuneSettings(**asked, learning_rate=options.lr, head_learning_rate=options.head_lr)
    held_out = given_rows("--eval", options.eval), given_rows("--test", options.test)
    files = Files(source_of(options.data), *held_out, Columns.of(options), skip_bad=options.skip_bad)
    with shown_run(options.task) as (watch, stop):
        return tune_task(
            options.bundle,
            options.task,
            files,
            settings,
            template=options.template,
            kind=options.kind,
            resume=options.resume,
            force=options.force,
            threads=options.threads,
            watch=watch,
            stop=stop,
            note=lambda line: messages().print(f"note: {line}"),
        )


@function_of(TuneOptions)
def tune(options: TuneOptions) -> TuneResult:
    """Fine-tune a task of a bundle with ONNX Runtime alone, and put the result in force in one step.

    Where no step beats what is there, the result's ``entry`` is None and the bundle stays as it is.

    Raises:
        UsageError: no such task or template, one that cannot be tuned, another run holds it or was interrupted.
        DataError: the rows cannot be used.
        Interrupted: Ctrl-C; ``resume=True`` continues.
    """
    with resumable():
        return run(options)
