"""One training step in PyTorch: what a training graph is traced from, and what its results are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edgepeft.backbones.source import Backbone
from edgepeft.delta import Delta
from edgepeft.errors import UsageError
from edgepeft.graph import names
from edgepeft.training.engine import replaced_dropout

__all__ = ["Step", "TensorsByName"]

TensorsByName = dict[str, Tensor]


@dataclass(frozen=True)
class Step:
    """The loss, the logits and the gradients of one batch, as PyTorch computes them."""

    delta: Delta
    model: nn.Module  # frozen, with eager attention
    stored: Mapping[str, str]  # the base model's tensor names -> the checkpoint's

    @classmethod
    def of(cls, delta: Delta, model: nn.Module, backbone: Backbone) -> Step:
        """The step of a delta on a loaded model."""
        own = list(delta.override_tensors)
        return cls(delta.eval(), model, {name: backbone.checkpoint.find(name).name for name in own})

    @property
    def trained(self) -> TensorsByName:
        """Every trained tensor by its name in the delta graph."""
        return {self._on_disk(name): tensor for name, tensor in self.delta.tensors().items()}

    @property
    def frozen(self) -> TensorsByName:
        """Every tensor of the backbone that may be read, by its name in the base model."""
        return {**dict(self.model.named_parameters()), **self.delta.frozen_reads}

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return self.delta.card.labels is None

    def __call__(
        self,
        trained: TensorsByName,
        frozen: TensorsByName,
        inputs: TensorsByName,
        labels: Tensor,
        masks: Sequence[Tensor],
    ) -> TensorsByName:
        """``loss`` [], ``logits`` [batch, outputs] and ``gradient:<tensor>`` by output name."""
        own = {name: tensor.detach().requires_grad_(True) for name, tensor in trained.items()}
        logits = self._logits(own, frozen, inputs, masks)
        if self.regression:
            difference = logits.squeeze(-1) - labels
            loss = (difference * difference).sum() / logits.shape[0]
        else:
            loss = _cross_entropy(logits, labels)
        gradients = torch.autograd.grad(loss, list(own.values()))
        by_output = {names.gradient(name): gradient for name, gradient in zip(own, gradients, strict=True)}
        return {names.LOSS: loss.detach(), names.LOGITS: logits.detach(), **by_output}

    def _logits(
        self, trained: TensorsByName, frozen: TensorsByName, inputs: TensorsByName, masks: Sequence[Tensor]
    ) -> Tensor:
        whole = _Whole(self.delta, self.model)
        by_tensor = {id(tensor): name for name, tensor in self.trained.items()}
        # A tensor with several paths is one tensor: each path gets the same value.
        paths = {path: p for path, p in self.delta.named_parameters(remove_duplicate=False) if id(p) in by_tensor}
        given = {f"delta.{path}": trained[by_tensor[id(p)]] for path, p in paths.items()}
        given |= {f"model.{path}": frozen[path] for path, _ in self.model.named_parameters()}
        given |= {f"delta.reads.{path}": frozen[path.replace("/", ".")] for path, _ in self.delta.reads.named_buffers()}
        supply = iter(masks)
        with replaced_dropout(self.delta, lambda x, _: x * next(supply)):
            logits: Tensor = torch.func.functional_call(whole, given, (inputs,))
        return logits

    def _on_disk(self, name: str) -> str:
        part, _, tensor = name.partition("/")
        return f"override/{self.stored[tensor]}" if part == "override" else name

    def dropouts(self, inputs: TensorsByName) -> list[tuple[float, int]]:
        """(probability, width) of each dropout that one pass through the delta applies, in order.

        Raises:
            UsageError: it drops out something other than [batch, width].
        """
        dropouts: list[tuple[float, int]] = []

        def record(x: Tensor, probability: float) -> Tensor:
            if x.dim() != 2:
                raise UsageError(
                    f"task {self.delta.card.task}: {self.delta.card.method} drops out values of {x.dim()} dimensions "
                    "inside the backbone; a training graph has dropout in the head only. Export without --trainable."
                )
            dropouts.append((probability, x.shape[1]))
            return x

        with torch.no_grad(), replaced_dropout(self.delta, record):
            self.delta.logits(self.model, inputs)
        return dropouts


class _Whole(nn.Module):
    """Delta and model as one module, so that one ``functional_call`` can replace the tensors of both."""

    def __init__(self, delta: Delta, model: nn.Module) -> None:
        super().__init__()
        self.delta, self.model = delta, model

    def forward(self, inputs: TensorsByName) -> Tensor:
        """Logits [batch, outputs]."""
        return self.delta.logits(self.model, inputs)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch.  As a product with one-hot rows: the exporter's cross_entropy forgets the division."""
    chosen = (labels.unsqueeze(1) == torch.arange(logits.shape[1])).to(logits.dtype)
    return -(torch.log_softmax(logits, -1) * chosen).sum() / logits.shape[0]
