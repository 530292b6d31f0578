"""What is tuned: a task of the bundle, or a new one from a template, with its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edgepeft.backbones.base import Pooling
from edgepeft.data.course.engine import Arrays
from edgepeft.data.parts import Given, TaskData, load_data
from edgepeft.data.rows import SENTENCES, Columns
from edgepeft.errors import BundleError, DataError, UsageError
from edgepeft.graph.protos import properties
from edgepeft.graph.splice import splice
from edgepeft.graph.template import with_labels
from edgepeft.graph.training import TrainingFacts, training_facts
from edgepeft.runtime.bundle import TEMPLATES_FOLDER, Bundle, check_owner, expect_hash, read_graph
from edgepeft.runtime.tuning.options import TuneOptions
from edgepeft.runtime.verify import read_check
from edgepeft.runtime.versions import CHECK, GRAPH, TRAINING
from edgepeft.task_name import check_new_name

__all__ = ["Files", "TuningSubject", "deployed_graph", "from_task", "from_template", "given_names"]


@dataclass(frozen=True)
class TuningSubject:
    """``delta`` is the graph that the tuned tensors go into; ``check`` are token ids [64, length] to check it on."""

    task: str
    delta: onnx.ModelProto
    training: onnx.ModelProto
    training_bytes: bytes
    check: dict[str, NDArray[np.int64]]
    data: TaskData
    max_length: int
    prompt_length: int
    template: str | None = None

    @property
    def facts(self) -> TrainingFacts:
        """What the training graph says of itself."""
        return training_facts(self.training, f"the training graph of task {self.task}")

    @property
    def method(self) -> str:
        """The PE method's name."""
        return next(
            (entry.value for entry in self.delta.metadata_props if entry.key == "edgepeft.method"), "the method"
        )

    @property
    def card(self) -> dict[str, Any]:
        """What the delta graph says of the task: its method, its scores and more."""
        return {"metrics": {}, **json.loads(properties(self.delta).get("edgepeft.card", "{}"))}

    @property
    def pooling(self) -> Pooling:
        """What of the backbone a linear head in place of the task's would read."""
        return Pooling.MEAN if self.card.get("head_reads") == "mean" else Pooling.FIRST

    @property
    def n_outputs(self) -> int:
        """Columns of the logits."""
        return 1 if self.data.labels is None else len(self.data.labels)

    def tensors(self) -> Arrays:
        """The trained tensors as the delta graph has them, to be written to.

        Raises:
            BundleError: the two graphs do not belong together.
        """
        stored = {i.name: i for i in self.delta.graph.initializer}
        missing = [name for name in self.facts.trained if name not in stored]
        if missing:
            raise BundleError(f"task {self.task}: its delta graph lacks {missing[0]}, which its training graph trains.")
        return {name: numpy_helper.to_array(stored[name]).copy() for name in self.facts.trained}

    def with_tensors(self, tensors: Arrays, metrics: dict[str, object], training: dict[str, object]) -> onnx.ModelProto:
        """The delta graph with these values and this account of how they came about."""
        model = onnx.ModelProto()
        model.CopyFrom(self.delta)
        for initializer in model.graph.initializer:
            if initializer.name in tensors:
                initializer.CopyFrom(numpy_helper.from_array(tensors[initializer.name], initializer.name))
        count = sum(tensor.size for tensor in tensors.values())
        update = {"metrics": metrics, "training": training, "trainable_parameters": count}
        for entry in model.metadata_props:
            if entry.key == "edgepeft.card":
                entry.value = json.dumps({**json.loads(entry.value), **update})
        return model


def given_names(trained: Sequence[str]) -> dict[str, str]:
    """The deployed graph's names of trained tensors -> their own."""
    return {f"delta/{name}": name for name in trained}


def deployed_graph(bundle: Bundle, subject: TuningSubject) -> onnx.ModelProto:
    """The task's spliced graph, with the trained tensors as inputs."""
    model = splice(bundle.backbone_graph, subject.delta, bundle.manifest.backbone.sites, bundle.checkpoint)
    names = given_names(subject.facts.trained)
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    for tensor in model.graph.initializer:
        if tensor.name in names:
            model.graph.input.add(name=tensor.name).type.tensor_type.elem_type = tensor.data_type
            for extent in tensor.dims:
                model.graph.input[-1].type.tensor_type.shape.dim.add(dim_value=extent)
    copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)
    return model


