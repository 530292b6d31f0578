"""Fine-tuning as ``edgepeft tune`` does it: one step is the training graph and AdamW in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bench.planning.job import Job, Prepared

if TYPE_CHECKING:
    import onnx

    from edgepeft.data.course.engine import Arrays
    from edgepeft.graph.training import TrainingFacts

__all__ = ["LEARNING_RATE", "labels_of", "prepare"]

# Of both engines, like the labels, so that their steps are one step.
LEARNING_RATE = 1e-6  # the figure is time; weights should stay where activations are ordinary


def prepare(job: Job) -> Prepared:
    """Open the task's training graph on the bundle's weights, with an optimiser for what is trained."""
    from pathlib import Path

    from edgepeft.runtime.bundle import Bundle, read_graph
    from edgepeft.runtime.tuning.adamw import AdamW
    from edgepeft.runtime.tuning.step import TrainingStep
    from edgepeft.runtime.versions import TRAINING

    task, bundle = job.task or "", Bundle(Path(job.bundle))
    training = TrainingStep(read_graph(bundle.current(task, TRAINING), bundle.weights.name), bundle.folder, job.threads)
    tensors = _tensors(bundle.delta_graph(task), training.facts)
    optimizer = AdamW(dict.fromkeys(tensors, LEARNING_RATE))
    source = np.random.default_rng(job.seed)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        rows = len(inputs["input_ids"])
        masks = [
            ((source.random((rows, width), np.float32) >= p) / np.float32(1 - p)).astype(np.float32)
            for p, width in training.facts.dropouts
        ]
        result = training(tensors, inputs, labels_of(job, rows), masks)
        optimizer.update(tensors, result.gradients)

    return Prepared(step)


def _tensors(delta: onnx.ModelProto, facts: TrainingFacts) -> Arrays:
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in delta.graph.initializer}
    return {name: numpy_helper.to_array(stored[name]).copy() for name in facts.trained}


def labels_of(job: Job, rows: int) -> NDArray[Any]:
    """[rows]: classes in turn, or numbers where the task has one output."""
    numbers = np.arange(rows)
    return numbers.astype(np.float32) if job.n_labels == 1 else numbers % job.n_labels
