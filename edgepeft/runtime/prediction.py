"""From logits, or from tokens that were written, to answers; and answers beside the rows that they are of.

``edgepeft run --out`` has a file's answers, in their order and format, as they are computed; a DataFrame of pandas or
polars, told by what it can do, gets new columns, and neither library is imported.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TextEncoder, TokenBatch
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.common.atomic import check_target, replacing
from edgepeft.common.errors import BundleError, DataError, EdgepeftError, UsageError, requiring
from edgepeft.common.progress import shown_steps
from edgepeft.data.columns import STDIN, Columns
from edgepeft.data.pattern import pattern
from edgepeft.data.rows import Row, read_rows
from edgepeft.runtime.decoding import Decoding, Written
from edgepeft.runtime.inputs import ReadRows, in_batches
from edgepeft.tasks._answers import Answer, Prediction

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

A = TypeVar("A", bound=Answer)
_FEW = 64
RowResult = Answer | NDArray[np.float32] | EdgepeftError  # of a row of a mixed batch
_ENDS = (".csv", ".tsv", ".jsonl", ".parquet")
_ROWS = 32  # of a frame that run together
_ERROR = "error"  # the column that says why a row has no answer; ``edgepeft.error`` where the rows have one
Bad = tuple[Mapping[str, Any], DataError]
Write = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class TextAnswer(Answer):
    """What a task wrote; ``ended`` is false where the text was cut at the largest number of tokens."""

    task: str
    text: str
    ended: bool
    note: str = ""
    tokens: tuple[int, ...] = ()  # of the text, without the one that ends it

    @property
    def value(self) -> str:
        """The text."""
        return self.text

    @property
    def facts(self) -> dict[str, Any]:
        """The text, and whether it ended by itself."""
        return {"text": self.text, "ended": self.ended}


def require_width(n_outputs: int, task: str | None, logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``logits`` [batch, ..., outputs], of the bare backbone (None) hidden states; refuse another width than
    ``n_outputs``, which the manifest's entry or the config names."""
    if (found := logits.shape[-1]) != n_outputs:
        if task is None:
            raise BundleError(f"the backbone gives hidden states of {found} numbers; its config names {n_outputs}.")
        raise BundleError(f"task {task} gives {found} logits; its manifest entry names {n_outputs}.")
    return logits


def predictions(
    task: str, entry: TaskEntry, read: ReadRows, logits: NDArray[np.float32], batch: TokenBatch
) -> list[Prediction]:
    """Make an answer for each row of logits [token rows, ...]; ``is_finite`` is false where a logit is not."""
    kind, notes = entry.task_kind, [note_of(text, entry) for text in read.first]
    if kind.windows or read.per_row is not None:
        logits = kind.grouping(batch, read.per_row).by_row(logits, kind.pool)
    beside = kind.prediction_context(read.given, read.texts, batch)
    # Of few numbers Python's own sum: NumPy's takes 10 microseconds more between two texts, with cold caches.
    few = logits.size <= _FEW
    if math.isfinite(sum(logits.ravel().tolist()) if few else np.add.reduce(logits, None)):  # then each is a number
        return kind.predictions(task, logits, notes, beside)
    numbers = np.isfinite(logits)
    answers = kind.predictions(task, np.where(numbers, logits, np.float32(0)), notes, beside)
    return [a if row.all() else replace(a, score=math.nan) for a, row in zip(answers, numbers, strict=True)]


def non_finite_error(task: str | None) -> BundleError:
    """Make the error of a task that gives NaN or an infinite number."""
    name = "the bare backbone" if task is None else f"task {task}"
    return BundleError(
        f"{name} gives NaN or an infinite number for this text; its values are damaged. Export it again."
    )


def finite_or_error(result: RowResult, task: str | None) -> RowResult:
    """Return a row's result, or in its place the error that one of its numbers is NaN or infinite."""
    if isinstance(result, EdgepeftError):
        return result
    sound = result.is_finite if isinstance(result, Answer) else bool(np.isfinite(result).all())
    return result if sound else non_finite_error(task)


def require_finite(answers: Sequence[A]) -> Sequence[A]:
    """Return the answers; raise BundleError if a number in them is NaN or infinite."""
    for answer in answers:
        if not answer.is_finite:
            raise non_finite_error(answer.task)
    return answers


