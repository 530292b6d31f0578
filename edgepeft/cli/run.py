"""Answer texts, pairs or a file with the bundle's tasks; neither torch nor transformers is loaded."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import numpy as np
import typer
from pydantic import model_validator
from typer import Argument, Option

from edgepeft.cli import _options
from edgepeft.cli._output import json_text, print_json
from edgepeft.common.atomic import check_target, write_atomically
from edgepeft.common.errors import DataError, EdgepeftError, UnknownName, UsageError
from edgepeft.common.messages import counted, printable
from edgepeft.common.progress import no_longer, say
from edgepeft.data.columns import STDIN, Columns, column_names
from edgepeft.data.pattern import pattern
from edgepeft.data.rows import Row, read_rows
from edgepeft.options.base import ROWS_HELP, NoCache, Options, PairColumn, TextColumn, Threads
from edgepeft.tasks._answers import VectorPrediction

if TYPE_CHECKING:
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

PANEL = "Deploy"

_SHOWN = 60  # characters of a text beside its answer


class RunOptions(Options):
    """What to read, and how to answer."""

    bundle: _options.BundleFolder
    text: Annotated[list[str] | None, Argument(help="Texts to classify; - for lines of standard input.")] = None
    task: Annotated[list[str] | None, Option(help="A task; may repeat. Without it: every task.")] = None
    second: Annotated[list[str] | None, Option(help="Second sentence of each TEXT, for pair tasks.")] = None
    candidate: Annotated[list[str] | None, Option(help="What tasks of kind choice pick from; may repeat.")] = None
    input_file: Annotated[
        Path | None, Option("--input", help=f"{ROWS_HELP}; answers are printed as jsonl, with its other columns.")
    ] = None
    text_column: TextColumn = None
    pair_column: PairColumn = None
    task_column: Annotated[
        str | None,
        Option(metavar="NAME", help="The file's column with each row's task; none: the backbone's embedding."),
    ] = None
    skip_unknown: Annotated[
        bool, Option("--skip-unknown", help="A row of an unknown or damaged task gets an error for its answer.")
    ] = False
    batch_size: Annotated[int, Option(min=1, help="Rows of the file that run together.")] = 32
    beams: _options.Beams = None
    max_new_tokens: _options.MaxNewTokens = None
    length_penalty: _options.LengthPenalty = None
    no_repeat_ngram: _options.NoRepeatNgram = None
    stream: Annotated[bool, Option("--stream", help="Print what a task writes as its tokens come.")] = False
    threads: Threads = None
    no_cache: NoCache = False
    out: Annotated[
        Path | None,
        Option(
            help="A file for the answers of --input: .csv, .tsv, .jsonl or .parquet, with its rows' own columns (- for "
            "standard output); of a task that answers vectors a .npy, float32, a row for each."
        ),
    ] = None
    dims: Annotated[int | None, Option(min=1, help="Only the first of a vector, of length 1 again.")] = None
    as_json: Annotated[bool, Option("--json", help="Print one JSON document.")] = False

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        file, of_task_column = self.input_file, self.task_column is not None
        if (file is None) == (not self.text):
            raise UsageError("give either texts or --input FILE.")
        if file is not None and self.second:
            raise UsageError("--second goes with texts; a file has its own column sentence2.")
        if file is not None and self.candidate:
            raise UsageError("--candidate goes with texts; a file has its own column candidates.")
        if file is None and (self.text_column, self.pair_column) != (None, None):
            raise UsageError("--text-column and --pair-column name columns of --input FILE.")
        if of_task_column and str(file) == STDIN:
            raise UsageError("--task-column reads its rows twice, first to see that each task is there; give a file.")
        if of_task_column and (file is None or self.task):
            raise UsageError("--task-column names a column of --input FILE, in place of --task.")
        if self.skip_unknown and not of_task_column:
            raise UsageError("--skip-unknown goes with --task-column: a task of --task has to be there.")
        if self.stream and (self.as_json or file is not None or self.out is not None or self.dims is not None):
            raise UsageError("--stream prints what is written of texts; leave --json, --input, --out and --dims out.")
        return self

    def columns(self, runtime: Runtime) -> Columns:
        """Return what the file's rows need: where a task is posed as text, the columns that the tasks read."""
        chosen = [runtime.bundle.entry(name) for name in self.task or runtime.tasks]
        columns = Columns(self.text_column, self.pair_column)
        for entry in chosen:
            columns = entry.task_kind.columns(columns)
        if not any(entry.source for entry in chosen):
            return columns
        if columns.text or columns.pair:
            raise UsageError("a task here names the columns that it reads; leave --text-column and --pair-column out.")
        if self.task_column is not None:
            return Columns(fields=())  # each row has its own task's
        needed = (pattern(entry.source).fields if entry.source else Columns().names[:1] for entry in chosen)
        return Columns(fields=tuple(dict.fromkeys(name for names in needed for name in names)))

    def rows(self, runtime: Runtime) -> Iterator[Row]:
        """Yield the file's rows, or the texts as such."""
        if self.input_file is not None:
            given: dict[str, Any] = {"columns": self.columns(runtime), "task_column": self.task_column}
            return read_rows(self.input_file, labels=False, keep=True, **given)
        firsts, candidates = self.text or [], tuple(self.candidate or ())
        if self._reads_stdin:
            return (row for rows in self._stdin_rows() for row in rows)
        if self.second and len(self.second) != len(firsts):
            raise UsageError(
                f"{counted(len(firsts), 'text')} and {len(self.second)} --second; each text needs its own."
            )
        seconds: list[str] | list[None] = self.second or [None] * len(firsts)
        pairs = enumerate(zip(firsts, seconds, strict=True), start=1)
        return (Row(*pair, None, "text", i, candidates=candidates) for i, pair in pairs)

    def batches(self, runtime: Runtime) -> Iterator[list[Row]]:
        """Yield the rows that run together: of typed lines no more than are there, for whoever sent them waits."""
        from edgepeft.runtime.inputs import in_batches

        for rows in self._stdin_rows() if self._reads_stdin else [self.rows(runtime)]:
            yield from in_batches(rows, self.batch_size)

    @property
    def _reads_stdin(self) -> bool:
        return self.text == [STDIN] and not self.second

    def _stdin_rows(self) -> Iterator[list[Row]]:
        from edgepeft.data.containers import lines_as_they_come

        given: dict[str, Any] = {"candidates": tuple(self.candidate or ())}
        for lines in lines_as_they_come():
            yield [Row(line.rstrip("\r\n"), None, None, STDIN, i, **given) for i, line in lines]


