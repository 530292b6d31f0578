"""What several kinds of result have in common: where they were measured, under which limits, and how they are read.

A document may have been edited, cut off or made elsewhere, so all of it is checked, numbers strictly: text is no
number, true is not 1, and NaN and infinities are refused.
"""

import math
from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_serializer
from pydantic_core import PydanticKnownError
from pydantic_core.core_schema import SerializerFunctionWrapHandler

from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.messages import mistakes_text
from edgepeft.common.resources import bytes_at

_MAX_BYTES = 100_000_000
_Document = TypeVar("_Document", bound=BaseModel)


def _finite(value: float) -> float:
    try:
        if math.isfinite(value):
            return value
    except OverflowError:  # JSON's integers have no limit
        pass
    raise PydanticKnownError("finite_number")


Positive = Annotated[float, Field(gt=0)]
Number = Annotated[int | float, Field(ge=0), AfterValidator(_finite)]  # written as it came: 16 does not become 16.0
GemmRates = dict[str, tuple[Positive, ...]]  # GFLOP/s in each round, by workload


class DocumentPart(BaseModel):
    """A part of a document, or all of it.  Keys that a later version adds are passed over.

    Every field is written, but for those in ``SOMETIMES``, which are written where they were given.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)
    SOMETIMES: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _written(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        absent = self.SOMETIMES - self.model_fields_set
        return {name: value for name, value in serialise(self).items() if name not in absent}

    def to_json(self) -> dict[str, Any]:
        """Plain data, as it is written to a file."""
        return self.model_dump(mode="json", by_alias=True)


class CoresRecord(DocumentPart):
    """Processors of the host; ``quota``: how many of them a control group allows, None where none does."""

    usable: int | None = None
    physical: int | None = None
    logical: int | None = None
    quota: float | None = None


class HostRecord(DocumentPart):
    """The machine that measured, as ``host_facts`` describes it, and the rate of its matrix products meanwhile.

    Rates are in GFLOP/s, float32: the median of all rounds.
    """

    cpu: str | None = None
    machine: str | None = None
    isa: Annotated[tuple[str, ...], Strict(False)] | None = None
    cores: CoresRecord | None = None
    memory_bytes: int | None = None
    system: str | None = None
    versions: dict[str, str] = Field(default={})
    gemm_gflops: float | None = None


class LimitsRequested(DocumentPart):
    """Limits that the profile asks for; None leaves that resource as the host has it."""

    cores: int | None = None
    memory_bytes: int | None = None
    cpu_quota: float | None = None


class LimitsInForce(LimitsRequested):
    """Limits that the kernel reports, and what set them; None where nothing limits that resource."""

    backend: str | None = None


class ProfileLimits(DocumentPart):
    """Limits as requested and as in force; None where no worker got as far as to be limited."""

    requested: LimitsRequested | None = None
    in_force: LimitsInForce | None = None


class ProfileRecord(DocumentPart):
    """The profile, its limits, and what a reader of the figures must know."""

    name: str | None = None
    title: str | None = None
    limits: ProfileLimits = ProfileLimits()
    emulation: str = "none"
    notes: tuple[str, ...] = ()


class _Head(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    schema_name: str | None = Field(default=None, alias="schema")
    format: str | None = None  # what a delta's card calls it


def schema_of(path: Path) -> str | None:
    """The schema that a JSON document names; None where it names none."""
    head = read_document(path, _Head)
    return head.schema_name or head.format


def read_document(path: Path, schema: type[_Document]) -> _Document:
    """A JSON file as that schema has it."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}; give results of `edgepeft bench --json`.")
    try:
        return schema.model_validate_json(bytes_at(path, _MAX_BYTES).removeprefix(BOM_UTF8))  # as editors write
    except OSError as error:
        raise DataError(f"{path} cannot be read as a result: {error.strerror}.") from error
    except ValidationError as error:
        wrong = mistakes_text(error, "the result")
        raise DataError(f"{path}: {wrong}. The file was edited or cut off; measure again, or leave it out.") from None
