"""``edgepeft train``: from a backbone, a method and data to a delta's folder, by a course in PyTorch."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from edgepeft import __version__
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.data.batches import encode_parts
from edgepeft.data.course.run import Course, CourseResult, Progress
from edgepeft.data.parts import TaskData, load_data
from edgepeft.delta import ERRORS, Delta, new_delta
from edgepeft.methods.base import Method, method_of
from edgepeft.training.engine import PyTorchEngine
from edgepeft.training.options import TrainOptions
from edgepeft.training.output import FOLDER, prepare_output

__all__ = ["TrainResult", "train"]


@dataclass(frozen=True)
class TrainResult(CourseResult):
    """What the course gave, and the delta that was written."""

    delta: Delta


def train(
    backbone: Backbone | Path | str,
    method: Method | str,
    data: TaskData | Path | str,
    options: TrainOptions,
    out: Path | str,
    *,
    resume: bool = False,
    force: bool = False,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    start: Mapping[str, Tensor] | None = None,
) -> TrainResult:
    """Train and write the delta's folder; torch's global generator is left as it was.

    Args:
        backbone: opened, or its folder or Hub name.
        method: what is trained beside the head; may be a text such as ``lora:rank=8``.
        data: rows in parts, or a file of labelled rows, of which two tenths are held out to choose and to report.
        options: numbers of the run.
        out: the delta's folder; holds checkpoints until the run is over.
        resume: continue the interrupted run in ``out``.
        force: replace what is in ``out``.
        watch: gets each progress.
        stop: whether to write a checkpoint and end; called after every step.
        start: every tensor of the delta, to begin there and not where the method does.

    Raises:
        UsageError: options that this backbone, method or data cannot have; ``out`` exists.
        BundleError: ``start`` is of another method or number of labels.
        EdgepeftError: the loss or a gradient became infinite; no space left.
        Interrupted: ``stop`` returned True; a checkpoint is in ``out``.
    """
    checkpoint = prepare_output(out := Path(out), resume=resume, force=force)
    backbone, method = open_backbone(backbone), method_of(method)
    if not isinstance(data, TaskData):
        data = load_data(Path(data), regression=options.regression, seed=options.seed)
    options = options.resolved(backbone, method)
    engine = _engine(backbone, method, data, options, start)
    course = Course(
        engine,
        data,
        engine.rows,
        options,
        batch_size=options.batch_size,
        folder=out / FOLDER,
        asked=_asked(backbone, method, data, options),
        remedy=f"Lower --lr ({options.learning_rate:g}) or --head-lr ({options.head_learning_rate:g}).",
        watch=watch,
        stop=stop,
    )
    if checkpoint is not None:
        course.resume(checkpoint)
    result, delta = course.run(), engine.delta
    result = replace(result, training={**options.plain(), "few_shot": data.few_shot, **result.training})
    metrics, training = {**result.metrics, ERRORS: result.errors}, result.training
    update = {"metrics": metrics, "training": training, "versions": _versions()}
    delta.card = delta.card.model_copy(update=update)
    delta.save(out, force=True)  # the checkpoints go with the old folder
    return TrainResult(**vars(result), delta=delta)


def _engine(
    backbone: Backbone, method: Method, data: TaskData, options: TrainOptions, start: Mapping[str, Tensor] | None
) -> PyTorchEngine:
    options.metric_for(data.labels)  # a wrong one is refused before anything is loaded
    longest = options.max_length or 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        delta = new_delta(
            backbone, method, options.task, data.labels, pairs=data.pairs, head=options.head, max_length=longest
        )
        model = load_model(backbone)  # transformers draws what the checkpoint lacks
    if start is not None:
        delta.read(start, "the start")
    rows = encode_parts(data, backbone.encoder(), longest, backbone.architecture.pad_token_id)
    rates = options.learning_rate or 0.0, options.head_learning_rate or 0.0
    return PyTorchEngine(delta, model, rows, rates, options.clip_norm)


def _asked(backbone: Backbone, method: Method, data: TaskData, options: TrainOptions) -> dict[str, Any]:
    """What a resumed run must have too."""
    trained = {"backbone": backbone.sha256, "method": method.name, "hyperparameters": method.settings()}
    return {**trained, "data": data.sha256, **options.plain()}


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"edgepeft": __version__, "python": platform.python_version(), **packages}
