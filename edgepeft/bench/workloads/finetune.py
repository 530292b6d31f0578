"""Fine-tuning by both engines: one step is forward, backward and AdamW, of a delta or of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.text import BEFORE
from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.bench.workloads.inference import FRESH_DELTA, batch_tensors, job_delta, load

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgepeft.backbones.source import Backbone

    Logits = Callable[[dict[str, Tensor]], Tensor]

_LEARNING_RATE = 1e-6  # of both engines; the figure is time: weights should stay where activations are ordinary


def finetune_onnxruntime(job: Job) -> Prepared:
    """As ``edgepeft tune`` does it: the task's training graph on the bundle's weights, and AdamW in NumPy."""
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
    optimizer = AdamW(dict.fromkeys(tensors, _LEARNING_RATE))
    most = targets_at_once(job.new_tokens, architecture.vocab_size) if job.new_tokens else None
    kind, source = job.task_kind(), np.random.default_rng(job.seed)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        rows = len(inputs["input_ids"])
        masks = [
            ((source.random((rows, width), np.float32) >= p) / np.float32(1 - p)).astype(np.float32)
            for p, width in facts.dropouts
        ]
        labels, beside = _targets(job, inputs["attention_mask"], architecture)
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


def _targets(
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


def finetune_pytorch(job: Job, wrap: Callable[[Logits], Logits] = lambda logits: logits) -> Prepared:
    """Load the model with an optimiser for what is trained; ``wrap`` makes of the forward pass what runs."""
    import torch

    from edgepeft.data.row_grouping import places_of, token_places
    from edgepeft.methods.base import method_named
    from edgepeft.training.engine import loss_of

    backbone, model = load(job)
    everything = method_named(job.method or "").trains_everything
    if everything:
        logits, trained = _everything(job, backbone, model)
    else:  # the model stays frozen, without dropout, as ``edgepeft train`` has it
        delta = job_delta(job, backbone).train()
        logits, trained = (lambda inputs: delta.logits(model, inputs)), delta.parameters()
    logits = wrap(logits)
    optimizer, kind = torch.optim.AdamW(trained, lr=_LEARNING_RATE), job.task_kind()

    def step(batch: int) -> None:
        inputs = batch_tensors(job, batch)
        targets, beside = _targets(job, inputs["attention_mask"].numpy(), backbone.architecture)
        given = {name: torch.from_numpy(values) for name, values in beside.items()}
        counts = kind.made_per_row(len(inputs["input_ids"]))
        places = None if counts is None else places_of(counts)
        places = token_places(inputs["attention_mask"].numpy() != 0) if kind.passages else places
        found = logits({**inputs, **given})
        torch.autograd.backward(loss_of(kind, found, torch.from_numpy(targets), places=places))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Prepared(step, () if everything else (FRESH_DELTA,))


def _everything(job: Job, backbone: Backbone, model: nn.Module) -> tuple[Logits, Iterable[nn.Parameter]]:
    """The ordinary way, as transformers' Trainer does it: the model's own weights and a linear head, dropout on.

    Not a delta of method ``full``: that would hold a second copy of the weights, a worse peer than
    people have.
    """
    from torch import nn

    from edgepeft.backbones.hooks import states_of

    model.train().requires_grad_(True)
    if job.new_tokens:
        return lambda inputs: model(**inputs).logits, model.parameters()
    head, per_token = nn.Linear(backbone.architecture.hidden_size, job.n_labels), job.task_kind().per_token

    def logits(inputs: dict[str, Tensor]) -> Tensor:
        states = states_of(model, inputs)
        outputs: Tensor = head(states if per_token else states[:, 0])
        return outputs

    return logits, [*model.parameters(), *head.parameters()]
