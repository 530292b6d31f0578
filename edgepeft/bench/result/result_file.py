"""Reading a result back: it may have been edited, cut off or made elsewhere, so the schema checks all of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgepeft.bench.result.schema import RESULT_SCHEMA, BenchResult, BenchRow, RowKey
from edgepeft.common.bounded import bytes_at
from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.messages import in_words

__all__ = ["ResultFile", "read_document", "schema_of"]

_MAX_BYTES = 100_000_000
_Document = TypeVar("_Document", bound=BaseModel)


class _Head(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    schema_name: str | None = Field(default=None, alias="schema")
    format: str | None = None  # what a delta's card calls it


@dataclass(frozen=True)
class ResultFile:
    """A result that was read, with the file's name for messages."""

    path: Path
    document: BenchResult

    @classmethod
    def open(cls, path: Path) -> ResultFile:
        """Read and check."""
        if (schema := schema_of(path)) != RESULT_SCHEMA:
            ours, known = RESULT_SCHEMA.split("/")
            name, _, version = str(schema).partition("/")
            which = "a newer" if version.isdigit() and int(version) > int(known) else "another"
            anew = "take the baseline anew with this version (bench/baselines/README.md)"
            advice = f", which {which} edgepeft wrote; {anew}" if name == ours else ""
            raise DataError(f"{path}: schema {RESULT_SCHEMA!r} is needed, found {schema!r}{advice}.")
        document = read_document(path, BenchResult)
        if not document.results and not document.metrics:
            raise DataError(f"{path} holds no results; it must come from `edgepeft bench --json`.")
        return cls(path, document)

    def by_key(self, *, with_threads: bool = True) -> dict[RowKey, BenchRow]:
        """Rows by what they measured."""
        rows = {row.key(with_threads=with_threads): row for row in self.document.results}
        if len(rows) != len(self.document.results):
            raise DataError(f"{self.path} holds two results of one kind; it was put together by hand.")
        return rows

    def gemm_gflops(self, workload: str) -> tuple[float, ...]:
        """The host's GEMM rate in each round, GFLOP/s; empty where it was not measured."""
        return self.document.host.gemm_samples_gflops.get(workload, ())


def schema_of(path: Path) -> str | None:
    """The schema that a JSON document names; None where it names none."""
    head = read_document(path, _Head)
    return head.schema_name or head.format


def read_document(path: Path, schema: type[_Document]) -> _Document:
    """A JSON file as that schema has it."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give results of `edgepeft bench --json`.")
    try:
        return schema.model_validate_json(bytes_at(path, _MAX_BYTES))
    except OSError as error:
        raise DataError(f"{path} cannot be read as a result: {error.strerror}.") from error
    except ValidationError as error:
        wrong = in_words(error, "the result")
        raise DataError(f"{path}: {wrong}. The file was edited or cut off; measure again, or leave it out.") from None
