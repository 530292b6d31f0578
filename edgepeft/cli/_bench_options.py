"""The options of ``edgepeft bench``, each with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BundleArgument = Annotated[
    Path | None, typer.Argument(help="A bundle; without one, random weights of --backbone.", show_default=False)
]
ProfileName = Annotated[str, typer.Option(help="The device whose cores and memory are in force.")]
Mode = Annotated[
    str,
    typer.Option(
        help="limits: the device's cores and memory at this host's speed; calibrated: its speed too; "
        "predicted: nothing runs. On the device itself the first two measure."
    ),
]
Engines = Annotated[list[str] | None, typer.Option(help="onnxruntime or pytorch; may repeat. Default: both.")]
Workloads = Annotated[list[str] | None, typer.Option(help="infer or finetune; may repeat. Default: both.")]
TaskNames = Annotated[list[str] | None, typer.Option(help="A task of the bundle; may repeat. Default: all.")]
Methods = Annotated[list[str] | None, typer.Option(help="Tasks of that method; without a bundle, a fresh delta of it.")]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", help="memory=2GB of the profile, or --method's name=value; may repeat.")
]
BackboneName = Annotated[
    str | None, typer.Option(help="A named architecture, with random weights. Default: roberta-base.")
]
BatchSize = Annotated[int | None, typer.Option(help="Texts in a batch. Default: the scenario's 32.")]
Length = Annotated[int | None, typer.Option(help="Every text has this many tokens. Default: 128.")]
NewTokens = Annotated[int | None, typer.Option(help="Tokens that tasks write of each text. Default: 32.")]
LengthsSource = Annotated[
    str | None, typer.Option(help="Real lengths: sst2, mrpc, rte, or a file (an integer a line, or TOML).")
]
Peers = Annotated[
    list[Path] | None, typer.Option(help="Another encoder as ONNX, measured in the same rounds; may repeat.")
]
Scenarios = Annotated[
    list[str] | None, typer.Option(help="How work arrives, or a TOML file; may repeat. Default: offline.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Keep what an interrupted run wrote to --json, measure the rest.")
]
Rounds = Annotated[int | None, typer.Option(help="Samples of each. Default: 30.")]
MaxSeconds = Annotated[
    float | None,
    typer.Option(help="For all; what does not fit is left out. Default: 600 of rounds, a workload."),
]
Seed = Annotated[int, typer.Option(help="Of token ids, weights and the order within rounds.")]
Against = Annotated[
    str | None, typer.Option(help="A git revision, a release, or a folder with edgepeft: measured in the same rounds.")
]
MaxRegression = Annotated[str | None, typer.Option(help="With --against: the smallest loss that matters. Default: 5%.")]
Launches = Annotated[
    int | None, typer.Option(help="With --against: how often every process is started anew. Default: 2.")
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Count nodes, operations and bytes only; nothing is timed.")
]
Instructions = Annotated[
    bool, typer.Option("--instructions", help="Also count instructions on an emulated Cortex-A72 (needs QEMU).")
]
ProfileOps = Annotated[
    bool, typer.Option("--profile-ops", help="Also say where inference's time goes, by operator and layer.")
]
JsonFile = Annotated[str | None, typer.Option(help="Write the result there; - is standard output.")]
