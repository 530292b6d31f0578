"""A plan: which backbones, data, methods, rates, seeds and sizes a sweep trains, as a TOML file says.

    backbones = ["$MINILM"]                          # folders or Hub names
    methods = ["linear", "lora:rank=8", "pfeiffer"]
    learning_rates = ["1x", "3x"]                    # numbers, or times a method's default
    seeds = [0, 1, 2]
    sizes = [100, "10%", "100%"]                     # training rows

    [rates]                                          # of single methods, in place of learning_rates
    linear = ["1x"]

    [[grid]]                                         # each combination is a method of its own
    method = "spartan"
    parents = [32, 64]
    children = [8, 16]

    [train]                                          # options of `edgepeft train` that all runs have
    epochs = 3

    [data.sst2]                                      # and those of one data set; its name is the task's
    data = "$DATA/sst2/train.jsonl"
    test = "$DATA/sst2/validation.jsonl"

    [published]                                      # scores of others, shown beside ours
    source = "Houlsby et al. (2019), table 1: BERT-large"
    [published.scores.houlsby]
    sst2 = 0.94

Paths are relative to the plan's folder; ``$NAME`` is a variable of the environment.  A sweep writes them down with
their variables, or relative to its own folder, so that both can be moved to another machine.
"""

import itertools
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from edgepeft.common.errors import UsageError
from edgepeft.common.messages import counted, mistakes_text
from edgepeft.common.resources import toml_at
from edgepeft.common.task_name import check_new_name

