"""Writing a bundle: the backbone once, then each task, verified against PyTorch."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

import onnx
from torch import nn

from edgepeft import __version__
from edgepeft.backbones.config import read_config
from edgepeft.backbones.convert import BUNDLE_FILES
from edgepeft.backbones.emit import WEIGHTS_FILE
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.delta import Delta
from edgepeft.errors import BundleError, UsageError
from edgepeft.export.check import check_content
from edgepeft.export.delta import export_delta
from edgepeft.export.gradients import verified_training_graph
from edgepeft.export.step import Step
from edgepeft.export.template import write_template
from edgepeft.export.training_graph import refuse_generated
from edgepeft.methods.base import Method
from edgepeft.resources import new_folder
from edgepeft.runtime.bundle import BACKBONE_FILE, Bundle
from edgepeft.runtime.manifest import BackboneEntry, Hashes, Manifest, check_task_name
from edgepeft.runtime.tasks import PreparedTask, commit_tasks, prepare_exported, prepare_task

__all__ = ["add_deltas", "export_bundle", "write_backbone"]

Stage = Callable[[str], AbstractContextManager[object]]


def _silent(_: str) -> AbstractContextManager[object]:
    return nullcontext()


def export_bundle(
    backbone: Backbone,
    deltas: Sequence[Path],
    out: Path,
    *,
    texts: Sequence[Text],
    force: bool = False,
    trainable: bool = False,
    templates: Sequence[Method] = (),
    stage: Stage = _silent,
) -> Manifest:
    """Write a bundle that appears whole or not at all.

    ``texts`` are what each task is verified on; ``trainable`` adds the training graphs, ``templates`` are methods to
    start tasks from on a board; ``stage`` is entered around each step with its name.

    Raises:
        UsageError: ``out`` exists and ``force`` is not given, two deltas have one task name, or a method has no
            training graph.
        BundleError: a delta is damaged or of another backbone.
        VerificationFailed: a task does not give PyTorch's logits; nothing is left behind.
    """
    with new_folder(out, force=force) as new:
        with stage("backbone"):
            write_backbone(backbone, new)
        exporter = _Exporter(Bundle(new), backbone, texts, trainable)
        commit_tasks(exporter.bundle, exporter.prepare(deltas, stage))
        for method in templates:
            with stage(method.name):
                write_template(exporter.bundle, backbone, exporter.model, method, texts)
        return exporter.bundle.manifest


def add_deltas(
    folder: Path,
    deltas: Sequence[Path],
    *,
    texts: Sequence[Text],
    replace: bool = False,
    trainable: bool = False,
    stage: Stage = _silent,
) -> Manifest:
    """Put tasks into an existing bundle: all of them or none; no byte of the backbone changes.

    A delta is a folder that ``edgepeft train`` wrote, or an exported ``<task>.onnx``.

    Raises:
        UsageError: a task of that name is there and ``replace`` is not given.
        BundleError, VerificationFailed: as ``export_bundle``.
    """
    bundle = Bundle(folder)
    backbone = Backbone(bundle.manifest.backbone.source, folder, read_config(folder / "config.json"))
    tasks = _Exporter(bundle, backbone, texts, trainable).prepare(deltas, stage)
    return commit_tasks(bundle, tasks, replace=replace)


def write_backbone(backbone: Backbone, folder: Path) -> Manifest:
    """Graph, weights, tokenizer and config of a backbone, and a manifest without tasks."""
    if not (backbone.folder / "tokenizer.json").is_file():
        raise BundleError(f"{backbone.folder} has no tokenizer.json, and no vocabulary to make one of.")
    graph = backbone.family.build_graph(backbone.architecture, backbone.checkpoint)
    content = graph.SerializeToString(deterministic=True)
    (folder / BACKBONE_FILE).write_bytes(content)
    shutil.copyfile(backbone.weights, folder / WEIGHTS_FILE)
    for name in BUNDLE_FILES:
        if (backbone.folder / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(backbone.folder / name, folder / name)
    # The checker follows the external data only from a path.
    onnx.checker.check_model(str(folder / BACKBONE_FILE))
    manifest = Manifest(
        backbone=BackboneEntry(
            family=backbone.family.name,
            model_type=backbone.architecture.model_type,
            source=backbone.source,
            sha256=Hashes(graph=hashlib.sha256(content).hexdigest(), weights=backbone.sha256),
            sites=backbone.family.bindings(backbone.architecture),
        ),
        versions=_versions(),
    )
    manifest.write(folder)
    return manifest


@dataclass(frozen=True)
class _Exporter:
    """Turns deltas into verified tasks; PyTorch's model is loaded once for all of them."""

    bundle: Bundle
    backbone: Backbone
    texts: Sequence[Text]
    trainable: bool

    @cached_property
    def model(self) -> nn.Module:
        return load_model(self.backbone, "eager")

    def prepare(self, deltas: Sequence[Path], stage: Stage) -> list[PreparedTask]:
        prepared = []
        for path in deltas:
            with stage(path.name):
                prepared.append(self._one(path))
        names = [task.name for task in prepared]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"two of the deltas are called {twice!r}; a task's name must be its own.")
        return prepared

    def _one(self, path: Path) -> PreparedTask:
        if path.suffix == ".onnx":
            return prepare_exported(self.bundle, path)
        delta = Delta.load(path, self.backbone)
        check_task_name(delta.card.task)
        if self.trainable:
            refuse_generated(delta)
        graph = export_delta(delta, self.backbone).SerializeToString(deterministic=True)
        check = check_content(delta, self.backbone, self.model, self.texts)
        training = None
        if self.trainable:
            step = Step.of(delta, self.model, self.backbone)
            training = verified_training_graph(step, self.backbone, self.bundle.folder, self.texts)
        return prepare_task(self.bundle, graph, check, path, training)


def _versions() -> dict[str, str]:
    packages = ("torch", "transformers", "onnx", "onnxruntime")
    return {"edgepeft": __version__, **{name: metadata.version(name) for name in packages}}
