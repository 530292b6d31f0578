"""Parquet files: a text that is stored once may stand in a million rows, so sizes are counted before rows are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError, requiring
from edgepeft.data.arrow import names_in, rows_within
from edgepeft.data.containers import ROW_BYTES, Room
from edgepeft.data.label_names import named_classes

__all__ = ["read_parquet"]

_ROWS = 1024  # of which a batch is made
_MOST_TEXTS = 1_000_000  # names and sizes in the file's own description


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row), a batch in memory at a time, with the names that datasets has put there for classes."""
    with requiring("data", "a parquet file"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        room = Room(path)
        limits = {"thrift_string_size_limit": _MOST_TEXTS, "thrift_container_size_limit": _MOST_TEXTS}
        with ParquetFile(path, **limits) as file:
            about = file.metadata
            groups = [about.row_group(i) for i in range(about.num_row_groups)]
            room.require(sum(group.total_byte_size for group in groups) + ROW_BYTES * about.num_rows)
            names = names_in(file.schema_arrow)
            texts = [file.schema.column(i).path for i in range(len(file.schema))]
        # Texts by their dictionary: each once, and a number in each row.
        with ParquetFile(path, read_dictionary=texts, **limits) as file:
            rows = (row for batch in file.iter_batches(_ROWS) for row in rows_within(batch, room))
            yield from enumerate(named_classes(rows, names), start=1)
    except (ArrowException, OSError, ValueError) as error:  # the last one of texts that are not UTF-8
        raise DataError(f"{path} is not a parquet file that can be read ({error}).") from error