@_options.command_of(RunOptions, "run")
def command(asked: RunOptions) -> None:
    from edgepeft.device import machine
    from edgepeft.runtime.prediction import write_answers
    from edgepeft.runtime.runtime import Runtime

    if asked.stream or STDIN in (str(asked.input_file), *(asked.text or ())) or (sys.stdout and sys.stdout.isatty()):
        no_longer()  # who types is waited for, and answers on the terminal say enough
    runtime = Runtime(asked.bundle, threads=asked.threads, cache=not asked.no_cache)
    manifest = runtime.bundle.manifest
    chosen = [entry for name, entry in manifest.tasks.items() if not asked.task or name in asked.task]
    weights, fp16 = manifest.backbone.weights_dtype, any(entry.weights_dtype == "fp16" for entry in chosen)
    for cost in machine.missing_arithmetic(None, weights=weights, fp16=fp16):  # of this processor
        say(f"note: {cost}")
    if asked.input_file is not None:
        asked.columns(runtime)  # refused before anything runs
    ways = {name: getattr(asked, name) for name in ("max_new_tokens", "beams", "length_penalty", "no_repeat_ngram")}
    decoding = _options.decoding_of(runtime.bundle, asked.task or runtime.tasks, **ways)
    if asked.out is not None and asked.input_file is not None and asked.out.suffix != ".npy":
        if asked.task_column is not None:
            raise UsageError("--out goes with --task, not with --task-column.")
        how: dict[str, Any] = {"columns": asked.columns(runtime), "decoding": decoding, "batch_size": asked.batch_size}
        n, failed = write_answers(runtime, _tasks(runtime, asked.task), asked.input_file, asked.out, **how)
        if str(asked.out) != STDIN:
            say(f"{counted(n, 'row')}, {n - failed} with an answer, in {asked.out}.")
        _options.say_cuts(runtime.truncation, decoding.max_new_tokens)
        if failed:
            say(f"{counted(failed, 'row')} could not be read; the column error says why.")
            raise typer.Exit(1)
    else:
        _answer_rows(runtime, asked, decoding)


