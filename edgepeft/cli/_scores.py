"""What the verbs that learn and score share: notes on a result, a stop that leaves a checkpoint, a sweep's bars.

`eval` and `train` show a result in 80 columns: figures, classes, confusion, certainty, rows to look at.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from edgepeft.cli._output import INTERRUPTED, plain_table, table_console
from edgepeft.common.messages import counted, first_of, printable
from edgepeft.common.progress import about, bars, say
from edgepeft.data import by_class

if TYPE_CHECKING:
    from edgepeft.data.training_loop.run import TrainingLoopResult
    from edgepeft.sweep.folder import Sweep
    from edgepeft.sweep.local import Ended, Moved

_MAX_CLASSES = 30  # in a table on the terminal: ten thousand would scroll the score out of sight
_MAX_MISTAKES = 10
SCORES_WIDTH = 80  # where standard output is a file
_DOUBTED = (
    "By confident learning: the answer is another, and a label other than theirs is at least as probable as it is, in "
    "the mean, for the rows that have it."
)
_METHODS = {"wilson": "Wilson's", "bootstrap": "the percentile bootstrap of rows"}
_HIGHER = 3  # times the rate: at ten times it LoRA and Compacter lose 5 to 78 points (docs/methods.md)


def show_headline(found: Sequence[Mapping[str, Any]], baselines: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures with their intervals and the baselines beside them, and what they are."""
    how = "; ".join(f"{by_class.metric_title(each['metric'])}: {each['averaged']}" for each in found)
    methods = [name for key, name in _METHODS.items() if any(each["interval"] == key for each in found)]
    by = f". Intervals: {' and '.join(methods)}." if methods else "."
    _print(_table(by_class.headline_rows(found, baselines)), Text(f"{how}{by}", style="dim"))


def show_errors(errors: Mapping[str, Any], folder: str | None = None) -> None:
    """Print where answers are wrong; ``folder`` is where a confusion matrix that is too large lies."""
    header, rows = by_class.class_rows(errors)
    _print(_table((header, rows[:_MAX_CLASSES])))
    if len(rows) > _MAX_CLASSES:
        _print(Text(f"The worst of {len(rows):,}; all of them: --json, or edgepeft report.", style="dim"))
    if absent := by_class.labels_without_rows(errors):
        _print(Text(f"No row has the label {first_of(absent, _MAX_CLASSES)}: left out.", style="dim"))
    confusion = errors.get("confusion") or {}
    names, counts = by_class.matrix(confusion)
    found = by_class.mistakes(confusion)
    if len(names) > by_class.MAX_SHOWN:  # of many labels, those that are mixed up
        where = f"is in {folder}" if folder else "of so many labels is for --out FOLDER: a picture and csv"
        mistakes = (map(Text, (one, other, f"{n:,}")) for one, other, n in found[:_MAX_MISTAKES])
        _print(plain_table("label", "most often taken for", rows=mistakes, numbers=("rows",)))
        _print(Text(f"The confusion matrix, {len(names)} by {len(names)}, {where}.", style="dim"))
    elif confusion:  # answers across, by names, or by numbers where names are too long
        named = sum(max(len(name), 5) + 2 for name in names) + max(map(len, names)) + 12 <= SCORES_WIDTH
        heads = names if named else [str(i) for i in range(1, len(names) + 1)]
        left = names if named else [f"{i} {name}" for i, name in enumerate(names, 1)]
        cells = ((Text(name), *(f"{n:,}" for n in row)) for name, row in zip(left, counts, strict=True))
        first = Column("label \\ answer", overflow="ellipsis", no_wrap=True)
        _print(plain_table(first, rows=cells, numbers=heads))
    if "figures" in errors and "by_class" in errors:
        _print(_table(by_class.figure_rows(errors["figures"])))
    if "calibration" in errors:
        _print(_table(by_class.certainty_figures(errors["calibration"])))
    if worst := errors["worst"]:
        _print_rows("Worst rows:", by_class.row_lines(worst), whole=True)
    if doubted := errors.get("mislabelled"):
        wrong = sum(n for *_, n in found)
        title = f"Rows that may be mislabelled, {errors['mislabelled_rows']:,} of {wrong:,} wrong answers:"
        _print_rows(title, by_class.row_lines(doubted, "likely"), whole=False)
        _print(Text(_DOUBTED, style="dim"))


def _table(found: by_class.Rows) -> Table:
    (first, *numbers), rows = found
    return plain_table(first, rows=(map(Text, row) for row in rows), numbers=numbers)


def _print_rows(title: str, lines: Sequence[tuple[str, str]], *, whole: bool) -> None:
    """Each with its text beneath it, in one line unless ``whole``."""
    _print(Text(f"\n{title}"))
    cut: dict[str, Any] = {} if whole else {"no_wrap": True, "overflow": "ellipsis"}
    for said, text in lines:
        _print(Padding(Text(printable(said)), (0, 0, 0, 2)))
        if text:
            _print(Padding(Text(printable(text), style="dim", **cut), (0, 0, 0, 6)))


