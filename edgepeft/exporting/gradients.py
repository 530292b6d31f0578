"""A training graph against PyTorch's autograd, tensor by tensor, on ragged batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.delta import DeltaCard
from edgepeft.errors import VerificationFailed
from edgepeft.exporting.check import fitted
from edgepeft.exporting.rounding import float32_errors
from edgepeft.exporting.step import Step, TensorsByName
from edgepeft.exporting.training_graph import export_training_graph
from edgepeft.graph.names import LOSS, gradient
from edgepeft.graph.sound import check_standard
from edgepeft.methods.base import method_named
from edgepeft.runtime.tuning.step import TrainingStep
from edgepeft.training.options import TrainOptions

__all__ = ["GRADIENT_TOLERANCE", "require_gradients", "verified_training_graph"]

GRADIENT_TOLERANCE = 1e-5  # of the tensor's largest gradient
# The truth is PyTorch's in float64. Float32 has errors of its own, PyTorch's too: the gradient of a key's bias, which
# changes no softmax, is nothing else. So much of PyTorch's own error is allowed besides; where that does not do, for it
# may be small by luck, what the rounding of every operation may add up to.
_OWN = 4.0
# and a tensor whose gradient is below this part of the largest of all is held against that part.
_ZERO = 1e-3
_BATCHES = (8, 1, 3)


def verified_training_graph(
    step: Step,
    backbone: Backbone,
    folder: Path,
    texts: Sequence[Text],
    open_axes: Mapping[str, int] = MappingProxyType({}),
) -> bytes:
    """A training graph that gave PyTorch's gradients; ``folder`` holds the weights that it refers to.

    Raises:
        UsageError: the method has none.
        VerificationFailed: its gradients are not PyTorch's.
    """
    model = export_training_graph(step, backbone, rates_of(step.delta.card, backbone), open_axes)
    content: bytes = model.SerializeToString(deterministic=True)
    check_standard(model)
    require_gradients(step, TrainingStep(model, folder), backbone, texts)
    return content


def rates_of(card: DeltaCard, backbone: Backbone) -> tuple[float, float]:
    """Learning rates of delta and head: those it was trained with, else the method's."""
    own = [card.training.get(name) for name in ("learning_rate", "head_learning_rate")]
    method = method_named(card.method).from_settings(card.hyperparameters)
    options = TrainOptions(task=card.task).resolved(backbone, method)
    rates = [
        float(rate or default or 0.0)
        for rate, default in zip(own, (options.learning_rate, options.head_learning_rate), strict=True)
    ]
    return rates[0], rates[1]


def require_gradients(step: Step, graph: TrainingStep, backbone: Backbone, texts: Sequence[Text]) -> float:
    """The largest difference of a gradient, relative to its tensor's largest.

    The tensors are moved from where they stand: a fresh LoRA's A has no gradient, which would hide a wrong one.

    Raises:
        VerificationFailed: names the tensor that differs by more than the tolerance.
    """
    generator = torch.Generator().manual_seed(0)
    trained = {
        name: (tensor + 0.02 * torch.randn(tensor.shape, generator=generator)).detach()
        for name, tensor in step.trained.items()
    }
    worst, encoder = 0.0, backbone.encoder()
    texts = fitted(texts, step.delta.card.pairs)
    rows = [texts[int(i)] for i in np.linspace(0, len(texts) - 1, sum(_BATCHES)).round()]
    for size in _BATCHES:
        batch, rows = rows[:size], rows[size:]
        inputs = encoder.encode(batch, step.delta.card.max_length).inputs
        worst = max(worst, _compare(step, graph, inputs, trained, generator))
    return worst


def _compare(
    step: Step,
    graph: TrainingStep,
    inputs: dict[str, NDArray[np.int64]],
    trained: TensorsByName,
    random: torch.Generator,
) -> float:
    card, rows = step.delta.card, torch.arange(len(inputs["input_ids"]))
    tokens = {name: torch.from_numpy(values) for name, values in inputs.items()}
    # Most rows of one label: with as many of each, the gradient of a fresh head's bias is a sum that cancels to noise.
    labels = rows.float() + 1 if step.regression else (rows % 5 == 1).long() * (card.n_outputs - 1)
    masks = [
        (torch.rand(len(rows), width, generator=random) >= p).float() / (1 - p) for p, width in graph.facts.dropouts
    ]
    frozen = {name: tensor.detach() for name, tensor in step.frozen.items()}
    single = step(trained, frozen, tokens, labels, masks)
    doubles = (_double(trained), _double(frozen), tokens, _exact(labels), [mask.double() for mask in masks])
    exact = step(*doubles)
    result = graph({n: t.numpy() for n, t in trained.items()}, inputs, labels.numpy(), [m.numpy() for m in masks])
    given = {gradient(name): value for name, value in result.gradients.items()} | {LOSS: np.float32(result.loss)}
    exact = {name: exact[name] for name in given}
    shares = _shares(given, exact, {name: _OWN * float((single[name] - exact[name]).abs().max()) for name in given})
    if not all(share <= GRADIENT_TOLERANCE for share in shares.values()):
        shares = _shares(given, exact, float32_errors(exact, lambda: step(*doubles)))
    worst = max(shares, key=lambda name: shares[name])
    if not all(share <= GRADIENT_TOLERANCE for share in shares.values()):  # a NaN must fail
        raise VerificationFailed(
            f"task {card.task}: the training graph's {worst} differs from PyTorch's by {shares[worst]:.1e} of its "
            f"largest value (tolerance {GRADIENT_TOLERANCE:.0e}), on {len(rows)} rows."
        )
    return shares[worst]


def _shares(given: Mapping[str, Any], exact: TensorsByName, allowed: Mapping[str, float]) -> dict[str, float]:
    """By how much of its tensor's largest gradient each differs from the exact one, past what is allowed of float32."""
    largest = {name: float(tensor.abs().max()) for name, tensor in exact.items()}
    least = _ZERO * max(largest.values())
    return {
        name: (float(np.abs(value - exact[name].numpy()).max()) - allowed[name]) / max(largest[name], least)
        for name, value in given.items()
    }


def _double(tensors: TensorsByName) -> TensorsByName:
    return {name: _exact(tensor) for name, tensor in tensors.items()}


def _exact(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
