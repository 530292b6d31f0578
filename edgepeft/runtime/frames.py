"""DataFrames of pandas or polars in and out, told by what they can do: neither library is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edgepeft.data.pattern import pattern
from edgepeft.data.readers import Records
from edgepeft.data.rows import Columns, read_rows
from edgepeft.runtime.answer_file import answer_columns, flat_answers
from edgepeft.runtime.passes import in_batches

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

__all__ = ["DataFrame", "answered_frame", "is_frame"]

_ROWS = 32  # that run together


class DataFrame(Protocol):
    """Of pandas or polars."""

    @property
    def columns(self) -> Any:
        """Their names."""


Frame = TypeVar("Frame", bound=DataFrame)


def is_frame(given: Any) -> bool:
    """Whether it is one."""
    return hasattr(given, "columns") and (hasattr(given, "to_dicts") or hasattr(given, "iterrows"))


def answered_frame(runtime: Runtime, task: str, frame: Frame) -> Frame:
    """A new frame with the columns of the answers beside its own, which are read as those of a file.

    Raises:
        DataError: a column is missing, or a row cannot be read.
    """
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
