"""Rows in memory, read as a file's are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError
from edgepeft.data.arrow import named_split
from edgepeft.data.containers import Record, distinct
from edgepeft.data.labels import shown


class Records:
    """Dictionaries, a DataFrame of pandas or polars, a dataset's split."""

    suffix = ""  # a file's would say its format

    def __init__(self, rows: Any) -> None:
        if hasattr(rows, "features"):
            self._rows = list(named_split(rows))
        elif hasattr(rows, "to_dicts"):  # polars
            self._rows = rows.to_dicts()
        elif hasattr(rows, "iterrows"):  # pandas, in which what is missing is NaN
            distinct(self, 1, [*map(str, rows.columns)])  # of which to_dict takes the last
            records = rows.to_dict("records")
            self._rows = [
                {n: None if isinstance(v, float) and math.isnan(v) else v for n, v in r.items()} for r in records
            ]
        else:
            self._rows = list(rows)

    def __str__(self) -> str:
        """Stand in for a file's name."""
        return "rows"

    def read(self, _: object) -> Iterator[Record]:
        """Yield (number, row)."""
        for number, row in enumerate(self._rows, start=1):
            if isinstance(row, Mapping):
                yield number, {str(name): _plain(value) for name, value in row.items()}
            else:
                yield number, DataError(f"{self}:{number}: expected a dictionary of columns; found {shown(row)}.")


def _plain(value: Any) -> Any:
    """Return a cell as a file's are, lists and numbers of Python: not NumPy's, which pandas has of parquet's lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


class Held(Records):
    """Standard input's records, which can be read once."""

    def __init__(self, path: Path, records: Iterator[Record]) -> None:
        self._path, self._records = path, list(records)

    def __str__(self) -> str:
        """Name the file that they are from."""
        return str(self._path)

    def read(self, _: object) -> Iterator[Record]:
        """Yield (line, row)."""
        return iter(self._records)
