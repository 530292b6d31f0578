"""The options of ``edgepeft eval``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepeft.options.base import ROWS_HELP, ColumnOptions, Folder, GivenRows, NoCache, Threads, at_least

__all__ = ["EvalOptions"]


class EvalOptions(ColumnOptions):
    """A task of a bundle, and the labelled rows that it is scored on."""

    bundle: Annotated[Folder, typer.Argument(help="The bundle's folder.")]
    data: Annotated[GivenRows, typer.Option(help=f"Labelled rows: {ROWS_HELP}.")]
    task: Annotated[str, typer.Option(help="The task to score.")]
    metric: Annotated[
        str | None,
        typer.Option(
            help="accuracy, f1, matthews, pearson, ...; of text f1, exact_match, rouge_1, rouge_2, rouge_l, bleu, chrf."
        ),
    ] = None
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A column: its values' rows are scored each, as MNLI's matched and mismatched."
        ),
    ] = None
    question: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Columns that say which question a row answers: the share of questions whose rows are all right is "
            "shown too. Default: idx, where it numbers paragraph, question and answer (MultiRC).",
        ),
    ] = None
    out: Annotated[
        Folder | None,
        typer.Option(help="A folder for the confusion matrix, whole: confusion.csv, and with matplotlib a picture."),
    ] = None
    batch_size: Annotated[int, at_least(1), typer.Option(help="Rows that run together.")] = 32
    threads: Threads = None
    no_cache: NoCache = False
