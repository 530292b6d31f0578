"""Reading a benchmark's JSON back, suspicious of everything: it may have been edited, cut off or made elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepeft.errors import DataError, UsageError

__all__ = ["RESULT_SCHEMA", "THREADS", "Key", "Metrics", "Result", "ResultFile", "parsed_result"]

Key = tuple[Any, ...]
_KEY_FIELDS = (
    "scenario",
    "workload",
    "engine",
    "method",
    "task",
    "peer",
    "prompt_length",
    "variant",
    "batch_size",
    "sequence_length",
    "threads",
)
THREADS = _KEY_FIELDS.index("threads")  # its place in a key
_MAX_BYTES = 100_000_000
RESULT_SCHEMA = "edgepeft.bench/1"


@dataclass(frozen=True)
class Result:
    """One row: what it measured (``key``) and its samples, in seconds."""

    key: Key
    workload: str
    label: str
    samples_s: tuple[float, ...]
    mixed: bool  # batches of unequal length: samples are only comparable batch by batch


@dataclass(frozen=True)
class Metrics:
    """Figures that do not depend on time, of one task or of the whole bundle."""

    label: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class ResultFile:
    """A checked result; ``document`` is the JSON as it was read."""

    path: Path
    document: Mapping[str, Any]
    results: tuple[Result, ...]
    metrics: tuple[Metrics, ...] = ()

    @classmethod
    def open(cls, path: Path) -> ResultFile:
        """Read and check.

        Raises:
            UsageError: there is no such file.
            DataError: not JSON, not this schema, or samples that no clock gives.
        """
        document = _parsed(path)
        rows, counted = document.get("results"), document.get("metrics", [])
        if not isinstance(rows, list) or not isinstance(counted, list) or not (rows or counted):
            raise DataError(f"{path} holds no results; it must come from `edgepeft bench --json`.")
        results = tuple(_result(row, number, path) for number, row in enumerate(rows))
        return cls(path, document, results, tuple(_metrics(entry, path) for entry in counted))

    def by_key(self, *, without: Collection[int] = ()) -> dict[Key, Result]:
        """Rows by what they measured; ``without`` are places in the key that are left out.

        Raises:
            DataError: two rows measured the same.
        """
        found = {
            tuple(value for place, value in enumerate(result.key) if place not in without): result
            for result in self.results
        }
        if len(found) != len(self.results):
            raise DataError(f"{self.path} holds two results of one kind; it was put together by hand.")
        return found

    def gemm_gflops(self, workload: str) -> tuple[float, ...]:
        """The host's GEMM rate in each round, GFLOP/s; empty where it was not measured.

        Raises:
            DataError: something else than positive numbers stands there.
        """
        host = self.document.get("host")
        rates = host.get("gemm_samples_gflops") if isinstance(host, Mapping) else None
        values = rates.get(workload) if isinstance(rates, Mapping) else None
        return _positive(values or [], f"{self.path}: the host's GEMM rates")


def parsed_result(path: Path) -> Mapping[str, Any]:
    """A result's JSON object, of whatever schema.

    Raises:
        UsageError: there is no such file.
        DataError: it is too large, no JSON, or no object.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give results of `edgepeft bench --json`.")
    if path.stat().st_size > _MAX_BYTES:
        raise DataError(f"{path} has {path.stat().st_size} bytes; a result has at most {_MAX_BYTES}.")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}); it must come from `edgepeft bench --json`.") from error
    if not isinstance(document, Mapping):
        raise DataError(f"{path} holds a {type(document).__name__}; a result is an object.")
    return document


def _parsed(path: Path) -> Mapping[str, Any]:
    document = parsed_result(path)
    if (found := document.get("schema")) != RESULT_SCHEMA:
        raise DataError(f"{path}: schema {RESULT_SCHEMA!r} is needed, found {found!r}{_other_schema(found)}.")
    return document


def _other_schema(found: object) -> str:
    """What to do about a file of another version."""
    name, _, version = str(found).partition("/")
    if name != RESULT_SCHEMA.partition("/")[0]:
        return ""
    age = "a newer" if version.isdigit() and int(version) > int(RESULT_SCHEMA.partition("/")[2]) else "another"
    return f", which {age} edgepeft wrote; take the baseline anew with this version (bench/baselines/README.md)"


def _metrics(entry: Any, path: Path) -> Metrics:
    """One entry of ``metrics``: what it is of, and its figures."""
    values = entry.get("values") if isinstance(entry, Mapping) else None
    if not isinstance(values, Mapping) or not isinstance(entry.get("of"), str):
        raise DataError(f"{path}: an entry of metrics does not say what it is of, or holds no values.")
    for name, value in values.items():
        if not _is_number(value) or value < 0:
            raise DataError(f"{path}: {name} of {entry['of']} must be a number of 0 or more, found {value!r}.")
    return Metrics(entry["of"], {str(name): float(value) for name, value in values.items()})


def _result(row: Any, number: int, path: Path) -> Result:
    if not isinstance(row, Mapping):
        raise DataError(f"{path}: result {number} is not an object.")
    key = tuple(row.get(name) for name in _KEY_FIELDS)
    if any(isinstance(value, (list, dict)) for value in key) or not isinstance(row.get("workload"), str):
        raise DataError(f"{path}: result {number} does not say what it measured.")
    lengths = row.get("lengths")
    source = lengths.get("source") if isinstance(lengths, Mapping) else None
    if "samples_s" not in row:
        raise DataError(f"{path}: result {number} has no samples_s; without raw samples nothing can be compared.")
    samples = _positive(row["samples_s"], f"{path}: samples_s of result {number}")
    label = " ".join(str(value) for value in key if value is not None)
    return Result((*key, str(source)), row["workload"], label, samples, source not in (None, "full"))


def _positive(values: Any, what: str) -> tuple[float, ...]:
    """Finite numbers above zero, as floats."""
    if not isinstance(values, list):
        raise DataError(f"{what} must be a list of numbers, found {type(values).__name__}.")
    for value in values:
        if not _is_positive(value):
            raise DataError(f"{what} must be positive and finite; found {value!r}.")
    return tuple(float(value) for value in values)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_number(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON's integers have no limit
        return False
