"""A verb's options, declared once: of the model come its command line, its function of Python and its JSON schema.

A field is ``name: Annotated[type, Option(help=...)] = default``; aliases here are of options that verbs share.
"""

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from os.path import expanduser  # unlike Path.expanduser, it leaves an unknown user as it is
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, Protocol, Self, TypeVar, cast, overload

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from typer import Option

from edgepeft.common.errors import UnknownName, UsageError
from edgepeft.common.messages import mistakes_text
from edgepeft.common.registry import names_of


def _at_home(given: Any) -> Any:
    """Return a path, or several, with the user's home for its ``~``, which in Python no shell has seen."""
    if isinstance(given, list | tuple):
        return [*map(_at_home, given)]
    return expanduser(given) if isinstance(given, str | Path) and str(given).startswith("~") else given  # noqa: PTH111


class Options(BaseModel):
    """Base of a verb's options: frozen, an unknown one is refused; one without a help is not the command line's."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # most verbs are not the one that runs

    if not TYPE_CHECKING:  # pydantic's own signature is what type checkers know

        def __init__(self, **given: Any) -> None:
            paths = {name for name, field in type(self).model_fields.items() if "Path" in str(field.annotation)}
            try:
                super().__init__(**{name: _at_home(of) if name in paths else of for name, of in given.items()})
            except ValidationError as error:
                raise UsageError(f"{mistakes_text(error, type(self).__name__)}.") from None

    @classmethod
    def of(cls, given: Mapping[str, Any], verb: str) -> Self:
        """Make the options by name; say what is wrong in a sentence."""
        known = cls.model_fields
        also = {name for field in known.values() for name in getattr(field.validation_alias, "choices", ())}
        for name in given:
            if name not in known and name not in also:
                raise UnknownName(f"option of {verb}", name, known)
        missing = [name for name, field in known.items() if field.is_required() and name not in given]
        if missing:
            raise UsageError(f"{verb} needs {' and '.join(f'{name}=' for name in missing)} too.")
        return cls(**given)

    @classmethod
    def model_json_schema(cls, *args: Any, **more: Any) -> dict[str, Any]:
        """Return pydantic's schema, with each option's help as its description."""
        schema = super().model_json_schema(*args, **more)
        for name, described in schema["properties"].items():
            described["description"] = cls.help_of(name)
        return schema

    @classmethod
    def help_of(cls, name: str) -> str:
        """Return what the command line says of an option."""
        return next((m.help or "" for m in cls.model_fields[name].metadata if hasattr(m, "help")), "")


P = ParamSpec("P")
O_contra = TypeVar("O_contra", bound=Options, contravariant=True)
O = TypeVar("O", bound=Options)  # noqa: E741
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Function(Protocol[P, O_contra, R_co]):
    """Takes a verb's options by name, or as one object."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, options: O_contra, /) -> R_co: ...


def function_of(options: Callable[P, O]) -> Callable[[Callable[[O], R]], Function[P, O, R]]:
    """Decorate a function of one ``Options`` so that it takes these by name too, as its signature then says."""
    model = cast("type[O]", options)

    def decorate(function: Callable[[O], R]) -> Function[P, O, R]:
        model.model_rebuild()  # its signature is of a model that is built
        name = f"edgepeft.{function.__name__}"

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> R:
            if args and (len(args) > 1 or named or not isinstance(args[0], model)):
                raise UsageError(f"{name} takes its options by name, or one {model.__name__}.")
            return function(args[0] if args else model.of(named, name))

        parameters = [
            parameter.replace(annotation=model.model_fields[option].annotation)
            for option, parameter in inspect.signature(model).parameters.items()
            if model.help_of(option)
        ]
        result = function.__annotations__["return"]
        call.__signature__ = inspect.Signature(parameters, return_annotation=result)  # type: ignore[attr-defined]
        told = (f"    {option}: {model.help_of(option)}" for option in model.model_fields if model.help_of(option))
        call.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *told])
        return cast("Function[P, O, R]", call)

    return decorate


