"""Bundles with any number of tasks, of random weights or a folder's: one export a structure, the others copied."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from edgepeft.backbones.config import config_of, read_config
from edgepeft.backbones.emit import BUNDLE_FILES, WEIGHTS_FILE
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bench.planning.target import (
    fresh_delta,
    manifest_of,
    write_random_checkpoint,
    write_random_tokenizer,
    write_task,
)
from edgepeft.bundle.bundle import BACKBONE_FILE, DECODER_FILE, ENCODER_FILE, TASKS_FOLDER
from edgepeft.bundle.manifest import DeltaDtype, Hashes, TaskEntry, TextHashes, WeightsDtype
from edgepeft.common.atomic import write_atomically
from edgepeft.common.resources import sha256_of
from edgepeft.graph.half import store_in_half

_STAND_OUT, _TIMES = 2, 9  # channels behind a LayerNorm, and how far above the others
_SPREAD = 0.02  # of a copied task's weights about those that it was copied from


@dataclass(frozen=True)
class Structure:
    """A method with its settings, and the names of the tasks that have it.

    ``head`` None is the backbone's kind, or the one that ``kind``, of task, needs; ``labels`` None is for heads that
    write text and kinds without.
    """

    method: str
    tasks: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    head: str | None = None
    labels: tuple[str, ...] | None = ("0", "1")
    kind: str | None = None


def config_in(architecture: str) -> dict[str, Any]:
    """The config of a named architecture, or of a folder in Hugging Face's layout."""
    folder = Path(architecture)
    return read_config(folder / "config.json") if folder.is_dir() else config_of(architecture)


def write_bundle(
    folder: Path,
    architecture: str,
    structures: Sequence[Structure] = (),
    *,
    weights: WeightsDtype = "fp32",
    delta_weights: DeltaDtype = "fp32",
    seed: int = 0,
) -> Path:
    """Make a bundle of the named architecture in the new ``folder``; the same seed gives the same weights.  Those of a
    folder in Hugging Face's layout are its own.
    """
    folder.mkdir(parents=True)
    if Path(architecture).is_dir():
        given = open_backbone(architecture)
        for name in (WEIGHTS_FILE, *BUNDLE_FILES):
            if (given.folder / name).is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(given.folder / name, folder / name)
    else:
        sizes = write_random_checkpoint(config_in(architecture), folder, seed=seed)
        _let_channels_stand_out(folder / WEIGHTS_FILE)
        write_random_tokenizer(sizes, folder, seed=seed)
    backbone = open_backbone(str(folder))
    graphs = {BACKBONE_FILE: backbone.architecture.graph(backbone.checkpoint)}
    text = backbone.architecture.text_graphs(backbone.checkpoint)
    graphs |= {ENCODER_FILE: text.encoder, DECODER_FILE: text.decoder} if text else {}
    entries: dict[str, TaskEntry] = {}
    for structure in structures:
        first = structure.tasks[0]
        delta = fresh_delta(
            backbone,
            structure.method,
            structure.settings,
            seed,
            task=first,
            head=structure.head,
            labels=structure.labels,
            kind=structure.kind,
        )
        entries[first] = write_task(backbone, delta)
        if delta_weights == "fp16":
            entries[first] = _halved(folder, first, entries[first])
        for number, task in enumerate(structure.tasks[1:], 1):
            entries[task] = _copied(folder, first, task, entries[first], seed + number)
    stored = {} if weights == "fp32" else _quantised(backbone, [*graphs.values()])
    sha256 = {}
    for name, graph in graphs.items():
        write_atomically(folder / name, graph.SerializeToString(deterministic=True))
        sha256[name] = sha256_of(folder / name)
    manifest = manifest_of(backbone, architecture, entries)
    hashes = Hashes(graph=sha256[BACKBONE_FILE], weights=stored.pop("weights", backbone.sha256))
    written = TextHashes(encoder=sha256[ENCODER_FILE], decoder=sha256[DECODER_FILE]) if text else None
    entry = manifest.backbone.model_copy(update={**stored, "sha256": hashes, "text": written})
    manifest.model_copy(update={"backbone": entry}).write(folder)
    return folder


def _let_channels_stand_out(weights: Path) -> None:
    """Have two channels behind each LayerNorm be large, as in models that were trained.

    An export in 8 bits gives those fixed steps, and even channels, which no trained model has, a step for each token:
    that takes up to a quarter more time.
    """
    tensors = load_file(weights)
    for name, values in tensors.items():
        if name.endswith("LayerNorm.weight"):
            values[:_STAND_OUT] *= _TIMES
    save_file(tensors, weights, metadata={"format": "pt"})


def _copied(folder: Path, source: str, task: str, entry: TaskEntry, seed: int) -> TaskEntry:
    """A task of the same structure with other weights."""
    model = onnx.load(folder / TASKS_FOLDER / f"{source}.onnx")
    rng = np.random.default_rng(seed)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if np.issubdtype(values.dtype, np.floating) and values.ndim:
            noise = _SPREAD * rng.standard_normal(values.shape, np.float32)
            tensor.CopyFrom(numpy_helper.from_array((values + noise).astype(values.dtype), tensor.name))
    for fact in model.metadata_props:
        if fact.key == "edgepeft.task":
            fact.value = task
    return _written(folder, task, model, entry)


def _halved(folder: Path, task: str, entry: TaskEntry) -> TaskEntry:
    model = onnx.load(folder / TASKS_FOLDER / f"{task}.onnx")
    store_in_half(model.graph)
    return _written(folder, task, model, entry)


def _written(folder: Path, task: str, model: onnx.ModelProto, entry: TaskEntry) -> TaskEntry:
    path = folder / TASKS_FOLDER / f"{task}.onnx"
    write_atomically(path, model.SerializeToString(deterministic=True))
    return entry.model_copy(update={"n_bytes": path.stat().st_size, "sha256": sha256_of(path)})


def _quantised(backbone: Backbone, graphs: Sequence[onnx.ModelProto]) -> dict[str, str]:
    """Replace the checkpoint with 8-bit weights and have the graphs read them; return the manifest's fields."""
    from edgepeft.training.exporting.backbone import write_weights

    fields = {"weights_dtype": "int8", "checkpoint_sha256": backbone.sha256}
    fields["weights"] = write_weights(graphs, backbone, backbone.folder, "int8")
    backbone.weights.unlink()
    return fields
