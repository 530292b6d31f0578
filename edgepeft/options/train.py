"""The options of ``edgepeft train``, and of ``edgepeft sweep``, which trains what a plan says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import AfterValidator, BeforeValidator, Field

from edgepeft.common.task_name import check_new_name
from edgepeft.options.base import (
    Count,
    Folder,
    HeadRate,
    LearningOptions,
    LearningRate,
    MethodSettings,
    Options,
    TaskKind,
    TorchThreads,
    TrainingLoopOptions,
    at_least,
    settings_of,
)

__all__ = ["METHOD", "SweepOptions", "TrainOptions", "TrainRequest", "TrainSettings"]

METHOD = "lora"  # of a task that names none: as good as full fine-tuning in docs/methods.md, and PEFT has it too


def _new_name(name: str) -> str:
    check_new_name(name)
    return name


class TrainInputs(LearningOptions):
    """The backbone, the method, and the rows with what is read of them."""

    backbone: Annotated[Folder, typer.Option(help="Folder in Hugging Face layout, bundle, GGUF file or Hub name.")]
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
    method: Annotated[
        str | None, typer.Option(help=f"A PE method; `edgepeft methods` lists them. Default: {METHOD}.")
    ] = None
    set: MethodSettings = Field(default_factory=dict)


class TrainSettings(TrainingLoopOptions):
    """A training loop's numbers, and what a new delta needs; its card keeps them."""

    task: Annotated[str, AfterValidator(_new_name), typer.Option(help="The task's name.")]
    kind: TaskKind = None
    lr: Annotated[LearningRate, typer.Option(help="Learning rate of the delta. Default: the method's.")] = None
    head_lr: Annotated[
        HeadRate, typer.Option(help="That of the head. Default: 0.02 on a mean of tokens, else as --lr.")
    ] = None
    batch_size: Annotated[int, at_least(1), typer.Option(help="Rows of a step.")] = 16
    max_length: Annotated[  # a token between two special ones
        int | None, at_least(3), typer.Option(help="Tokens kept of a text or pair. Default: 128.")
    ] = None
    long: Annotated[
        Literal["cut", "windows"] | None,
        typer.Option(help="Longer texts lose their ends, or are read in windows that overlap. Default: cut."),
    ] = None
    stride: Annotated[Count, typer.Option(help="Tokens two windows share. Default: a third of --max-length.")] = None
    max_target_length: Annotated[  # a token and the end
        int | None, at_least(2), typer.Option(help="Tokens of a written text, its end included. Default: 128.")
    ] = None
    regression: Annotated[bool, typer.Option("--regression", help="Short for --kind regression.")] = False
    head: Annotated[str | None, typer.Option(help="Kind of head. Default: the backbone's own.")] = None
    curve: Annotated[bool, typer.Option("--curve", help="Train on 10, 20, 40 and 70 % of the rows too.")] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Where to compute; auto: a GPU where there is one.")
    ] = "auto"
    bf16: Annotated[bool, typer.Option("--bf16", help="A step's forward in bfloat16; what is trained is not.")] = False

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked, but for what may differ."""
        kept = {*TrainSettings.model_fields} - {"curve", "device", "few_shot"}  # the card has the rows' own few_shot
        return self.model_dump(include=kept, by_alias=True)


class TrainRequest(TrainSettings, TrainInputs):
    """What makes a run what it is; a sweep's cells have the same."""


class TrainOptions(TrainRequest):
    """A run, and where its delta goes."""

    threads: TorchThreads = None
    out: Annotated[Folder, typer.Option(help="The delta's folder, new.")]
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run in --out.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace a delta or an interrupted run in --out.")] = False


class SweepOptions(Options):
    """A plan, the sweep's folder, and how its runs are computed and kept."""

    plan: Annotated[Path, typer.Argument(help="A plan in TOML; docs/sweeps.md shows one.", metavar="PLAN.toml")]
    out: Annotated[Path, typer.Option(help="The sweep's folder; one that is there goes on.")]
    workers: Annotated[Count, typer.Option(help="Runs at once. Default: one a GPU, or what --threads allows.")] = None
    threads: Annotated[int, at_least(1), typer.Option(help="Of each run; results are equal to the bit with one.")] = 1
    halve: Annotated[
        bool, typer.Option("--halve", help="Drop the worse half of a method's rates after 1/4 and 1/2 of the steps.")
    ] = False
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A cluster of Ray that computes the runs, or auto.")
    ] = None
    keep: Annotated[
        Literal["deltas", "cards", "results"],
        typer.Option(help="What stays of a run: its delta, its card and answers, or a line of results.jsonl."),
    ] = "deltas"
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, and compute none.")] = False
