"""Reading a result back: it may have been edited, cut off or made elsewhere, so the schema checks all of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgepeft.bench.result.schema import RESULT_SCHEMA, BenchResult, BenchRow, RowKey
from edgepeft.errors import DataError, UsageError

__all__ = ["ResultFile", "read_document", "schema_of"]

_MAX_BYTES = 100_000_000
_MUST_BE = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "a number above 0",
    "greater_than_equal": "a number of 0 or more",
    "int_type": "a number",
    "literal_error": "one of the known words",
    "model_type": "an object",
    "string_type": "text",
    "tuple_type": "a list",
    "value_error": "a finite number",
}
_Document = TypeVar("_Document", bound=BaseModel)


class _Head(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    schema_name: str | None = Field(default=None, alias="schema")


@dataclass(frozen=True)
class ResultFile:
    """A result that was read, with the file's name for messages."""

    path: Path
    document: BenchResult

    @classmethod
    def open(cls, path: Path) -> ResultFile:
        """Read and check.

        Raises:
            UsageError: there is no such file.
            DataError: not JSON, another schema, or a value that no benchmark writes.
        """
        if (schema := schema_of(path)) != RESULT_SCHEMA:
            raise DataError(f"{path}: schema {RESULT_SCHEMA!r} is needed, found {schema!r}{_other_schema(schema)}.")
        document = read_document(path, BenchResult)
        if not document.results and not document.metrics:
            raise DataError(f"{path} holds no results; it must come from `edgepeft bench --json`.")
        return cls(path, document)

    def by_key(self, *, with_threads: bool = True) -> dict[RowKey, BenchRow]:
        """Rows by what they measured.

        Raises:
            DataError: two rows measured the same.
        """
        rows = {row.key(with_threads=with_threads): row for row in self.document.results}
        if len(rows) != len(self.document.results):
            raise DataError(f"{self.path} holds two results of one kind; it was put together by hand.")
        return rows

    def gemm_gflops(self, workload: str) -> tuple[float, ...]:
        """The host's GEMM rate in each round, GFLOP/s; empty where it was not measured."""
        return self.document.host.gemm_samples_gflops.get(workload, ())


def schema_of(path: Path) -> str | None:
    """The schema that a JSON document names; None where it names none.

    Raises:
        UsageError, DataError: as ``read_document``.
    """
    return read_document(path, _Head).schema_name


def read_document(path: Path, schema: type[_Document]) -> _Document:
    """A JSON file as that schema has it.

    Raises:
        UsageError: there is no such file.
        DataError: it is too large, no JSON, or not of the schema.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give results of `edgepeft bench --json`.")
    if path.stat().st_size > _MAX_BYTES:
        raise DataError(f"{path} has {path.stat().st_size} bytes; a result has at most {_MAX_BYTES}.")
    try:
        return schema.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DataError(_in_words(path, error)) from None


def _in_words(path: Path, error: ValidationError) -> str:
    """The first mistake: where it is, what should stand there, what does, and what to do."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return f"{path} is not JSON or was cut off; it must come from `edgepeft bench --json`."
    shown = _shown(first["input"])
    if not first["loc"]:
        return f"{path} holds {shown}; a result is an object."
    # A number is checked as int and as float; which of the two failed is the last part of the place.
    where = ".".join(map(str, first["loc"])).removesuffix(".int").removesuffix(".float")
    if first["type"] == "missing":
        wrong = f"{where} is missing"
    else:
        wrong = f"{where} must be {_MUST_BE.get(first['type'], 'something else')}, found {shown}"
    return f"{path}: {wrong}. The file was edited or cut off; measure again, or leave it out."


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    try:
        return repr(value)[:80]
    except ValueError:  # Python does not print an integer of more than 4300 digits
        return "a number that is too long"


def _other_schema(schema: str | None) -> str:
    name, _, version = str(schema).partition("/")
    if name != RESULT_SCHEMA.partition("/")[0]:
        return ""
    age = "a newer" if version.isdigit() and int(version) > int(RESULT_SCHEMA.partition("/")[2]) else "another"
    return f", which {age} edgepeft wrote; take the baseline anew with this version (bench/baselines/README.md)"
