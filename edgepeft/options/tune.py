"""The options of ``edgepeft tune``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from edgepeft.options.base import (
    Count,
    Coverage,
    Folder,
    HeadRate,
    LearningOptions,
    LearningRate,
    Risk,
    Threads,
    TrainingLoopOptions,
    at_least,
)

__all__ = ["TuneOptions", "TuneSettings"]


class TuneInputs(LearningOptions):
    """A task of a bundle, or a template to start one from, and rows."""

    bundle: Annotated[Folder, typer.Argument(help="The bundle's folder.")]
    task: Annotated[str, typer.Option(help="The task to go on with; with --template, the new task's name.")]
    template: Annotated[str | None, typer.Option(help="Start a new task from this template of the bundle.")] = None


class TuneSettings(TrainingLoopOptions):
    """A training loop's numbers on a board; None means what the task or the metric says.

    ``prefix_cache`` and ``micro_batch`` (None: what fits ``memory`` and the ``profile``'s) change how a step is
    computed, and its result in the last digits only.  ``coverage`` or ``risk`` is what is guaranteed of a
    classification's answers; None keeps what the task has.
    """

    lr: Annotated[LearningRate, typer.Option(help="Learning rate of the delta. Default: as it was trained.")] = None
    head_lr: Annotated[HeadRate, typer.Option(help="That of the head. Default: as it was trained.")] = None
    weight_decay: Annotated[float, at_least(0), typer.Option(help="AdamW's, of every trained tensor.")] = 0.0
    batch_size: Annotated[Count, typer.Option(help="Rows of a step. Default: 16, or all if fewer.")] = None
    dropout: Annotated[bool, typer.Option("--dropout/--no-dropout", help="The head's, as it was exported.")] = True
    coverage: Coverage = None
    risk: Risk = None
    micro_batch: Annotated[Count, typer.Option(help="Rows computed at once. Default: what memory allows.")] = None
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Compute what lies below the trained modules once.")
    ] = True
    backward: Annotated[
        Literal["int8", "fp32"], typer.Option(help="How gradients pass a backbone's 8-bit weights.")
    ] = "int8"
    profile: Annotated[str | None, typer.Option(help="A device whose memory the run must fit.")] = None
    memory: Annotated[str | None, typer.Option(help="Memory the run must fit, such as 800MB or 1.5GiB.")] = None
    save_every: Annotated[int, at_least(1), typer.Option(help="Steps between checkpoints.")] = 20

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked."""
        left_out = {"profile", "memory", *(name for name in ("coverage", "risk") if getattr(self, name) is None)}
        return self.model_dump(include={*TuneSettings.model_fields} - left_out, by_alias=True)


class TuneOptions(TuneSettings, TuneInputs):
    """A run, and what becomes of an interrupted one."""

    threads: Threads = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run of the task.")] = False
    force: Annotated[bool, typer.Option("--force", help="Start anew in place of an interrupted run.")] = False
