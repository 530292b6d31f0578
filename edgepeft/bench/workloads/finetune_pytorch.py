"""Fine-tuning on PyTorch CPU: one step is forward, backward and AdamW, of a delta or of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from edgepeft.bench.planning.job import Job, Prepared

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgepeft.backbones.source import Backbone

    Logits = Callable[[dict[str, Tensor]], Tensor]

__all__ = ["prepare"]


def prepare(job: Job, wrap: Callable[[Logits], Logits] = lambda logits: logits) -> Prepared:
    """Load the model with an optimiser for what is trained; ``wrap`` makes of the forward pass what runs."""
    import torch

    from edgepeft.bench.workloads._torch import FRESH_DELTA, batch_tensors, load
    from edgepeft.bench.workloads.finetune_onnxruntime import LEARNING_RATE, targets_of
    from edgepeft.data.row_grouping import places_of, token_places
    from edgepeft.methods.base import method_named
    from edgepeft.training.engine import loss_of

    backbone, model = load(job)
    everything = method_named(job.method or "").trains_everything
    logits, trained = (_everything if everything else _delta)(job, backbone, model)
    logits = wrap(logits)
    optimizer, kind = torch.optim.AdamW(trained, lr=LEARNING_RATE), job.task_kind()

    def step(batch: int) -> None:
        inputs = batch_tensors(job, batch)
        targets, beside = targets_of(job, inputs["attention_mask"].numpy(), backbone.architecture)
        given = {name: torch.from_numpy(values) for name, values in beside.items()}
        counts = kind.made_per_row(len(inputs["input_ids"]))
        places = None if counts is None else places_of(counts)
        places = token_places(inputs["attention_mask"].numpy() != 0) if kind.passages else places
        found = logits({**inputs, **given})
        torch.autograd.backward(loss_of(kind, found, torch.from_numpy(targets), places=places))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Prepared(step, () if everything else (FRESH_DELTA,))


def _delta(job: Job, backbone: Backbone, model: nn.Module) -> tuple[Logits, Iterable[nn.Parameter]]:
    """The delta's logits and parameters; the model stays frozen, without dropout, as ``edgepeft train`` has it."""
    from edgepeft.bench.workloads._torch import job_delta

    delta = job_delta(job, backbone).train()
    return lambda inputs: delta.logits(model, inputs), delta.parameters()


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
