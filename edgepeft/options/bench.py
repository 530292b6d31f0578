"""The options of ``edgepeft bench``: what one scenario is asked to measure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import AfterValidator, BeforeValidator, Field

from edgepeft.options.base import Count, MaxSeconds, Mode, Options, settings_of

__all__ = ["BenchOptions"]

_Names = Annotated[tuple[str, ...], AfterValidator(lambda given: tuple(dict.fromkeys(given)))]  # each once


class BenchOptions(Options):
    """None stands for the scenario's value, an empty tuple for everything there is."""

    bundle: Annotated[
        Path | None, typer.Argument(help="A bundle; without one, random weights of --backbone.", show_default=False)
    ] = None
    profile: Annotated[str, typer.Option(help="The device whose cores and memory are in force.")]
    mode: Mode = "limits"
    engines: Annotated[_Names, typer.Option("--engine", help="onnxruntime or pytorch; may repeat. Default: both.")] = ()
    workloads: Annotated[_Names, typer.Option("--workload", help="infer or finetune; may repeat. Default: both.")] = ()
    tasks: Annotated[
        tuple[str, ...], typer.Option("--task", help="A task of the bundle; may repeat. Default: all.")
    ] = ()
    methods: Annotated[
        tuple[str, ...],
        typer.Option("--method", help="Tasks of that method; without a bundle, a fresh delta of it."),
    ] = ()
    settings: Annotated[
        Mapping[str, Any],
        BeforeValidator(settings_of),
        typer.Option("--set", help="memory=2GB of the profile, or --method's name=value; may repeat."),
    ] = Field(default_factory=dict)
    backbone: Annotated[
        str | None, typer.Option(help="A named architecture, with random weights. Default: roberta-base.")
    ] = None
    batch_size: Annotated[Count, typer.Option(help="Texts in a batch. Default: the scenario's 32.")] = None
    length: Annotated[Count, typer.Option(help="Every text has this many tokens. Default: 128.")] = None
    new_tokens: Annotated[Count, typer.Option(help="Tokens that tasks write of each text. Default: 32.")] = None
    lengths: Annotated[
        str | None, typer.Option(help="Real lengths: sst2, mrpc, rte, or a file (an integer a line, or TOML).")
    ] = None
    peers: Annotated[
        tuple[Path, ...],
        typer.Option("--peer", help="Another encoder as ONNX, measured in the same rounds; may repeat."),
    ] = ()
    rounds: Annotated[Count, typer.Option(help="Samples of each. Default: 30.")] = None
    max_seconds: MaxSeconds = None
    seed: Annotated[int, typer.Option(help="Of token ids, weights and the order within rounds.")] = 0
    scenario: str = "offline"  # the command line may name several
    cache: Annotated[
        bool,
        typer.Option(
            " /--no-cache",
            help="A private copy of the weights for each task; nothing is kept on disk.",
            show_default=False,
        ),
    ] = True
    timed: Annotated[
        bool,
        typer.Option(
            " /--deterministic",
            help="Count nodes, operations and bytes only; nothing is timed.",
            show_default=False,
        ),
    ] = True
    counted: bool = False  # also the figures that need no clock, as the command line always has them
    instructions: Annotated[
        bool, typer.Option("--instructions", help="Also count instructions on an emulated Cortex-A72 (needs QEMU).")
    ] = False
    profile_ops: Annotated[
        bool, typer.Option("--profile-ops", help="Also say where inference's time goes, by operator and layer.")
    ] = False
