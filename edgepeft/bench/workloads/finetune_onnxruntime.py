"""Fine-tuning as ``edgepeft tune`` does it: one step is the training graph and AdamW in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.text import BEFORE
from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["LEARNING_RATE", "prepare", "targets_of"]

# Of both engines, like the labels, so that their steps are one step.
LEARNING_RATE = 1e-6  # the figure is time; weights should stay where activations are ordinary


def prepare(job: Job) -> Prepared:
    """Build the task's training graph and open it on the bundle's weights, with an optimiser for what is trained."""
    from pathlib import Path

    from edgepeft.bundle.bundle import Bundle
    from edgepeft.graph.gradient.training import training_facts
    from edgepeft.graph.half import widen
    from edgepeft.tuning.activation_cache import training_graph
    from edgepeft.tuning.step import AdamW, Expansion, StepRows, TrainingStep, targets_at_once
    from edgepeft.tuning.target import deployed_graph

    bundle = Bundle(Path(job.bundle))
    architecture = bundle.architecture
    bundle.entry(job.task or "").require_tunable(job.task or "")
    delta = bundle.delta_graph(job.task or "")
    widen(delta.graph)
    facts = training_facts(delta)
    facts = replace(facts, kind=facts.kind.in_one_window())
    deployed = deployed_graph(delta, facts, bundle.family, architecture, bundle.checkpoint)
    graph, _ = training_graph(deployed, facts, bundle.checkpoint, prefix_cache=False)
    training = TrainingStep(graph, facts, bundle.folder, job.threads)
    tensors, expansion = facts.tensors(delta), Expansion(delta, facts, bundle.checkpoint, job.threads)
    optimizer = AdamW(dict.fromkeys(tensors, LEARNING_RATE))
    most = targets_at_once(job.new_tokens, architecture.vocab_size) if job.new_tokens else None
    kind, source = job.task_kind(), np.random.default_rng(job.seed)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        rows = len(inputs["input_ids"])
        masks = [
            ((source.random((rows, width), np.float32) >= p) / np.float32(1 - p)).astype(np.float32)
            for p, width in facts.dropouts
        ]
        labels, beside = targets_of(job, inputs["attention_mask"], architecture)
        shares = np.full(len(labels), 1 / kind.terms(labels).sum(), np.float32)
        counts = kind.made_per_row(rows)
        per_row = None if counts is None else np.array(counts)
        read = inputs["attention_mask"] != 0 if kind.passages else None

        def states(rows: Sequence[int]) -> dict[str, NDArray[Any]]:
            return {name: values[list(rows)] for name, values in beside.items()}

        asked = StepRows(inputs, labels, masks, shares, most, per_row, read, states=states)
        result = training(expansion.inputs(tensors), asked)
        optimizer.update(tensors, expansion.gradients(tensors, result.gradients))

    return Prepared(step)


def targets_of(
    job: Job, mask: NDArray[np.int64], architecture: Architecture
) -> tuple[NDArray[Any], dict[str, NDArray[np.int64]]]:
    """What a step takes beside the tokens: made targets [rows, ...], and what a decoder reads to write them.

    A text's targets are of ``job.new_tokens`` tokens.
    """
    if not job.new_tokens:
        return job.task_kind().made_targets(mask), {}
    assert architecture.decoder is not None, "what writes has a decoder"
    targets = job.task_kind().made_targets(np.ones((len(mask), job.new_tokens), np.int64))
    start = np.full((len(targets), 1), architecture.decoder.start_token_id or 0)
    return targets, {BEFORE: np.concatenate([start, targets[:, :-1]], axis=1)}
