"""Options that several verbs have: one meaning, one definition."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edgepeft.cli._output import messages
from edgepeft.common.errors import UsageError
from edgepeft.common.registry import names_of
from edgepeft.data.rows import SENTENCES, Columns

if TYPE_CHECKING:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.runtime.decoding import Decoding

SETTINGS_HELP = "A hyperparameter of the method: name=value; may repeat."

BundleFolder = Annotated[Path, typer.Argument(help="The bundle's folder.")]
Replace = Annotated[bool, typer.Option("--force", help="Replace an existing folder.")]
Threads = Annotated[int | None, typer.Option(min=1, help="At most as many as the host allows.")]
TorchThreads = Annotated[int | None, typer.Option("--threads", min=1, help="Default: the cores in force.")]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="A private copy of the weights for each task; nothing is kept on disk.")
]
MethodSettings = Annotated[list[str] | None, typer.Option("--set", help=SETTINGS_HELP, metavar="NAME=VALUE")]
Variant = Annotated[
    list[str] | None, typer.Option("--set", help="A variant of the device: memory=2GB.", metavar="NAME=VALUE")
]

# What is measured, or predicted.
Mode = Annotated[
    str,
    typer.Option(
        help="limits: the device's cores and memory at this host's speed; calibrated: its speed too; "
        "predicted: nothing runs. On the device itself the first two measure."
    ),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(help="For all; what does not fit is left out. Default: 600 of rounds, a workload."),
]

# What goes into a bundle.
Trainable = Annotated[
    bool, typer.Option("--trainable", help="Kept for older commands; every task can be tuned without it.")
]
DeltaWeights = Annotated[Literal["fp32", "fp16"], typer.Option(help="How the deltas are stored.")]
_SET = "the set of labels that has the true one in this share of rows"
Coverage = Annotated[
    float | None, typer.Option(metavar="SHARE", help=f"An answer is unsure unless it stands alone in {_SET}.")
]
Risk = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Of the answers that are not unsure, at most this share is to be wrong."),
]

# What rows are read from.
_FORMATS = "jsonl, json, csv, tsv, parquet or conll"
ROWS_HELP = f"{_FORMATS}, - for standard input, or a dataset's name or folder"
VerifyRows = Annotated[Path | None, typer.Option("--verify-data", help=f"Texts to verify on: {_FORMATS}.")]
TextColumn = Annotated[str | None, typer.Option(help="The column of texts. Default: sentence1.", metavar="NAME")]
PairColumn = Annotated[str | None, typer.Option(help="That of second texts. Default: sentence2.", metavar="NAME")]
LabelColumn = Annotated[str | None, typer.Option(help="That of labels. Default: label.", metavar="NAME")]
LabelSeparator = Annotated[
    str | None,
    typer.Option(help="What stands between labels, where several are one text, as in a table's cell.", metavar="TEXT"),
]

# How text is written.
Beams = Annotated[int | None, typer.Option(min=1, help="Texts that are followed at once. Default: 1, greedy.")]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of a text, at most. Default: 128.")]
LengthPenalty = Annotated[float | None, typer.Option(help="Above 1 beams favour long texts. Default: 1.")]
NoRepeatNgram = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="No N tokens stand twice in a text. Default: 0, any may.")
]

# What a run learns from, and for how long.
TrainRows = Annotated[Path, typer.Option("--data", help=f"Rows to train on: {ROWS_HELP}.")]
_SHARE = "a file, or a share of --data to hold out (0.2, 20%)"
EvalRows = Annotated[
    Path | None, typer.Option("--eval", help=f"Rows that choose the checkpoint: {_SHARE}. Default: 10%.")
]
TestRows = Annotated[
    Path | None, typer.Option("--test", help=f"Rows whose score is reported: {_SHARE}. Default: another 10%.")
]
Balanced = Annotated[bool, typer.Option("--balanced", help="Weigh rows so that all labels weigh alike.")]
FewShot = Annotated[int | None, typer.Option(help="Train on N rows in all, stratified.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the rows. Default: 3, or more up to 100 steps.")]
Steps = Annotated[int | None, typer.Option(help="Updates, instead of --epochs.")]
Patience = Annotated[int | None, typer.Option(help="Stop after N evaluations without a better score.")]
MetricName = Annotated[
    str | None, typer.Option(help="accuracy, f1, f1:LABEL, matthews; pearson, spearman, pearson_spearman.")
]


# How a task is posed as text.
FormatName = Annotated[
    str | None,
    typer.Option("--format", help="Sources and targets by name: glue:mrpc, superglue:cb, squad, compacter:mrpc, ..."),
]
SourcePattern = Annotated[
    str | None, typer.Option("--source", help='What is read of a row: "summarize: {text}".', metavar="PATTERN")
]
TargetPattern = Annotated[str | None, typer.Option("--target", help='What is written: "{summary}".', metavar="PATTERN")]
FieldColumns = Annotated[
    list[str] | None,
    typer.Option("--field", help="The column of a field: premise=sentence1; may repeat.", metavar="FIELD=COLUMN"),
]
_KINDS = ", ".join(names_of("edgepeft.tasks"))
TaskKind = Annotated[
    str | None,
    typer.Option("--kind", help=f"The kind of task: {_KINDS}. Default: by what is given."),
]


def settings_of(pairs: Iterable[str] | None, option: str = "--set", example: str = "rank=8") -> dict[str, str]:
    """``["rank=8"]`` -> ``{"rank": "8"}``."""
    pairs = list(pairs or ())
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"{option} {pair}: name=value is needed, for example {option} {example}.")
    return dict(pair.split("=", 1) for pair in pairs)


def note_trainable(trainable: bool) -> None:
    """Say of an option of earlier versions that it does nothing."""
    if trainable:
        messages().print("note: --trainable does nothing any more: every task can be tuned.")


def columns_of(data: Path | None, text: str | None, pair: str | None, label: str | None) -> Columns:
    """What the rows of ``--verify-data`` call their columns."""
    columns = Columns(text, pair, label)
    if data is None and columns != SENTENCES:
        raise UsageError("--text-column, --pair-column and --label-column are about --verify-data; give it too.")
    return columns


def decoding_of(bundle: Bundle, task: str | None, beams: int | None, max_new_tokens: int | None) -> Decoding:
    """How a task's texts are written, greedily if nothing is given."""
    from edgepeft.runtime.decoding import Decoding

    asked = {"beams": beams, "max_new_tokens": max_new_tokens}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if given and (task is None or not bundle.entry(task).writes):
        option = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{option} is for a task that writes text; --task names one that does.")
    return Decoding(**given)


def written(decoding: Decoding | None) -> str:
    """Behind the sizes of what is read."""
    if decoding is None:
        return ""
    beams = "" if decoding.beams == 1 else f" by {decoding.beams} beams"
    return f" and {decoding.max_new_tokens} written{beams}"


def rows_or_share(option: str, given: Path | None) -> Path | float | None:
    """A file of rows as it is; what reads as a number or a percentage, and is no file, is a share to hold out."""
    text = str(given)
    if given is None or not text.removesuffix("%").replace(".", "", 1).isdigit() or Path(text).exists():
        return given
    return share_of(option, text)


def share_of(option: str, text: str) -> float:
    """A fraction in [0, 1): ``5%`` and ``0.05`` are the same; a bare number of 1 or more is not guessed at."""
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise UsageError(f"{option} {text!r}: give a share such as 5% or 0.05, under 100%.")
    return value
