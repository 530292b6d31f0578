"""Answers beside the rows that they are of: ``edgepeft run --out`` has a file's, in their order and format, as they are
computed; a DataFrame of pandas or polars, told by what it can do, gets new columns, and neither library is imported.
"""

from __future__ import annotations

import contextlib
import csv
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

from edgepeft.common.atomic import check_target, replacing
from edgepeft.common.errors import DataError, UsageError, requiring
from edgepeft.common.progress import shown_steps
from edgepeft.data.containers import STDIN
from edgepeft.data.frames import Records
from edgepeft.data.pattern import pattern
from edgepeft.data.rows import Columns, Row, read_rows
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.passes import in_batches

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

_ENDS = (".csv", ".tsv", ".jsonl", ".parquet")
_ROWS = 32  # of a frame that run together
_ERROR = "error"  # the column that says why a row has no answer; ``edgepeft.error`` where the rows have one
Bad = tuple[Mapping[str, Any], DataError]
Write = Callable[[Mapping[str, Any]], None]


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
        table.writerow({name: _cell(value, form) for name, value in row.items()})

    return write


def _cell(value: Any, form: str) -> Any:
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict | bool) else value
    return " ".join(text.split()) if form == ".tsv" and isinstance(text, str) else text


class DataFrame(Protocol):
    """A table of pandas or polars."""

    @property
    def columns(self) -> Any:
        """Their names."""


Frame = TypeVar("Frame", bound=DataFrame)


def is_frame(given: Any) -> bool:
    """Whether it is one."""
    return hasattr(given, "columns") and (hasattr(given, "to_dicts") or hasattr(given, "iterrows"))


def answered_frame(runtime: Runtime, task: str, frame: Frame) -> Frame:
    """A new frame with the columns of the answers beside its own, which are read as those of a file."""
    entry = runtime.bundle.entry(task)
    columns = (
        entry.task_kind.columns(Columns()) if entry.source is None else Columns(fields=pattern(entry.source).fields)
    )
    answers: list[dict[str, Any]] = []
    for rows in in_batches(read_rows(Records(frame), labels=False, columns=columns, keep="own"), _ROWS):
        answers += flat_answers([runtime.predict_all([task], [row.readable for row in rows])[task]])
    names = answer_columns({str(name): None for name in frame.columns}, answers[0], alone=True)
    told = {column: [answer[key] for answer in answers] for key, column in names.items()}
    told = {column: values for column, values in told.items() if any(value is not None for value in values)}
    more: Any = frame
    if hasattr(frame, "assign"):  # pandas
        return more.assign(**told)  # type: ignore[no-any-return]
    return more.hstack(type(more)(told))  # type: ignore[no-any-return]