def _answer_rows(runtime: Runtime, asked: RunOptions, decoding: Decoding) -> None:
    """Print the answers, or write them where they are vectors."""
    tasks = [] if asked.task_column is not None else _tasks(runtime, asked.task)
    if asked.out is not None or asked.dims is not None:
        if asked.task_column is not None:
            raise UsageError("--out and --dims go with --task, not with --task-column.")
        _check_vectors(runtime, tasks, asked.out, asked.dims)
    if asked.out is not None:  # in the order of the rows
        found = []
        for rows in asked.batches(runtime):
            answers = runtime.predict(tasks[0], [row.readable for row in rows])
            cut = [each.cut(asked.dims).vector for each in answers if isinstance(each, VectorPrediction)]  # as all are
            found.append(np.stack(cut))
        content = io.BytesIO()
        np.save(content, np.concatenate(found), allow_pickle=False)
        write_atomically(asked.out, content.getvalue())
        say(f"{sum(map(len, found))} vectors written to {asked.out}")
    elif asked.stream:
        _print_as_written(runtime, tasks, asked.rows(runtime), decoding)
    else:
        if asked.task_column is not None:
            _check_tasks(runtime, asked)  # in the whole file, before anything runs
            shown = _mixed_answers(runtime, asked, decoding)
        else:
            shown = _answers(runtime, tasks, asked, decoding)
        if asked.input_file is not None:
            _print_stream(shown, as_document=asked.as_json)
        elif asked.as_json:
            print_json(list(shown))
        else:
            _print_lines(shown)
    _options.say_cuts(runtime.truncation, decoding.max_new_tokens)


def _tasks(runtime: Runtime, asked: list[str] | None) -> list[str]:
    tasks = list(dict.fromkeys(asked or runtime.tasks))
    if not tasks:
        raise UsageError(f"{runtime.bundle.folder} holds no task; add one with: edgepeft add.")
    for name in tasks:
        runtime.bundle.entry(name)
    return tasks


def _answers(runtime: Runtime, tasks: list[str], asked: RunOptions, decoding: Decoding) -> Iterator[dict[str, Any]]:
    kinds = {name: runtime.bundle.entry(name).task_kind for name in tasks}
    for rows in asked.batches(runtime):
        for name, kind in kinds.items():
            try:
                kind.read(rows)  # refused by the row's place in the file
            except DataError as error:
                if asked.task or len(tasks) == 1:
                    raise
                raise DataError(f"{error} The task {name} asks for this; --task names those to ask.") from error
        by_task = runtime.predict_all(tasks, [row.readable for row in rows], decoding)
        for i, row in enumerate(rows):
            answers = (by_task[name][i] for name in tasks)
            shown = (each.cut(asked.dims) if isinstance(each, VectorPrediction) else each for each in answers)
            yield {**_shown(row), "predictions": [each.as_json() for each in shown]}


def _check_vectors(runtime: Runtime, tasks: Sequence[str], out: Path | None, dims: int | None) -> None:
    """See that vectors are what is answered, and can be written, before anything runs."""
    if out is not None:
        if out.suffix != ".npy":
            raise UsageError(
                f"--out {out}: vectors are written as NumPy's .npy; name a file that ends so. Tables are for answers "
                "to --input FILE."
            )
        if len(tasks) != 1:
            raise UsageError(f"--out takes one task's vectors, and these are {len(tasks)} tasks; name one by --task.")
        check_target(out)
    for name in tasks:
        kind = runtime.bundle.entry(name).task_kind
        if not kind.gives_vectors:
            option = "--dims" if out is None else "--out"
            raise UsageError(f"{option} is of vectors, and task {name} answers {kind.answers}; leave {option} out.")
        if dims is not None and dims > kind.n_outputs:
            raise UsageError(f"--dims {dims}: the vectors of task {name} have {kind.n_outputs}; give at most as many.")


