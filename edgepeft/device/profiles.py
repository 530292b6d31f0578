"""Devices as data: what a profile's file may say; shipped profiles by name, a user's own by the path of its file.

Every figure carries value, unit, kind and source.  The kind says how far it can be trusted: ``measured`` on the device
by a named source, ``spec`` from a data sheet or the paper that is reproduced, ``derived`` by arithmetic that the source
states, ``unsourced`` general knowledge, the only kind that may go without a source.  A variant is the same board with
more or less memory (``--set memory=2GB``).
"""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from os.path import expanduser  # unlike Path.expanduser, it leaves an unknown user as it is
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.common.messages import mistake, mistakes_text
from edgepeft.common.operators import GraphKind
from edgepeft.common.resources import data_folder, read_toml
from edgepeft.device.cgroups import ROOT
from edgepeft.device.machine import board_name, cpu_model, usable_cores
from edgepeft.device.placement import Limits

_BYTES = {"B": 1, "MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
_SMALLEST_MEMORY, _LARGEST_MEMORY = 2**20, 2**50  # outside of these the unit was mistaken


class _Table(BaseModel):
    """Frozen; an unknown key is an error, and so are NaN and a number given as text."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_known_keys(cls, given: Any) -> Any:
        known, wrong = sorted(cls.model_fields), []
        for key in (key for key in (given if isinstance(given, dict) else ()) if key not in known):
            hint = "".join(f" (did you mean {close!r}?)" for close in get_close_matches(key, known, n=1))
            wrong.append(f"unknown key {key!r}{hint}")
        if wrong:
            raise ValueError(f"{', '.join(wrong)}, known there: {', '.join(known)}")
        return given


class _Sourced(_Table):
    kind: Literal["measured", "spec", "derived", "unsourced"]
    source: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _has_source(self) -> Self:
        if self.kind != "unsourced" and not self.source.strip():
            raise ValueError(f'a {self.kind} figure needs a source (or kind = "unsourced")')
        return self


class Figure(_Sourced):
    """A figure: value, unit, kind, source, and a title for people; the kinds of figure narrow the value."""

    value: int | float | str | tuple[str, ...]
    unit: str = Field(min_length=1)
    title: str = ""


class Cores(Figure):
    """How many cores the device has."""

    value: int = Field(ge=1, le=4096)
    unit: Literal["cores"]


class MemoryFigure(Figure):
    """How much memory the device has; its unit says whether powers of two or of ten are meant."""

    value: int | float = Field(gt=0)
    unit: Literal["B", "MB", "GB", "MiB", "GiB"]
    variants: Annotated[tuple[int | float, ...], Field(strict=False)] = ()  # sizes that are sold, for --set memory=

    @model_validator(mode="after")
    def _is_plausible(self) -> Self:
        if not _SMALLEST_MEMORY <= self.value * _BYTES[self.unit] <= _LARGEST_MEMORY:  # a product may be infinite
            raise ValueError(f"{self.value} {self.unit} is no device's memory; is the unit right?")
        if self.variants and self.value not in self.variants:
            raise ValueError(f"{self.value} {self.unit} is none of the variants {', '.join(map(str, self.variants))}")
        return self


class Flags(Figure):
    """Instruction set extensions, by the Linux kernel's names; ``absent`` names those known to be missing."""

    value: Annotated[tuple[str, ...], Field(strict=False)]
    absent: Annotated[tuple[str, ...], Field(strict=False)] = ()
    unit: Literal["flags"]


class Amount(Figure):
    """Any other figure: a number with its unit, or a range in words."""

    value: int | float | str


class Latency(_Sourced):
    """A published latency at batch 1, to check predictions with; ``graph`` is one of ``bench.published``."""

    model: str
    graph: str = ""
    runtime: str
    precision: str = ""
    threads: int | None = Field(default=None, ge=1)
    value: int | float = Field(gt=0)
    unit: Literal["ms"]


class ReferenceEncoder(_Table):
    """The whole encoder that calibration runs: which of the latencies it is, and its shapes, batch 1."""

    model: str
    runtime: str
    precision: str = ""
    threads: int | None = Field(default=None, ge=1)
    n_layers: int = Field(ge=1, le=1000)
    hidden_size: int = Field(ge=1, le=65536)
    intermediate_size: int = Field(ge=1, le=262144)
    n_heads: int = Field(ge=1, le=1024)
    n_tokens: int = Field(ge=2, le=65536)
    patch_values: int = Field(default=0, ge=0, le=65536)  # of a vision encoder's patch, for a first matrix

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.n_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of n_heads {self.n_heads}")
        return self

    @property
    def shapes(self) -> dict[str, int]:
        """Sizes that the encoder is made from."""
        names = ("n_layers", "hidden_size", "intermediate_size", "n_heads", "n_tokens", "patch_values")
        return {name: int(getattr(self, name)) for name in names}

    @property
    def flops(self) -> int:
        """Of one pass, matrices and attention: L (2 t (4 d^2 + 2 d f) + 4 t^2 d), and 2 (t - 1) p d for patches."""
        t, d = self.n_tokens, self.hidden_size
        layer = 2 * t * (4 * d * d + 2 * d * self.intermediate_size) + 4 * t * t * d
        return self.n_layers * layer + 2 * (t - 1) * self.patch_values * d

    def is_of(self, row: Latency) -> bool:
        """Whether that latency is the reference's."""
        asked = (self.model, self.runtime, self.precision, self.threads)
        return asked == (row.model, row.runtime, row.precision, row.threads)


class Sweep(_Sourced):
    """Many published latencies of one kind of model: a row is the sizes that ``graph`` takes, then milliseconds."""

    graph: str = Field(min_length=1)
    runtime: str
    precision: str = ""
    threads: int | None = Field(default=None, ge=1)
    unit: Literal["ms"]
    rows: Annotated[tuple[Annotated[tuple[int | float, ...], Field(strict=False)], ...], Field(strict=False)]

    @model_validator(mode="after")
    def _rows_are_alike(self) -> Self:
        if len({len(row) for row in self.rows}) != 1 or any(number <= 0 for row in self.rows for number in row):
            raise ValueError("rows need the same number of positive numbers each, the last in milliseconds")
        return self


class Calibration(_Sourced):
    """A rate of graphs of one kind with one runtime on this device: seconds = FLOPs of products / value + overhead.

    One of ``whole`` models has what stands between the products in it; otherwise that takes its bytes over the memory
    bandwidth, and ``operator_us`` for each operator.
    """

    runtime: str = Field(min_length=1)
    precision: str = Field(min_length=1)
    operators: Annotated[GraphKind, Field(strict=False)]
    threads: int | None = Field(default=None, ge=1)
    value: int | float = Field(gt=0)
    unit: Literal["GFLOP/s", "GOP/s"]
    overhead_ms: int | float = Field(default=0, ge=0)
    operator_us: int | float = Field(default=0, ge=0)
    whole: bool = True
    samples: int = Field(default=1, ge=1)  # latencies behind it
    error_percent: int | float | None = Field(default=None, ge=0)  # by which it misses them, in the mean
    fallback: bool = False  # runtimes without a row of their own take this one


class Profile(_Table):
    """A device as data: cores, memory and instruction set, which limits need, and published figures."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    title: str = Field(min_length=1)
    about: str = ""
    cores: Cores
    memory: MemoryFigure
    isa: Flags
    figures: dict[str, Amount] = {}
    latencies: Annotated[tuple[Latency, ...], Field(strict=False)] = ()
    reference: ReferenceEncoder | None = None
    boards: Annotated[tuple[str, ...], Field(strict=False)] = ()  # how the device's own kernel calls it, the beginning
    sweeps: Annotated[tuple[Sweep, ...], Field(strict=False)] = ()
    calibrations: Annotated[tuple[Calibration, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _reference_is_measured(self) -> Self:
        if self.reference is not None and (n := sum(map(self.reference.is_of, self.latencies))) != 1:
            raise ValueError(f"reference: {n} latencies have its model, runtime, precision and threads; one is needed")
        return self

    @property
    def reference_seconds(self) -> float | None:
        """How long the device takes for its reference; None where no whole encoder was measured on it."""
        rows = [] if self.reference is None else [row for row in self.latencies if self.reference.is_of(row)]
        return rows[0].value / 1000 if rows else None

    @property
    def grade(self) -> Literal["A", "B", "C", "D", "E"]:
        """How much the profile knows of an encoder's speed: from what is in the file, so that the two cannot disagree.

        A: ONNX Runtime was measured.  B: a whole encoder was, in fp32, with another runtime.  C: one was, in another
        precision.  D: other kinds of graphs only.  E: no rate at all.
        """
        encoders = [row for row in self.calibrations if row.operators is GraphKind.MATRIX]
        if any(row.runtime == "onnxruntime" for row in encoders):
            return "A"
        if any(row.precision == "fp32" for row in encoders):
            return "B"
        if encoders:
            return "C"
        return "D" if self.calibrations else "E"

    def amount(self, key: str, unit: str) -> float | None:
        """The number of a figure; None without it, in another unit, or where it is words."""
        figure = self.figures.get(key)
        known = figure is not None and figure.unit == unit and isinstance(figure.value, int | float)
        return float(figure.value) if figure is not None and known else None

    @property
    def memory_bytes(self) -> int:
        """The device's memory in bytes."""
        return int(self.memory.value * _BYTES[self.memory.unit])

    def limits(self) -> Limits:
        """The cores and memory that emulating this device asks for."""
        return Limits(cores=self.cores.value, memory_bytes=self.memory_bytes)


_SUFFIX = ".toml"


def known_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in data_folder("profiles").glob(f"*{_SUFFIX}")))