def settings_of(pairs: Any, option: str = "--set", example: str = "rank=8") -> dict[str, Any]:
    """Turn ``["rank=8"]`` into ``{"rank": "8"}``; return a mapping as it is."""
    if pairs is None or isinstance(pairs, Mapping):
        return dict(pairs or {})
    pairs = list(pairs) if isinstance(pairs, Iterable) and not isinstance(pairs, str) else [pairs]
    for pair in pairs:
        if not isinstance(pair, str) or "=" not in pair:
            raise UsageError(f"{option} {pair}: name=value is needed, for example {option} {example}.")
    return dict(pair.split("=", 1) for pair in pairs)


def listed(given: str | os.PathLike[str] | Sequence[Any]) -> list[Any]:
    """Return one text or path, or several of them, as a list."""
    return [given] if isinstance(given, str | os.PathLike) else list(given)


def share_of(option: str, text: str) -> float:
    """Read a fraction in [0, 1): ``5%`` and ``0.05`` are the same; a bare number of 1 or more is not guessed at."""
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise UsageError(f"{option} {text!r}: give a share such as 5% or 0.05, under 100%.")
    return value


def at_least(least: int) -> AfterValidator:
    """Make a check that refuses a smaller number."""

    def check(value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and not least <= value < math.inf:
            raise UsageError(f"--{_flag(info)} must be at least {least}; found {value}.")
        return value

    return AfterValidator(check)


Count = Annotated[int | None, at_least(1)]


def _flag(info: ValidationInfo) -> str:
    return (info.field_name or "").replace("_", "-")


class _DataFrame(Protocol):
    """Of pandas or polars."""

    @property
    def columns(self) -> Any: ...


Folder = str | os.PathLike[str]
Folders = Folder | Sequence[Folder]
Rows = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | _DataFrame
"""A file or a dataset's name; or the rows themselves: dictionaries, a DataFrame, a ``datasets.Dataset``."""

_AS_GIVEN = PlainValidator(lambda given: given)
GivenRows = Annotated[Rows, _AS_GIVEN, WithJsonSchema({"type": "string"})]
_FORMATS = "jsonl, json, csv, tsv (each .gz too), parquet, arrow, xlsx, conll, a folder or zip of texts"
ROWS_HELP = f"{_FORMATS}, - for standard input, or a dataset's name or folder"
SETTINGS_HELP = "A hyperparameter of the method: name=value; may repeat."

Replace = Annotated[bool, Option("--force", help="Replace an existing folder.")]
Threads = Annotated[Count, Option(min=1, help="At most as many as the host allows.")]
_OF_TORCH = "At most the cores in force. Default: OMP_NUM_THREADS, or these."
TorchThreads = Annotated[Count, Option("--threads", min=1, help=_OF_TORCH)]
NoCache = Annotated[bool, Option("--no-cache", help="A copy of the weights for each task; nothing is kept on disk.")]
# What is measured, or predicted.
Mode = Annotated[
    str,
    Option(
        help="limits: the device's cores and memory at this host's speed; calibrated: its speed too; "
        "predicted: nothing runs. On the device itself the first two measure."
    ),
]
MaxSeconds = Annotated[
    float | None, Option(help="For all; what does not fit is left out. Default: 600 of rounds, a workload.")
]

# What goes into a bundle.
Trainable = Annotated[bool, Option("--trainable", help="Kept for older commands; every task can be tuned without it.")]
DeltaWeights = Annotated[Literal["fp32", "fp16"], Option(help="How the deltas are stored.")]
AcceptError = Annotated[bool, Option("--accept-error", help="Take tasks however far smaller weights move answers.")]
_SET = "the set of labels that has the true one in this share of rows"
Coverage = Annotated[float | None, Option(metavar="SHARE", help=f"An answer is unsure unless alone in {_SET}.")]
Risk = Annotated[float | None, Option(metavar="SHARE", help="Of answers that are sure, at most this share is wrong.")]

# What rows are read from.
VERIFY_DATA = Option("--verify-data", help=f"Texts to verify on: {_FORMATS}.")
VerifyRows = Annotated[Rows | None, _AS_GIVEN, WithJsonSchema({"type": ["string", "null"]}), VERIFY_DATA]
TextColumn = Annotated[str | None, Option(help="The column of texts. Default: sentence1.", metavar="NAME")]
PairColumn = Annotated[str | None, Option(help="That of second texts. Default: sentence2.", metavar="NAME")]
LabelColumn = Annotated[str | None, Option(help="That of labels. Default: label.", metavar="NAME")]
LabelSeparator = Annotated[
    str | None,
    Option(help="What stands between labels, where several are one text, as in a table's cell.", metavar="TEXT"),
]

_KINDS = ", ".join(names_of("edgepeft.tasks"))
TaskKind = Annotated[str | None, Option("--kind", help=f"The kind of task: {_KINDS}. Default: by what is given.")]
MethodSettings = Annotated[
    Mapping[str, Any], BeforeValidator(settings_of), Option("--set", help=SETTINGS_HELP, metavar="NAME=VALUE")
]


class ColumnOptions(Options):
    """What labelled rows call their columns."""

    text_column: TextColumn = None
    pair_column: PairColumn = None
    label_column: LabelColumn = None
    label_separator: LabelSeparator = None


_GivenOrShare = Annotated[Rows | float | None, _AS_GIVEN, WithJsonSchema({"type": ["string", "number", "null"]})]
_SHARE = "a file, or a share of --data to hold out (0.2, 20%)"


class LearningOptions(ColumnOptions):
    """The rows that a run learns from."""

    data: Annotated[GivenRows, Option(help=f"Rows to train on: {ROWS_HELP}.")]
    eval: Annotated[_GivenOrShare, Option(help=f"Rows that choose the checkpoint: {_SHARE}. Default: 10%.")] = None
    test: Annotated[_GivenOrShare, Option(help=f"Rows whose score is reported: {_SHARE}. Default: another 10%.")] = None
    kind: TaskKind = None
    skip_bad: Annotated[bool, Option("--skip-bad", help="Go on without unusable rows; else all are named.")] = False


def _positive(value: float | None, info: ValidationInfo) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise UsageError(f"--{_flag(info)} must be a positive number; found {value}.")
    return value


# In Python, cards and checkpoints by their long names too.
LearningRate = Annotated[
    float | None,
    AfterValidator(_positive),
    Field(validation_alias=AliasChoices("lr", "learning_rate"), serialization_alias="learning_rate"),
]
HeadRate = Annotated[
    float | None,
    AfterValidator(_positive),
    Field(validation_alias=AliasChoices("head_lr", "head_learning_rate"), serialization_alias="head_learning_rate"),
]
EPOCHS = 3  # BERT's fine-tuning (Devlin et al., 2019, appendix A.3) and SPARTAN's large tasks
# Where neither is given. 64 rows, MiniLM, lora, test accuracy after 3 passes (12 steps) and 100 steps: SMS 88.0 (the
# majority has 87.7) and 96.0 %, SST-2 67.7 and 72.5 %; pfeiffer: 88.2 and 94.5, 67.0 and 70.5, airline 69.3 and 71.0 %.
MIN_STEPS = 100


class TrainingLoopOptions(Options):
    """Numbers of one run; None means a default that depends on method, task or data.

    ``epochs`` and ``steps`` exclude each other; ``warmup`` is the part of the steps in which the rate rises.
    """

    few_shot: Annotated[int | None, Option(help="Train on N rows in all, stratified.")] = None
    balanced: Annotated[bool, Option("--balanced", help="Weigh rows so that all labels weigh alike.")] = False
    epochs: Annotated[Count, Option(help="Passes over the rows. Default: 3, or more up to 100 steps.")] = None
    steps: Annotated[
        int | None, at_least(0), Option(help="Updates, instead of --epochs; 0 scores what is there, prompted.")
    ] = None
    patience: Annotated[Count, Option(help="Stop after N evaluations without a better score.")] = None
    metric: Annotated[
        str | None, Option(help="accuracy, macro_f1, f1, f1:LABEL, matthews; pearson, spearman, pearson_spearman.")
    ] = None
    lr: LearningRate = None
    head_lr: HeadRate = None
    batch_size: Count = None
    seed: Annotated[
        int, at_least(0), Field(lt=2**63), Option(help="Of what is new in a delta, order, dropout and few shots.")
    ] = 0
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    save_every: Annotated[int, at_least(1)] = 100

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.epochs is not None and self.steps is not None:
            raise UsageError("--epochs and --steps exclude each other; give one of them.")
        return self

    def total_steps(self, per_epoch: int) -> int:
        """Updates of the whole run."""
        if self.steps is not None:
            return self.steps
        return max(per_epoch * EPOCHS, MIN_STEPS) if self.epochs is None else per_epoch * self.epochs