def _check_tasks(runtime: Runtime, asked: RunOptions) -> None:
    named, found = False, dict.fromkeys(asked.columns(runtime).names[:1])
    for row in asked.rows(runtime):
        named |= row.task is not None
        found |= dict.fromkeys(column_names(row.others or {}))
        if row.task is None or asked.skip_unknown:
            continue
        try:
            runtime.bundle.entry(row.task)
        except UnknownName as error:
            raise UsageError(f"{row.where}: {error} --skip-unknown answers the other rows.") from None
    if not named:
        raise UsageError(
            f"no row of {asked.input_file} names a task in {asked.task_column!r}. Found columns: {', '.join(found)}; "
            "--task-column names the one with each row's task."
        )


def _mixed_answers(runtime: Runtime, asked: RunOptions, decoding: Decoding) -> Iterator[dict[str, Any]]:
    failed, strict = 0, not asked.skip_unknown
    for batch in asked.batches(runtime):
        tasks, texts = [row.task for row in batch], [row.readable for row in batch]
        results = runtime.predict_mixed(tasks, texts, strict=strict, decoding=decoding)
        failed += sum(isinstance(answer, EdgepeftError) for answer in results)
        for row, answer in zip(batch, results, strict=True):
            if isinstance(answer, EdgepeftError):
                said: dict[str, Any] = {"error": str(answer)}
            elif hasattr(answer, "as_json"):
                said = {"predictions": [answer.as_json()]}
            else:
                said = {"embedding": [float(str(number)) for number in answer]}  # the shortest decimals of a float32
            yield {**_shown(row), "task": row.task, **said}
    if failed:
        say(f"{failed} row(s) have no answer: their task is unknown or damaged.")


def _shown(row: Row) -> dict[str, Any]:
    """The row's other columns, and its text; what is ours takes the name where both have one."""
    if row.fields is not None:
        return dict(row.others or {})
    second = {} if row.sentence2 is None else {"second": row.sentence2}
    return {**(row.others or {}), "text": row.sentence1, **second}


def _print_as_written(runtime: Runtime, tasks: list[str], rows: Iterable[Row], decoding: Decoding) -> None:
    """Print the text of each row piece by piece, as its tokens come, and a line's end."""
    if len(tasks) != 1 or not runtime.bundle.entry(tasks[0]).task_kind.writes:
        raise UsageError(f"--stream shows what one task writes, found {', '.join(tasks)}; --task names one that does.")
    for row in rows:
        for piece in runtime.stream(tasks[0], row.readable, decoding):
            typer.echo(printable(piece), nl=False)  # flushed at once
        typer.echo()


def _print_lines(answers: Iterator[dict[str, Any]]) -> None:
    for answer in answers:
        for prediction in answer["predictions"]:
            said = next(value for name, value in prediction.items() if name != "task")
            if isinstance(said, list):  # several labels, numbers, or spans with their places in the text
                spans = [
                    f"{x['text']} ({x['label']}, {x['start']}-{x['end']})" if isinstance(x, dict) else x for x in said
                ]
                said = ", ".join(map(str, spans)) or "-"
            cells = [prediction["task"], str(said)]
            if "answered" in prediction:
                cells[1] += f" ({prediction['start']}-{prediction['end']})" if prediction["answered"] else "(no answer)"
            if "index" in prediction:
                cells += [str(prediction["index"]), " ".join(f"{each:.3f}" for each in prediction["scores"].values())]
            elif "score" in prediction:
                cells += [f"{prediction['score']:.3f}{' unsure' if prediction.get('unsure') else ''}"]
            text = " ".join(answer["text"].split())
            cells.append(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...")
            typer.echo("\t".join(printable(cell, keep="") for cell in cells))


def _print_stream(answers: Iterator[dict[str, Any]], *, as_document: bool) -> None:
    """A line per answer; as one JSON array where a document is asked for, still in constant memory.

    A row that cannot be read ends the array after the answers before it.
    """
    opening = "["
    try:
        for answer in answers:
            line = json_text(answer)
            typer.echo(f"{opening}{line}" if as_document else line, nl=not as_document)
            opening = ",\n"
    except EdgepeftError:
        if as_document and opening != "[":
            typer.echo("]")
        raise
    if as_document:
        typer.echo("[]" if opening == "[" else "]")
