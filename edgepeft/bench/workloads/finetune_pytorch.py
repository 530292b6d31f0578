"""Fine-tuning on PyTorch CPU: one step is forward, backward and AdamW, of a delta or of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from edgepeft.bench.job import Job, Prepared

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgepeft.backbones.source import Backbone

    Logits = Callable[[dict[str, Tensor]], Tensor]

__all__ = ["ENGINE", "WORKLOAD", "prepare"]

ENGINE = "pytorch"
WORKLOAD = "finetune"

_LEARNING_RATE = 1e-6  # the figure is time; weights should stay where activations are ordinary


def prepare(job: Job) -> Prepared:
    """Load the model in training mode (dropout on) with an optimiser for what is trained."""
    import torch
    from torch.nn import functional

    from edgepeft.bench.workloads._torch import FRESH_DELTA, inputs_of, load

    backbone, model = load(job)
    model.train()
    logits, trained = (_everything if job.method == "full" else _delta)(job, backbone, model)
    optimizer = torch.optim.AdamW(trained, lr=_LEARNING_RATE)

    def step(batch: int) -> None:
        inputs = inputs_of(job, batch)
        found = logits(inputs)
        rows = torch.arange(len(found))
        if job.n_labels == 1:
            loss = functional.mse_loss(found.squeeze(-1), rows.float())
        else:
            loss = functional.cross_entropy(found, rows % job.n_labels)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Prepared(step, () if job.method == "full" else (FRESH_DELTA,))


def _delta(job: Job, backbone: Backbone, model: nn.Module) -> tuple[Logits, Iterable[nn.Parameter]]:
    """The delta's logits and parameters; the model stays frozen."""
    from edgepeft.bench.workloads._torch import fresh_delta

    delta = fresh_delta(job, backbone).train()
    return lambda inputs: delta.logits(model, inputs), delta.parameters()


def _everything(job: Job, backbone: Backbone, model: nn.Module) -> tuple[Logits, Iterable[nn.Parameter]]:
    """The ordinary way, as transformers' Trainer does it: the model's own weights and a linear head.

    Not a delta of method ``full``: that would hold a second copy of the weights, a worse peer than
    people have.
    """
    from torch import nn

    model.requires_grad_(True)
    head = nn.Linear(backbone.architecture.hidden_size, job.n_labels)

    def logits(inputs: dict[str, Tensor]) -> Tensor:
        found: Tensor = head(model(**inputs).last_hidden_state[:, 0])
        return found

    return logits, [*model.parameters(), *head.parameters()]