def text_answers(
    task: str, entry: TaskEntry, texts: Sequence[Text], written: Sequence[Written], encoder: TextEncoder
) -> list[TextAnswer]:
    """Make an answer of what was written of each text."""
    return [
        TextAnswer(task, encoder.decode(one.tokens), one.ended, note_of(text, entry), one.tokens)
        for text, one in zip(texts, written, strict=True)
    ]


def warn_once(answers: list[A], noted: set[tuple[str, str]]) -> list[A]:
    """Return the answers; warn of texts unlike those that their task was trained on, unless ``noted`` has it."""
    for answer in answers:
        if answer.note and (said := (answer.task, answer.note)) not in noted:
            noted.add(said)
            warnings.warn(f"task {answer.task}: {answer.note}.", UserWarning, stacklevel=3)
    return answers


def note_of(text: Text, entry: TaskEntry) -> str:
    """Say what speaks against an answer: a text of another kind than those that the task was trained on."""
    if not text.first.strip() and not (text.second or "").strip():
        return "the text is empty"
    if entry.pairs and text.second is None:
        return "the task was trained on pairs of texts, and one text was given"
    # Of an imported task nobody stated what it was trained on.
    if not entry.pairs and entry.training and text.second is not None:
        return "the task was trained on single texts, and a pair was given"
    return ""


def _target(out: Path, source: Path) -> str:
    """The format of ``out``, by its name; that of ``source`` where it is standard output."""
    if str(out) == STDIN:
        return source.suffix.lower() if source.suffix.lower() in (".csv", ".tsv") else ".jsonl"
    if out.suffix.lower() not in _ENDS:
        raise UsageError(
            f"--out {out}: answers are written to a file that ends in {', '.join(_ENDS)}, vectors to .npy."
        )
    if out.exists() and source.exists() and out.samefile(source):
        raise UsageError(f"--out {out} is the file that is read; name another.")
    check_target(out)
    return out.suffix.lower()


def write_answers(
    runtime: Runtime,
    tasks: Sequence[str],
    source: Path,
    out: Path,
    *,
    columns: Columns,
    decoding: Decoding,
    batch_size: int,
) -> tuple[int, int]:
    """Write each row's columns and its answers, or its ``error``; the number of rows, and of those without answers."""
    form, n, failed = _target(out, source), 0, 0
    kinds = [runtime.bundle.entry(task).task_kind for task in tasks]
    names, own, waiting = dict[str, str](), dict[str, Any](), list[tuple[Row | Bad, dict[str, Any]]]()
    with _opened(out, form) as write, shown_steps() as show:
        for batch in in_batches(_readable(source, columns, kinds), batch_size):
            rows = [each for each in batch if isinstance(each, Row)]
            by_task = runtime.predict_all(list(tasks), [row.readable for row in rows], decoding) if rows else {}
            answered = iter(flat_answers(list(by_task.values())))
            waiting += [(each, next(answered) if isinstance(each, Row) else {}) for each in batch]
            if rows and not names:  # the columns of a table are known with the first answer
                found, alone = next(found for _, found in waiting if found), len(tasks) == 1
                own = dict.fromkeys(rows[0].others or {})
                names = answer_columns(own, found, alone=alone, nested=form not in (".csv", ".tsv"))
            n, failed = n + len(batch), failed + len(batch) - len(rows)
            if names:
                _write_all(waiting, names, own, write)
            show("rows", n, None)
        _write_all(waiting, names, own, write)
    return n, failed


def _write_all(
    waiting: list[tuple[Row | Bad, dict[str, Any]]], names: Mapping[str, str], own: Mapping[str, Any], write: Write
) -> None:
    """Write rows with all of the ``own`` columns, which a row that cannot be read may lack."""
    said_in = f"edgepeft.{_ERROR}" if _ERROR in own else _ERROR
    for each, found in waiting:
        has, why = (each.others or {}, None) if isinstance(each, Row) else (each[0], str(each[1]))
        write({**own, **has, **{column: found.get(key) for key, column in names.items()}, said_in: why})
    waiting.clear()


def _readable(source: Path, columns: Columns, kinds: Sequence[Any]) -> Iterator[Row | Bad]:
    """The rows and, where they stand, those that cannot be read."""
    waiting = list[Bad]()

    def bad(_: int, own: Mapping[str, Any], error: DataError) -> None:
        waiting.append((own, error))

    for row in read_rows(source, labels=False, columns=columns, keep="own", bad=bad):
        yield from waiting
        waiting.clear()
        try:
            for kind in kinds:
                kind.read([row])
        except DataError as error:
            yield row.others or {}, error
        else:
            yield row
    yield from waiting


