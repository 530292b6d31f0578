"""Rows of a file that cannot be used: all are named at once, or left out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgepeft.common.errors import DataError
from edgepeft.data.readers import Source

__all__ = ["BadRows"]

_PROBLEMS = 20  # lines, and kinds of what is wrong, that are named


class BadRows:
    """Rows of a file that cannot be used, by what is wrong with them."""

    def __init__(self, path: Source) -> None:
        self._path, self._first = path, list[DataError]()
        self._lines: dict[str, list[int]] = {}
        self._times: Counter[str] = Counter()
        self._n = 0

    def __call__(self, line: int, record: Mapping[str, object], error: DataError) -> None:
        """Take note of one, as ``read_rows`` says."""
        self._n += 1
        self._first = self._first or [error]
        what = str(error).removeprefix(f"{self._path}:{line}: ")
        if what in self._lines or len(self._lines) < _PROBLEMS:
            self._times[what] += 1
            if len(lines := self._lines.setdefault(what, [])) < _PROBLEMS:
                lines.append(line)

    def settle(self, *, skip: bool, some: bool) -> None:
        """Say what is left out, or refuse the file with all that is wrong with it; ``some`` rows can be used."""
        if not self._n:
            return
        told = " ".join(f"{_lines_of(lines, self._times[what])}: {what}" for what, lines in self._lines.items())
        if skip and some:
            warnings.warn(f"{self._path}: {self._n} rows are left out. {told}", stacklevel=2)
        elif self._n == 1 or (not some and len(self._lines) == 1):  # what is true of all rows is told of the first
            raise self._first[0]
        else:
            remedy = "; --skip-bad leaves them out" if some else ""
            raise DataError(f"{self._path}: {self._n} rows cannot be used{remedy}. {told}")

    @property
    def left_out(self) -> str:
        """For ``split``."""
        return f"; left out of {Path(str(self._path)).name}: {self._n} that cannot be used" if self._n else ""


def _lines_of(lines: Sequence[int], times: int) -> str:
    """The first of so many."""
    first = ", ".join(map(str, lines))
    more = f" and {times - len(lines)} more" if times > len(lines) else ""
    return f"line{'s' * (times > 1)} {first}{more}"
