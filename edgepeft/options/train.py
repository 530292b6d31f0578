"""The options of ``edgepeft train``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

import typer
from pydantic import BeforeValidator, Field

from edgepeft.options.base import Folder, LearningOptions, MethodSettings, TorchThreads, settings_of

__all__ = ["METHOD", "TrainOptions", "TrainRequest"]

METHOD = "lora"  # of a task that names none: as good as full fine-tuning in docs/methods.md, and PEFT has it too


class TrainRequest(LearningOptions):
    """What makes a run what it is; a sweep's cells have the same."""

    backbone: Annotated[Folder, typer.Option(help="A folder in Hugging Face layout, a bundle, or a Hub name.")]
    format: Annotated[
        str | None,
        typer.Option(help="Sources and targets by name: glue:mrpc, superglue:cb, squad, compacter:mrpc, ..."),
    ] = None
    source: Annotated[
        str | None, typer.Option(help='What is read of a row: "summarize: {text}".', metavar="PATTERN")
    ] = None
    target: Annotated[str | None, typer.Option(help='What is written: "{summary}".', metavar="PATTERN")] = None
    field: Annotated[
        Mapping[str, str],
        BeforeValidator(partial(settings_of, option="--field", example="premise=sentence1")),
        typer.Option(help="The column of a field: premise=sentence1; may repeat.", metavar="FIELD=COLUMN"),
    ] = Field(default_factory=dict)
    task: Annotated[str, typer.Option(help="The task's name.")]
    method: Annotated[
        str | None, typer.Option(help=f"A PE method; `edgepeft methods` lists them. Default: {METHOD}.")
    ] = None
    set: MethodSettings = Field(default_factory=dict)
    lr: Annotated[float | None, typer.Option(help="Learning rate of the delta. Default: the method's.")] = None
    head_lr: Annotated[
        float | None, typer.Option(help="That of the head. Default: 0.02 on a mean of tokens, else as --lr.")
    ] = None
    batch_size: Annotated[int, typer.Option(help="Rows of a step.")] = 16
    max_length: Annotated[int | None, typer.Option(help="Tokens kept of a text or pair. Default: 128.")] = None
    long: Annotated[
        Literal["cut", "windows"] | None,
        typer.Option(help="Longer texts lose their ends, or are read in windows that overlap. Default: cut."),
    ] = None
    stride: Annotated[
        int | None, typer.Option(help="Tokens that two windows share. Default: a third of --max-length.")
    ] = None
    max_target_length: Annotated[
        int | None, typer.Option(help="Tokens of a text that is written, its end included. Default: 128.")
    ] = None
    regression: Annotated[bool, typer.Option("--regression", help="Short for --kind regression.")] = False
    seed: Annotated[int, typer.Option(help="Of the initial values, the order, the dropout, the few shots.")] = 0
    head: Annotated[str | None, typer.Option(help="Kind of head. Default: the backbone's own.")] = None
    curve: Annotated[bool, typer.Option("--curve", help="Train on 10, 20, 40 and 70 % of the rows too.")] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute; auto: a GPU where there is one.")
    ] = "auto"
    bf16: Annotated[bool, typer.Option("--bf16", help="A step's forward in bfloat16; what is trained is not.")] = False


class TrainOptions(TrainRequest):
    """A run, and where its delta goes."""

    threads: TorchThreads = None
    out: Annotated[Folder, typer.Option(help="The delta's folder, new.")]
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace a delta or an interrupted run in --out.")] = False