def flat_answers(by_task: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Flatten the answers of every task: of each row, ``TASK.name`` -> value."""
    rows: list[dict[str, Any]] = []
    for answers in zip(*by_task, strict=True):
        rows.append({})
        for answer in answers:
            told = answer.as_json()
            task = told.pop("task")
            told = {"probability" if name == "score" and "label" in told else name: told[name] for name in told}
            note = told.pop("note", None)
            rows[-1] |= {f"{task}.{name}": value for name, value in {**told, "note": note}.items()}
    return rows


def answer_columns(
    own: Mapping[str, Any], found: Mapping[str, Any], *, alone: bool, nested: bool = False
) -> dict[str, str]:
    """Columns of answers: without the task's name if ``alone`` and not a row's own; mappings only if ``nested``."""
    keys = [key for key, value in found.items() if nested or not isinstance(value, Mapping)]
    plain = {key: key.rpartition(".")[2] if alone else key for key in keys}
    return {key: key if name in own or name == _ERROR else name for key, name in plain.items()}


@contextlib.contextmanager
def _opened(out: Path, form: str) -> Iterator[Write]:
    if str(out) == STDIN:
        yield _writer(sys.stdout, form)
        return
    with replacing(out) as new:
        if form == ".parquet":
            with requiring("data", "a parquet file"):
                import pyarrow as pa
                from pyarrow.parquet import write_table
            records = list[Mapping[str, Any]]()
            yield records.append
            columns = dict.fromkeys(name for row in records for name in row)  # pyarrow takes those of the first row
            try:
                write_table(pa.Table.from_pylist([*({**columns, **row} for row in records[:1]), *records[1:]]), new)
            except (pa.ArrowException, UnicodeEncodeError) as error:
                raise DataError(
                    f"{out}: a column holds what no type of parquet does ({error}); take .jsonl."
                ) from error
            return
        with new.open("x", encoding="utf-8", errors="backslashreplace", newline="") as file:  # half a pair of UTF-16
            yield _writer(file, form)


def _writer(file: TextIO, form: str) -> Write:
    if form == ".jsonl":
        return lambda row: print(json.dumps(row, ensure_ascii=False, default=str), file=file)
    table: csv.DictWriter[str] | None = None
    known = set[str]()

    def write(row: Mapping[str, Any]) -> None:
        nonlocal table
        if table is None:
            plain: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None}
            how = {"lineterminator": "\n", **(plain if form == ".tsv" else {})}
            table = csv.DictWriter(file, list(row), extrasaction="ignore", **how)
            table.writeheader()
            known.update(row)
        for name in (name for name in row if name not in known):
            known.add(name)
            told = f"the column {name} of a later row is left out: a table's columns are those of the first rows"
            warnings.warn(f"{told}. Take .jsonl or .parquet, which keep it.", stacklevel=2)
        nested = {name: value for name, value in row.items() if isinstance(value, list | dict | bool)}
        row = {**row, **{n: json.dumps(value, ensure_ascii=False, default=str) for n, value in nested.items()}}
        if form == ".tsv":
            row = {n: " ".join(value.split()) if isinstance(value, str) else value for n, value in row.items()}
        table.writerow(row)

    return write


class DataFrame(Protocol):
    """A table of pandas or polars."""

    @property
    def columns(self) -> Any:
        """Their names."""


Frame = TypeVar("Frame", bound=DataFrame)


def answered_frame(runtime: Runtime, task: str, frame: Frame) -> Frame:
    """A new frame with the columns of the answers beside its own, which are read as those of a file."""
    from edgepeft.data.readers import Records

    entry = runtime.bundle.entry(task)
    posed = None if entry.source is None else Columns(fields=pattern(entry.source).fields)
    columns = posed or entry.task_kind.columns(Columns())
    answers: list[dict[str, Any]] = []
    for rows in in_batches(read_rows(Records(frame), labels=False, columns=columns, keep="own"), _ROWS):
        answers += flat_answers([runtime.predict_all([task], [row.readable for row in rows])[task]])
    names = answer_columns({str(name): None for name in frame.columns}, answers[0], alone=True)
    told = {column: [answer[key] for answer in answers] for key, column in names.items()}
    told = {column: values for column, values in told.items() if any(value is not None for value in values)}
    more: Any = frame
    if hasattr(frame, "assign"):  # pandas
        return more.assign(**told)
    return more.hstack(type(more)(told))