@dataclass(frozen=True)
class Files:
    """Rows to train on, to choose by and to report; of the last two, a share is held out where no file is given."""

    train: Path
    eval: Given = None
    test: Given = None
    columns: Columns = SENTENCES

    def load(self, labels: tuple[str, ...] | None, options: TuneOptions, *, regression: bool) -> TaskData:
        """Read them; ``labels`` are those that the head has, None takes the data's."""
        return load_data(
            self.train,
            self.eval,
            self.test,
            self.columns,
            regression=regression,
            few_shot=options.few_shot,
            seed=options.seed,
            labels=labels,
        )


def from_task(bundle: Bundle, task: str, files: Files, options: TuneOptions) -> TuningSubject:
    """Go on from a task of the bundle.

    Raises:
        UnknownName: no such task.
        UsageError: it was exported without its training graph, or is not stored in float32.
        DataError: the rows do not fit it.
    """
    entry = bundle.entry(task)
    _require_float32_backbone(bundle)
    if entry.weights_dtype != "fp32":
        raise UsageError(
            f"task {task} is stored in half precision, which would swallow small steps. On a workstation: edgepeft add "
            "--force --trainable, with the delta's folder and without --delta-weights fp16."
        )
    if entry.train_sha256 is None:
        raise UsageError(
            f"task {task} has no training graph. On a workstation: edgepeft export --trainable (or edgepeft add "
            "--trainable), with the delta's folder; then copy the bundle, or tasks/<task>.*, here."
        )
    data = files.load(entry.labels, options, regression=entry.labels is None)
    if data.pairs != entry.pairs:
        kinds = ("pairs", "single texts") if entry.pairs else ("single texts", "pairs")
        raise DataError(f"task {task} reads {kinds[0]}; {files.train} holds {kinds[1]}.")
    path = bundle.current(task, TRAINING)
    expect_hash(path, entry.train_sha256)
    check = bundle.current(task, CHECK)
    expect_hash(check, entry.check_sha256)
    training = read_graph(path, bundle.weights.name)
    return TuningSubject(
        task=task,
        delta=bundle.delta_graph(task),
        training=training,
        training_bytes=path.read_bytes(),
        check=read_check(check.read_bytes(), str(check))[0],
        data=data,
        max_length=entry.max_length,
        prompt_length=entry.prompt_length,
    )


def from_template(
    bundle: Bundle, task: str, template: str, files: Files, options: TuneOptions, *, new: bool = True
) -> TuningSubject:
    """Start a task: its labels are the data's, its head is drawn from the seed; ``new`` says that it must not be there.

    Raises:
        UnknownName: no such template.
        UsageError: the bundle has a task of that name.
        DataError: the rows have a single label, or are too few.
    """
    check_new_name(task, bundle.manifest.tasks)
    entry = bundle.manifest.template(template)
    _require_float32_backbone(bundle)
    if new and task in bundle.manifest.tasks:
        raise UsageError(
            f"the bundle has a task {task!r} already; without --template it is tuned further, or take another name."
        )
    where = bundle.folder / TEMPLATES_FOLDER
    paths = {suffix: where / f"{template}{suffix}" for suffix in (GRAPH, CHECK, TRAINING)}
    for path, expected in zip(paths.values(), (entry.sha256, entry.check_sha256, entry.train_sha256), strict=True):
        expect_hash(path, expected)
    data = files.load(None, options, regression=False)
    graph = read_graph(paths[GRAPH])
    check_owner(graph, bundle.manifest, paths[GRAPH])
    return TuningSubject(
        task=task,
        delta=with_labels(graph, task, data.labels or (), data.pairs, options.seed),
        training=read_graph(paths[TRAINING], bundle.weights.name),
        training_bytes=paths[TRAINING].read_bytes(),
        check=read_check(paths[CHECK].read_bytes(), str(paths[CHECK]))[0],
        data=data,
        max_length=entry.max_length,
        prompt_length=entry.prompt_length,
        template=template,
    )


def _require_float32_backbone(bundle: Bundle) -> None:
    if bundle.manifest.backbone.weights_dtype != "fp32":
        raise UsageError(
            f"{bundle.folder} holds its backbone in 8 bits; gradients need the float32 weights. Tune in a bundle that "
            "was exported with --weights fp32 and --trainable, then copy the task here: edgepeft add."
        )
