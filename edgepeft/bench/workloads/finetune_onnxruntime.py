"""Fine-tuning as ``edgepeft tune`` does it: one step is the training graph and AdamW in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["LEARNING_RATE", "labels_of", "prepare"]

# Of both engines, like the labels, so that their steps are one step.
LEARNING_RATE = 1e-6  # the figure is time; weights should stay where activations are ordinary


def prepare(job: Job) -> Prepared:
    """Build the task's training graph and open it on the bundle's weights, with an optimiser for what is trained."""
    from pathlib import Path

    from edgepeft.graph.half import widen
    from edgepeft.graph.training import training_facts
    from edgepeft.runtime.bundle import Bundle
    from edgepeft.runtime.tuning.adamw import AdamW
    from edgepeft.runtime.tuning.expansion import Expansion
    from edgepeft.runtime.tuning.hidden import training_graph
    from edgepeft.runtime.tuning.step import TrainingStep
    from edgepeft.runtime.tuning.subject import deployed_graph

    bundle = Bundle(Path(job.bundle))
    delta = bundle.delta_graph(job.task or "")
    widen(delta.graph)
    facts = training_facts(delta)
    deployed = deployed_graph(delta, facts, bundle.family, bundle.architecture, bundle.checkpoint)
    graph, _ = training_graph(deployed, facts, bundle.checkpoint, prefix_cache=False)
    training = TrainingStep(graph, facts, bundle.folder, job.threads)
    tensors, expansion = facts.tensors(delta), Expansion(delta, facts, bundle.checkpoint, job.threads)
    optimizer = AdamW(dict.fromkeys(tensors, LEARNING_RATE))
    source = np.random.default_rng(job.seed)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        rows = len(inputs["input_ids"])
        masks = [
            ((source.random((rows, width), np.float32) >= p) / np.float32(1 - p)).astype(np.float32)
            for p, width in facts.dropouts
        ]
        result = training(expansion.inputs(tensors), inputs, labels_of(job, rows), masks)
        optimizer.update(tensors, expansion.gradients(tensors, result.gradients))

    return Prepared(step)


def labels_of(job: Job, rows: int) -> NDArray[Any]:
    """[rows]: classes in turn, or numbers where the task has one output."""
    numbers = np.arange(rows)
    return numbers.astype(np.float32) if job.n_labels == 1 else numbers % job.n_labels
