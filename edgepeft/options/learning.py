"""The options of a run that learns, in PyTorch or on a board."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import PlainValidator, WithJsonSchema

from edgepeft.options.base import ROWS_HELP, ColumnOptions, GivenRows, Rows, TaskKind

__all__ = ["LearningOptions"]

_GivenOrShare = Annotated[
    Rows | float | None, PlainValidator(lambda given: given), WithJsonSchema({"type": ["string", "number", "null"]})
]
_SHARE = "a file, or a share of --data to hold out (0.2, 20%)"


class LearningOptions(ColumnOptions):
    """What a run learns from, and for how long."""

    data: Annotated[GivenRows, typer.Option(help=f"Rows to train on: {ROWS_HELP}.")]
    eval: Annotated[_GivenOrShare, typer.Option(help=f"Rows that choose the checkpoint: {_SHARE}. Default: 10%.")] = (
        None
    )
    test: Annotated[
        _GivenOrShare, typer.Option(help=f"Rows whose score is reported: {_SHARE}. Default: another 10%.")
    ] = None
    kind: TaskKind = None
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Go on without rows that cannot be used; without it all are named.")
    ] = False
    few_shot: Annotated[int | None, typer.Option(help="Train on N rows in all, stratified.")] = None
    balanced: Annotated[bool, typer.Option("--balanced", help="Weigh rows so that all labels weigh alike.")] = False
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows. Default: 3, or more up to 100 steps.")] = (
        None
    )
    steps: Annotated[int | None, typer.Option(help="Updates, instead of --epochs.")] = None
    patience: Annotated[int | None, typer.Option(help="Stop after N evaluations without a better score.")] = None
    metric: Annotated[
        str | None, typer.Option(help="accuracy, f1, f1:LABEL, matthews; pearson, spearman, pearson_spearman.")
    ] = None
