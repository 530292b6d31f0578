"""What of the few-shot table needs PyTorch: an untrained regression, and cells trained from ONNX Runtime's start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from onnx import ModelProto, numpy_helper
from torch import Tensor

from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.bundle import Bundle, read_graph
from edgepeft.bundle.card import DeltaCard
from edgepeft.bundle.delta import MAX_LENGTH, Delta, new_delta
from edgepeft.data.parts import TaskData, load_data
from edgepeft.graph.template import with_labels
from edgepeft.methods.base import method_named
from edgepeft.options.verbs import TrainSettings
from edgepeft.training.loop import train_delta


def write_fresh_delta(backbone: str, method: str, folder: Path, *, pairs: bool) -> None:
    """An untrained delta with one output, drawn from seed 0, as a template's modules are."""
    source, made = open_backbone(backbone), method_named(method).from_settings({})
    longest = min(MAX_LENGTH, source.architecture.max_length - made.prompt_length(source.architecture))
    torch.manual_seed(0)
    new_delta(source, made, folder.name, None, pairs=pairs, max_length=longest).save(folder)


def train_from(
    folder: Path,
    data: Path,
    work: Path,
    *,
    task: str,
    template: str | None,
    metric: str | None,
    few_shot: int,
    steps: int,
    seed: int,
) -> dict[str, Any]:
    """Train as `edgepeft train` from where `edgepeft tune` starts; the scores.  ``work`` is used and removed."""
    bundle = Bundle(folder)
    files = [data / f"{part}.jsonl" for part in ("train", "eval", "test")]
    rows = load_data(*files, regression=template is None, few_shot=few_shot, seed=seed)
    graph = _start(bundle, rows, task, template, seed)
    card = DeltaCard.model_validate_json({entry.key: entry.value for entry in graph.metadata_props}["edgepeft.card"])
    backbone = open_backbone(str(folder))
    method = method_named(card.method).from_settings(card.hyperparameters)
    options = TrainSettings(
        task=task,
        steps=steps,
        seed=seed,
        metric=metric,
        max_length=card.max_length,
        regression=template is None,
        head=card.head,
    )
    shutil.rmtree(work, ignore_errors=True)
    probe = new_delta(backbone, method, task, rows.labels, head=card.head, max_length=card.max_length)
    result = train_delta(backbone, method, rows, options, work, start=_tensors(graph, probe, backbone))
    shutil.rmtree(work)
    return {name: result.metrics[name] for name in ("metric", "eval", "test", "n_test")}


def _start(bundle: Bundle, rows: TaskData, task: str, template: str | None, seed: int) -> ModelProto:
    """The delta graph that `edgepeft tune` begins with."""
    if template is None:
        return bundle.delta_graph(task)
    graph = read_graph(bundle.folder / "templates" / f"{template}.onnx")
    return with_labels(graph, task, rows.task_kind, pairs=rows.pairs, seed=seed)


def _tensors(graph: ModelProto, delta: Delta, backbone: Backbone) -> dict[str, Tensor]:
    """Its trained tensors; an override's is called as in the checkpoint there, as in the model here."""
    stored = {tensor.name: tensor for tensor in graph.graph.initializer}
    tensors = {}
    for name in delta.tensors():
        part, _, tensor = name.partition("/")
        there = f"override/{backbone.checkpoint.find(tensor).name}" if part == "override" else name
        tensors[name] = torch.from_numpy(numpy_helper.to_array(stored[there]).copy())
    return tensors
