"""``edgepeft.train``: what its options come to (method, rows, numbers of the run), and the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from edgepeft.common.progress import shown_run
from edgepeft.data.parts import Division, TaskData, given_rows, load_data
from edgepeft.data.readers import source_of
from edgepeft.data.rows import Columns
from edgepeft.data.text_template import TextTemplate, text_template
from edgepeft.data.told import told
from edgepeft.data.training_loop.run import resumable
from edgepeft.methods.base import Method, method_named
from edgepeft.options.base import function_of
from edgepeft.options.train import METHOD, TrainOptions, TrainRequest
from edgepeft.tasks.base import kind_asked
from edgepeft.training.devices import device_of, use_threads
from edgepeft.training.loop import TrainResult, prepare_output
from edgepeft.training.loop import train as train_delta
from edgepeft.training.settings import TrainSettings

__all__ = ["ResolvedRequest", "resolved", "run", "train"]

_OF_TEXT = ("format", "source", "target")


@dataclass(frozen=True)
class ResolvedRequest:
    """A request that was checked, with its method, its text template and the numbers of its run."""

    request: TrainRequest
    method: Method
    template: TextTemplate
    settings: TrainSettings

    def rows(self) -> TaskData:
        """The rows in parts."""
        asked, template = self.request, self.template
        division: Division = {"kind": self.settings.kind, "few_shot": asked.few_shot, "seed": asked.seed}
        if template.format is not None and template.format.step:
            division["labels"] = template.format.names
        held_out = given_rows("--eval", asked.eval), given_rows("--test", asked.test)
        rows, columns = source_of(asked.data), Columns.of(asked)
        data = load_data(rows, *held_out, template.columns(columns), skip_bad=asked.skip_bad, **division)
        return template.applied(data, columns.names[2])


def resolved(request: TrainRequest) -> ResolvedRequest:
    """The request with names looked up and numbers checked; no file is read."""
    method = method_named(request.method or METHOD).from_settings(request.set)
    template = text_template(
        **{name: getattr(request, name) for name in _OF_TEXT},
        kind="regression" if request.regression else request.kind,
        fields=request.field,
        adapters=method.places_adapters,
    )
    kind = kind_asked(template.kind(request.kind), regression=request.regression, writes=template.target is not None)
    found = template.format
    said = {} if found is None else {"metric": found.metric, "max_length": found.max_length}
    numbers = type(request).model_fields.keys() & TrainSettings.__dataclass_fields__.keys()
    shared = {name: getattr(request, name) for name in numbers}
    shared |= {name: value for name, value in said.items() if shared[name] is None}
    rates = {"learning_rate": request.lr, "head_learning_rate": request.head_lr}
    settings = TrainSettings(**shared | rates | {"kind": kind.name})
    device_of(settings.device)
    return ResolvedRequest(request, method, template, settings)


def run(options: TrainOptions) -> TrainResult:
    """Train as the options say, with progress on standard error."""
    resolved(options)  # what is wrong with the options, or with what lies there, is reported before files are read
    out, resume, force = Path(options.out), options.resume, options.force
    prepare_output(out, resume=resume, force=force)
    found = resolved(told(options))
    rows = found.rows()
    threads = torch.get_num_threads()
    try:
        use_threads(options.threads)
        with shown_run(options.task) as (watch, stop):
            how: dict[str, Any] = {"resume": resume, "force": force, "watch": watch, "stop": stop}
            return train_delta(options.backbone, found.method, rows, found.settings, out, **how)
    finally:
        torch.set_num_threads(threads)


@function_of(TrainOptions)
def train(options: TrainOptions) -> TrainResult:
    """Train a task's delta on a frozen backbone, and write its folder ``out``.

    Returns the score on rows that neither trained nor chose the checkpoint, the baselines beside it, the errors by
    class and the delta.

    Raises:
        UsageError: options that are wrong or exclude each other; a file that is not there.
        DataError: rows that cannot be used.
        Interrupted: Ctrl-C; ``resume=True`` continues.
    """
    with resumable():
        return run(options)
