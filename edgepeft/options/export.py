"""The options of ``edgepeft export``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from edgepeft.options.base import (
    Coverage,
    DeltaWeights,
    Folder,
    Folders,
    LabelColumn,
    Options,
    PairColumn,
    Replace,
    Risk,
    TextColumn,
    Trainable,
    VerifyRows,
)

__all__ = ["NO_BUNDLE", "ExportOptions"]

NO_BUNDLE = (
    "--to-peft and --to-adapterhub write one delta for these, no bundle: with --backbone, one --delta and --force."
)


class ExportOptions(Options):
    """A backbone, its deltas, and the bundle or another library's folder that is written of them."""

    backbone: Annotated[Folder, typer.Option(help="Folder in Hugging Face layout, GGUF file or Hub name.")]
    delta: Annotated[Folders, typer.Option(help="Folder that `edgepeft train` wrote; may repeat.")] = ()
    out: Annotated[Folder | None, typer.Option(help="The bundle's folder.")] = None
    verify_data: VerifyRows = None
    text_column: TextColumn = None
    pair_column: PairColumn = None
    label_column: LabelColumn = None
    trainable: Trainable = False
    template: Annotated[
        str | Sequence[str],
        typer.Option(metavar="METHOD[:NAME=VALUE,...]", help="An untrained delta to start tasks from; may repeat."),
    ] = ()
    to_peft: Annotated[
        Folder | None, typer.Option(help="Instead of a bundle, one delta of a method that PEFT has as its folder.")
    ] = None
    to_adapterhub: Annotated[
        Folder | None,
        typer.Option(help="Instead of a bundle, one delta of adapters, LoRA or a prompt as AdapterHub's folder."),
    ] = None
    weights: Annotated[
        Literal["fp32", "int8", "int4"], typer.Option(help="How the backbone is stored and multiplied.")
    ] = "fp32"
    delta_weights: DeltaWeights = "fp32"
    coverage: Coverage = None
    risk: Risk = None
    profile: Annotated[
        str | None, typer.Option(help="A device that the bundle is for: what smaller weights cost there is said.")
    ] = None
    force: Replace = False