def load_profile(name_or_path: str | Path) -> Profile:
    """Read a shipped profile by name, or a file whose path ends in ``.toml``; ``rpi4:memory=2GB`` is a variant."""
    asked, colon, settings = str(name_or_path).partition(":")
    if asked.endswith(_SUFFIX):
        profile = _read(Path(expanduser(asked)))  # noqa: PTH111
    elif asked in known_profiles():
        profile = _read(data_folder("profiles") / f"{asked}{_SUFFIX}")
    else:
        raise UnknownName("profile", asked, known_profiles())
    return with_settings(profile, settings.split(",")) if colon else profile


def variant_of(name: str, settings: Iterable[str]) -> str:
    """The name by which ``load_profile`` makes that variant: ``rpi4`` with ``memory=2GB`` is ``rpi4:memory=2GB``."""
    return f"{name}{',' if ':' in name else ':'}{listed}" if (listed := ",".join(settings)) else name


def _read(path: Path) -> Profile:
    if not path.is_file():
        raise UsageError(f"there is no profile file {path}. Shipped: {', '.join(known_profiles())}.")
    try:
        return Profile.model_validate(read_toml(path))
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        parts = dict.fromkeys(mistake(dict(one), "the file") for one in mistakes[:3])
        more = f"; and {len(mistakes) - 3} more" if len(mistakes) > 3 else ""
        raise DataError(f"{path} is not a profile: {'; '.join(parts)}{more}.") from error