_MAX_CELLS = 100_000  # of which a table is made: a second
_TIMES = re.compile(r"(\d+(?:\.\d+)?)x")
PATHS = ("data", "eval", "test", "json_schema")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def _names_a_method(grid: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(grid.get("method"), str):
        raise ValueError('a [[grid]] names its method: method = "spartan"')
    return grid


class Published(BaseModel):
    """Scores of others by method and data set, and where they stand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    scores: dict[str, dict[str, float]]


class Plan(BaseModel):
    """What a plan says; the module's docstring shows each key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str | None = None
    backbones: list[str] = Field(min_length=1)
    methods: list[str] = []
    grid: list[Annotated[dict[str, Any], AfterValidator(_names_a_method)]] = []
    learning_rates: list[float | str] = Field(default=["1x"], min_length=1)
    rates: dict[str, list[float | str]] = {}
    seeds: list[int] = Field(default=[0], min_length=1)
    sizes: list[int | str] = Field(default=["100%"], min_length=1)
    train: dict[str, Any] = {}
    data: dict[Annotated[str, AfterValidator(check_new_name)], dict[str, Any]] = Field(min_length=1)
    published: Published | None = None

    @property
    def all_methods(self) -> list[str]:
        """Every method with its settings, as ``method_of`` reads it."""
        return [*self.methods, *(text for each in self.grid for text in _combined(each))]

    @property
    def description(self) -> str:
        """What is combined, and into how many runs."""
        methods, others = self.all_methods, (self.backbones, self.data, self.sizes, self.seeds)
        runs = sum(len(self.rates_of(each)) for each in methods) * math.prod(map(len, others))
        named = f"{counted(len(methods), 'method')} ({', '.join(methods[:3])}{', ...' * (len(methods) > 3)})"
        return f"{counted(runs, 'run')} of {named}"

    def rates_of(self, method: str) -> list[float | str]:
        """The rates of a method, as the plan has them."""
        return self.rates.get(method, self.rates.get(method.partition(":")[0], self.learning_rates))


def _combined(grid: dict[str, Any]) -> list[str]:
    """``{"method": "lora", "rank": [4, 8]}`` -> ``lora:rank=4``, ``lora:rank=8``."""

    def text(value: Any) -> str:
        if isinstance(value, list):  # of a setting that is a tuple
            return ",".join(map(str, value))
        return str(value).lower() if isinstance(value, bool) else str(value)

    names = [name for name in grid if name != "method"]
    values = [value if isinstance(value, list) else [value] for value in (grid[name] for name in names)]
    made = []
    for chosen in itertools.product(*values):
        settings = ",".join(f"{name}={text(value)}" for name, value in zip(names, chosen, strict=True))
        made.append(f"{grid['method']}:{settings}" if settings else grid["method"])
    return made


def rate_of(given: float | str, default: float) -> float:
    """A learning rate: a number as it is, ``3x`` as three times the default, to three digits."""
    times = _TIMES.fullmatch(given) if isinstance(given, str) else None
    if times:
        return float(f"{float(times[1]) * default:.3g}")
    if isinstance(given, str) or not (math.isfinite(given) and given > 0):
        raise UsageError(f'learning rate {given!r}: a positive number is needed, or times the default: "3x".')
    return float(given)


def share_of_rows(size: int | str, rows: int) -> int | None:
    """How many of so many training rows a size is; None for all."""
    if isinstance(size, str):
        number = re.fullmatch(r"(\d+(?:\.\d+)?)%", size)
        if number is None or not 0 < float(number[1]) <= 100:
            raise UsageError(f'size {size!r}: a number of rows is needed, or a share of them: "10%".')
        return None if float(number[1]) == 100 else max(1, round(float(number[1]) / 100 * rows))
    if size < 1:
        raise UsageError(f"size {size}: at least one row trains.")
    return size


def read_plan(path: Path) -> Plan:
    """The plan with its paths as one would give them here; absolute ones and their variables stay as they are."""
    try:
        plan = Plan.model_validate(toml_at(path))
    except FileNotFoundError:
        raise UsageError(f"there is no plan {path}; docs/sweeps.md shows one.") from None
    except ValidationError as error:
        raise UsageError(
            f"{path}: {mistakes_text(error, 'the plan')}; known keys: {', '.join(Plan.model_fields)}."
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} is no plan in TOML: {reason}.") from None
    if not (plan.methods or plan.grid):
        raise UsageError(f'{path} names no method: methods = ["lora"], or a [[grid]].')
    lists = [("[[grid]]", each) for each in plan.grid] + [("[rates]", plan.rates)]
    if empty := [f"{where} {name}" for where, each in lists for name, values in each.items() if values == []]:
        raise UsageError(f"{path}: {empty[0]} = [] has nothing to run; write one value or more, or leave it out.")
    # Runs that it has if each method has the usual rates, counted and not listed.
    grids = (math.prod(len(value) for value in grid.values() if isinstance(value, list)) for grid in plan.grid)
    cells = (len(plan.methods) + sum(grids)) * math.prod(
        map(len, (plan.backbones, plan.data, plan.sizes, plan.learning_rates, plan.seeds))
    )
    if cells > _MAX_CELLS:
        raise UsageError(f"{path} has {cells:,} runs, and a sweep has at most {_MAX_CELLS:,}; divide it.")
    methods = plan.all_methods
    known = {*methods, *(method.partition(":")[0] for method in methods)}
    if odd := [name for name in plan.rates if name not in known]:
        raise UsageError(f"{path}: [rates] names {odd[0]}, which is no method of the plan: {', '.join(sorted(known))}.")

    def here(value: str) -> str:
        try:
            expanded = _expanded(value)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        return value if Path(expanded).is_absolute() else os.path.relpath(path.parent / expanded)

    def backbone(name: str) -> str:
        """A folder beside the plan or in its place; else the name as it is, of the Hub."""
        near = here(name)
        return near if "$" in name or Path(near).is_dir() else name

    return _with_paths(plan, here, backbone)


def recorded(plan: Plan, folder: Path) -> Plan:
    """The plan as a sweep in ``folder`` writes it down: paths relative to that, but for variables and absolute ones."""

    def path(value: str) -> str:
        if value.startswith("$") or Path(value).is_absolute():
            return value
        return os.path.relpath(value, os.path.realpath(folder))

    return _with_paths(plan, path, lambda name: path(name) if Path(name).is_dir() else name)


def _with_paths(plan: Plan, path: Callable[[str], str], backbone: Callable[[str], str]) -> Plan:
    """The plan with its files' paths and its backbones each made anew."""

    def with_paths(options: Mapping[str, Any]) -> dict[str, Any]:
        return {key: path(value) if _is_path(key, value) else value for key, value in options.items()}

    data = {name: with_paths(each) for name, each in plan.data.items()}
    made = {"data": data, "train": with_paths(plan.train), "backbones": list(map(backbone, plan.backbones))}
    return plan.model_copy(update=made)


def _is_path(option: str, value: Any) -> bool:
    """Whether it is a file's path, and no share of rows such as ``20%``."""
    share = option in ("eval", "test") and str(value).removesuffix("%").replace(".", "", 1).isdigit()
    return option in PATHS and isinstance(value, str) and not share


def placed(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Options of ``edgepeft train`` that a sweep in ``folder`` wrote down, with paths that can be opened here."""
    found = dict(options)
    for name in (name for name, value in options.items() if name == "backbone" or _is_path(name, value)):
        text = _expanded(options[name])
        path = os.path.normpath(Path(os.path.realpath(folder)) / text)  # a sweep that is not there yet has no ".."
        found[name] = path if name != "backbone" or Path(path).exists() else text
    return found


def _expanded(text: str) -> str:
    def variable(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise UsageError(f"{text} has the variable {name}, which is not set: export {name}=FOLDER.")
        return os.environ[name]

    return _VARIABLE.sub(variable, text)
