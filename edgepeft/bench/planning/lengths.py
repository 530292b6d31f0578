"""How long a benchmark's texts are, in tokens.

Sources of lengths: ``--length N`` (every row full), a file (one integer a line, or TOML with ``lengths`` in arrival
order or a ``[histogram]`` of length -> count), or a shipped list of real texts.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError, UnknownName
from edgepeft.common.resources import data_folder

__all__ = ["Lengths", "full_length", "load_lengths", "shipped_lengths"]

_MAX_ROWS = 1_000_000  # a longer list is a mistake, and would be sent to every worker


@dataclass(frozen=True)
class Lengths:
    """Token counts of texts in arrival order, and a description of where they come from."""

    values: tuple[int, ...]
    source: str
    described: str

    @property
    def mean(self) -> float:
        """Mean tokens of a text."""
        return sum(self.values) / len(self.values)

    @property
    def uniform(self) -> bool:
        """Whether every text is equally long."""
        return len(set(self.values)) == 1

    def clamped(self, max_length: int) -> Lengths:
        """The same with longer texts cut to ``max_length``, as ``edgepeft run`` would."""
        return Lengths(tuple(min(n, max_length) for n in self.values), self.source, self.described)


def full_length(length: int, batch_size: int) -> Lengths:
    """Lengths of one batch of rows that are all ``length`` tokens long."""
    return Lengths((length,) * batch_size, "full", f"every row {length} tokens, no padding")


def shipped_lengths() -> list[str]:
    """Names of the lists of real lengths that come with edgepeft."""
    return sorted(path.stem for path in _shipped_folder().glob("*.toml"))


def _shipped_folder() -> Path:
    return data_folder("bench/scenarios") / "lengths"


def load_lengths(name_or_file: str, *, seed: int = 0) -> Lengths:
    """Read lengths from a shipped list, by name, or from a file.

    Raises:
        UnknownName: neither a file nor a shipped list.
        DataError: the file holds something else than positive integers.
    """
    if name_or_file in shipped_lengths():
        return _from_toml(_shipped_folder() / f"{name_or_file}.toml", name_or_file, seed)
    path = Path(name_or_file)
    if not path.is_file():
        raise UnknownName("file or shipped list of lengths", name_or_file, shipped_lengths())
    if path.suffix == ".toml":
        return _from_toml(path, path.name, seed)
    values = _checked(_read(path).split(), path)
    return Lengths(values, path.name, f"{len(values)} lengths of {path.name}, in its order")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text ({error.reason}); one integer a line or TOML is read.") from error


def _from_toml(path: Path, source: str, seed: int) -> Lengths:
    try:
        document = tomllib.loads(_read(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error
    if "lengths" in document:
        values = _checked(document["lengths"], path)
        facts = [str(document[key]) for key in ("rows", "tokenizer") if key in document]
        return Lengths(values, source, "; ".join([str(document.get("title", path.name)), *facts]))
    if "histogram" in document:
        values = _from_histogram(document["histogram"], path, seed)
        return Lengths(values, source, f"histogram of {path.name}, {len(values)} rows, shuffled by the seed")
    raise DataError(f"{path} has neither 'lengths = [...]' nor a [histogram]; found {sorted(document)}.")


def _from_histogram(histogram: Any, path: Path, seed: int) -> tuple[int, ...]:
    if not isinstance(histogram, Mapping):
        raise DataError(f"{path}: histogram must be a table of length = count.")
    counts = _checked(histogram.values(), path)
    if sum(counts) > _MAX_ROWS:
        raise DataError(f"{path} asks for {sum(counts)} rows; at most {_MAX_ROWS} are taken.")
    values = [n for n, count in zip(_checked(histogram, path), counts, strict=True) for _ in range(count)]
    random.Random(seed).shuffle(values)
    return tuple(values)


def _checked(values: Any, path: Path) -> tuple[int, ...]:
    """Positive integers, at least one of them."""
    try:
        lengths = tuple(int(str(value)) for value in values)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: lengths must be positive integers ({error}).") from error
    if not lengths or min(lengths) < 1 or len(lengths) > _MAX_ROWS:
        raise DataError(f"{path}: 1 to {_MAX_ROWS} lengths, each at least 1, are needed.")
    return lengths