def toml_of(document: Mapping[str, Any], comment: str = "") -> str:
    """A profile as the TOML file that it is read from; ``comment`` becomes its first lines."""
    json.dumps(document, allow_nan=False)
    return "".join(f"# {line}\n" for line in comment.splitlines()) + tomli_w.dumps(document)


SETTABLE = ("memory",)
_UNITS = {unit.lower(): unit for unit in _BYTES}


def with_settings(profile: Profile, settings: Iterable[str]) -> Profile:
    """``["memory=2GB"]`` -> the profile with that memory: one of its variants, where it names them.

    A maker's GB is then the profile's GiB.
    """
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting}: name=value is needed, for example --set memory=2GB.")
        if name not in SETTABLE:
            close = " Did you mean 'memory'?" if get_close_matches(name, SETTABLE, n=1) else ""
            raise UsageError(f"--set {setting}: of a profile, {', '.join(SETTABLE)} can be set.{close}")
        own = profile.memory
        amount = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", value, re.IGNORECASE | re.ASCII)
        unit = own.unit if amount is None or not amount[2] else _UNITS.get(amount[2].lower())
        if amount is None or unit is None:
            raise UsageError(f"--set memory={value}: an amount of memory was expected, such as 2GB or 512MiB.")
        size = float(amount[1])
        size = int(size) if size.is_integer() else size
        if own.variants:
            sold = ", ".join(f"{known:g} {own.unit}" for known in own.variants)
            if size not in own.variants or unit.replace("i", "") != own.unit.replace("i", ""):
                raise UsageError(f"--set memory={value}: {profile.name} is sold with {sold}; name one of them.")
            unit = own.unit
        try:
            memory = MemoryFigure.model_validate({**own.model_dump(), "value": size, "unit": unit})
        except ValidationError as error:
            raise UsageError(f"--set memory={value}: {mistakes_text(error)}.") from error
        profile = profile.model_copy(update={"memory": memory})
    return profile


def is_this_board(profile: Profile, root: Path = ROOT) -> bool:
    """Whether the profile's device is what this runs on; a PC needs the processor's whole name, and as many cores."""
    if (name := board_name(root)) is not None:
        return any(name.startswith(board) for board in profile.boards)
    return cpu_model(root / "proc") in profile.boards and usable_cores() == profile.cores.value


def profile_of_board(root: Path = ROOT) -> Profile | None:
    """The shipped profile of this board; None where there is none."""
    return next((known for known in map(load_profile, known_profiles()) if is_this_board(known, root)), None)