def _print(*shown: Any) -> None:
    table_console(SCORES_WIDTH).print(*shown)


def say_notes(result: TrainingLoopResult, other: str) -> None:
    """What windows cost, what evaluation rows cannot tell, and what the delta is not better than beyond chance.

    ``other`` is an option for another method.
    """
    from edgepeft.data.row_grouping import Spread
    from edgepeft.data.training_loop.baselines import LINEAR, MAJORITY, too_few_to_tell, unbeaten_baselines

    if told := dict(result.training.get("windows", {})):
        pools = told.pop("pools", {})
        scores = ", ".join(f"{name} {score:.4f}" for name, score in pools.items())
        how = f" Their logits' {result.chosen['pool']} answers (eval rows: {scores})." if pools else ""
        say(f"note: read in windows: {Spread(**told)}.{how}")
    if (bound := result.chosen.get("temperature_bound")) is not None:
        right = "almost all of them are right, and cannot say how sure an answer may be; it stays 1"
        why = right if bound < 1 else "what is more probable is not more often right"
        say(f"note: the evaluation rows are likeliest at a temperature of {bound:g}, the last looked at: {why}.")
    found = dict(unbeaten_baselines(result.metrics))
    for sentence in found.values():
        say(f"note: {sentence}.")
    if found and too_few_to_tell(result.metrics):
        say("so few test rows differ that they cannot tell; give more to --test.")
    elif found:
        has_head = any(name.startswith("head/") for name in result.tensors)  # labels that a decoder scores have none
        linear = LINEAR in found and has_head
        cheap = "; --method linear gives that head, and all its tasks answer from one run" if linear else ""
        of_head = {*result.metrics["baselines"]} <= {MAJORITY}
        option, key = ("--head-lr", "head_learning_rate") if of_head else ("--lr", "learning_rate")
        rate = result.training[key]
        say(f"try {option} {_HIGHER * rate:.3g} (this was {rate:.3g}), more --epochs, more rows, {other}{cheap}.")


@contextmanager
def interruptible() -> Iterator[None]:
    """Train or tune within the block; a run that was stopped says how to go on, and exits with 130, or by SIGTERM."""
    from edgepeft.data.training_loop.run import Interrupted

    try:
        yield
    except Interrupted as interrupted:
        say(f"{interrupted}. The same command with --resume (without --force) continues.")
        if interrupted.signal == signal.SIGTERM:
            signal.raise_signal(signal.SIGTERM)  # which then ends the process, as whoever sent it expects
        raise typer.Exit(INTERRUPTED) from None


def local_runs(sweep: Sweep, workers: int | None, threads: int) -> tuple[Any, int]:
    """What computes a sweep's jobs on this machine, and how many at once."""
    import torch

    from edgepeft.device.machine import thread_count
    from edgepeft.sweep.local import run_local

    on_cpu = all(cell.options.get("device") == "cpu" for cell in sweep.cells)
    gpus = 0 if on_cpu or not torch.cuda.is_available() else torch.cuda.device_count()
    at_once = min(workers or gpus or max(1, thread_count() // threads), len(sweep.cells))
    return lambda jobs: run_local(jobs, at_once, gpus), at_once


@contextmanager
def showing_runs(sweep: Sweep, at_once: int) -> Iterator[Callable[[Moved | Ended], None]]:
    """A bar of all runs, and one of each that is under way; a line for each that ends."""
    from rich.progress import TextColumn

    from edgepeft.sweep.local import Moved
    from edgepeft.sweep.run import estimate

    with bars(TextColumn("{task.fields[state]}", markup=False)) as shown:
        over = sweep.n_over()
        say(f"{counted(len(sweep.cells), 'run')}, {len(sweep.cells) - over} of them to compute, {at_once} at once")
        whole = shown.add_task("runs", total=len(sweep.cells), completed=over, state="", left=None)
        own: dict[str, Any] = {}

        def tell(said: Moved | Ended) -> None:
            cell = said.job.cell
            if isinstance(said, Moved):
                if cell.name not in own:
                    own[cell.name] = shown.add_task(str(cell), total=None, state="")
                best, progress = said.progress.best, said.progress
                state = progress.phase + ("" if best is None else f"  best {best:.3f}")
                shown.update(own[cell.name], completed=progress.done, total=progress.total or None, state=state)
                return
            if cell.name in own:
                shown.remove_task(own.pop(cell.name))
            shown.update(whole, completed=(over := sweep.n_over()), state=about(estimate(sweep, at_once) or None))
            if said.outcome is None:
                ended = f"failed: {said.error}" if said.error else ""
            elif said.outcome.state == "done":
                metrics = sweep.card(cell).metrics
                ended = f"{metrics['metric']} {by_class.score_text(metrics['test'])}"
            else:
                ended = ": ".join(filter(None, (said.outcome.state, said.outcome.reason)))
            if ended:
                say(f"{over} of {len(sweep.cells)}: {cell}: {ended}")

        yield tell
