"""The options of ``edgepeft tune``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from edgepeft.options.base import Coverage, Folder, LearningOptions, Risk, Threads

__all__ = ["TuneOptions"]


class TuneOptions(LearningOptions):
    """A task of a bundle, or a template to start one from; rows; the numbers of the run."""

    bundle: Annotated[Folder, typer.Argument(help="The bundle's folder.")]
    task: Annotated[str, typer.Option(help="The task to go on with; with --template, the new task's name.")]
    template: Annotated[str | None, typer.Option(help="Start a new task from this template of the bundle.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate of the delta. Default: as it was trained.")] = None
    head_lr: Annotated[float | None, typer.Option(help="That of the head. Default: as it was trained.")] = None
    weight_decay: Annotated[float, typer.Option(help="AdamW's, of every trained tensor.")] = 0.0
    batch_size: Annotated[int | None, typer.Option(help="Rows of a step. Default: 16, or all if fewer.")] = None
    dropout: Annotated[bool, typer.Option("--dropout/--no-dropout", help="The head's, as it was exported.")] = True
    coverage: Coverage = None
    risk: Risk = None
    seed: Annotated[int, typer.Option(help="Of a new head, the order, the dropout, the few shots.")] = 0
    micro_batch: Annotated[int | None, typer.Option(help="Rows computed at once. Default: what memory allows.")] = None
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Compute what lies below the trained modules once.")
    ] = True
    backward: Annotated[
        Literal["int8", "fp32"], typer.Option(help="How gradients pass a backbone's 8-bit weights.")
    ] = "int8"
    profile: Annotated[str | None, typer.Option(help="A device whose memory the run must fit.")] = None
    memory: Annotated[str | None, typer.Option(help="Memory the run must fit, such as 800MB or 1.5GiB.")] = None
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 20
    threads: Threads = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run of the task.")] = False
    force: Annotated[bool, typer.Option("--force", help="Start anew in place of an interrupted run.")] = False
