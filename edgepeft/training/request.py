"""A training run as ``edgepeft train``'s options name it, and what they come to: method, rows, numbers of the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from edgepeft.data.parts import Division, Given, TaskData, load_data
from edgepeft.data.rows import Columns
from edgepeft.data.text_template import TextTemplate, text_template
from edgepeft.data.training_loop.options import BATCH
from edgepeft.methods.base import Method, method_named
from edgepeft.tasks.base import kind_asked
from edgepeft.training.devices import device_of
from edgepeft.training.options import TrainOptions

__all__ = ["METHOD", "Request", "ResolvedRequest"]

METHOD = "lora"  # of a task that names none: as good as full fine-tuning in docs/methods.md, and PEFT has it too
_COLUMNS = ("text_column", "pair_column", "label_column", "label_separator")
_OF_TEXT = ("format", "source", "target")


class Request(BaseModel):
    """The options of ``edgepeft train`` but for its output; their help says what each means.

    ``set`` are the method's hyperparameters, ``field`` the columns of fields; a number in place of the files ``eval``
    and ``test`` is a share to hold out.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str
    data: Path
    task: str
    eval: Given = None
    test: Given = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    format: str | None = None
    source: str | None = None
    target: str | None = None
    field: dict[str, str] = {}
    kind: str | None = None
    method: str = METHOD
    set: dict[str, Any] = {}
    few_shot: int | None = None
    epochs: int | None = None
    steps: int | None = None
    patience: int | None = None
    lr: float | None = None
    head_lr: float | None = None
    batch_size: int = BATCH
    max_length: int | None = None
    long: Literal["cut", "windows"] | None = None
    stride: int | None = None
    max_target_length: int | None = None
    regression: bool = False
    balanced: bool = False
    metric: str | None = None
    seed: int = 0
    head: str | None = None
    curve: bool = False
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    bf16: bool = False

    def resolved(self) -> ResolvedRequest:
        """The request with names looked up and numbers checked; no file is read."""
        method = method_named(self.method).from_settings(self.set)
        template = text_template(
            **{name: getattr(self, name) for name in _OF_TEXT},
            kind="regression" if self.regression else self.kind,
            fields=self.field,
            adapters=method.places_adapters,
        )
        kind = kind_asked(template.kind(self.kind), regression=self.regression, writes=template.target is not None).name
        found = template.format
        said = {} if found is None else {"metric": found.metric, "max_length": found.max_length}
        shared = {name: getattr(self, name) for name in type(self).model_fields.keys() & _numbers()}
        shared |= {name: value for name, value in said.items() if shared[name] is None}
        rates = {"learning_rate": self.lr, "head_learning_rate": self.head_lr}
        options = TrainOptions(**shared | rates | {"kind": kind})
        device_of(options.device)
        return ResolvedRequest(self, method, template, options)


@dataclass(frozen=True)
class ResolvedRequest:
    """A request that was checked, with its method, its text template and the numbers of its run."""

    request: Request
    method: Method
    template: TextTemplate
    options: TrainOptions

    def rows(self) -> TaskData:
        """The rows in parts."""
        asked, template = self.request, self.template
        columns = Columns(*(getattr(asked, name) for name in _COLUMNS[:3]))
        columns = columns._replace(separator=asked.label_separator)
        division: Division = {"kind": self.options.kind, "few_shot": asked.few_shot, "seed": asked.seed}
        if template.format is not None and template.format.step:
            division["labels"] = template.format.names
        data = load_data(asked.data, asked.eval, asked.test, template.columns(columns), **division)
        return template.applied(data, columns.names[2])


def _numbers() -> frozenset[str]:
    return frozenset(TrainOptions.__dataclass_fields__)
