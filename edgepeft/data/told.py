"""What rows tell where no option does: the kind of task, and patterns of text; for each verb that learns from rows."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from edgepeft.data.readers import STDIN, Source, format_of, is_dataset, source_of, splits_of
from edgepeft.data.rows import SENTENCES, Columns, head_of
from edgepeft.data.shapes import Shape, told_shape
from edgepeft.options.base import LearningOptions

__all__ = ["TOLD", "own_splits", "shape_in", "told"]

TOLD = ("kind", "source", "target")  # what a shape says, by the names of options
_SAY = (*TOLD, "regression", "format")

O = TypeVar("O", bound=LearningOptions)  # noqa: E741


def told(options: O) -> O:
    """The options with what the shape of their rows tells; as they are where one of them says what the rows are."""
    if any(getattr(options, name, None) for name in _SAY):
        return options
    rows = source_of(options.data)
    shape = shape_in(rows, Columns.of(options))
    known = [name for name in TOLD if shape is not None and name in type(options).model_fields]
    return options.model_copy(update={"data": rows, **{name: getattr(shape, name) for name in known}})


def shape_in(train: Source, columns: Columns = SENTENCES) -> Shape | None:
    """What training rows are told by, where no option says it; see ``shapes``.  Standard input is read once, later."""
    if str(train) == STDIN:
        return None
    return told_shape(train, head_of(own_splits(train, columns).get("train", train)), columns[:3])


def own_splits(train: Source, columns: Columns) -> dict[str, Path]:
    """A dataset's, by part; none of a file."""
    if not isinstance(train, Path) or format_of(train) or not is_dataset(train):
        return {}
    return splits_of(train, columns.names[2] if columns.target is None else columns.target.fields[0])
