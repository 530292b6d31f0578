"""A task's training graph: token ids, labels and every trained tensor in; the loss and its gradients out.

PyTorch's own autograd is traced (``make_fx`` over the loss and ``torch.autograd.grad``) and exported as plain
ONNX, so a board that has only ONNX Runtime can train.  No weight of the backbone is copied: the
initializers are tensors of ``model.safetensors``, by offset.

    inputs    input_ids, attention_mask, [token_type_ids] int64 [batch, length]; labels [batch], int64 classes
              or float32 numbers; every trained tensor by its name in the delta graph; where the head has
              dropout, ``dropout:<i>`` float32 [batch, width]: 0, or 1 / (1 - p) where a feature is kept
    outputs   loss; logits [batch, outputs]; ``gradient:<tensor>`` for each trained tensor
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx
import torch
from torch import Tensor

from edgepeft.backbones.emit import external_tensor
from edgepeft.backbones.source import Backbone
from edgepeft.delta import Delta
from edgepeft.errors import UsageError
from edgepeft.exporting.step import Step, TensorsByName
from edgepeft.exporting.tracing import mark, number_nodes, quiet, traced
from edgepeft.graph import names
from edgepeft.graph.protos import replace
from edgepeft.graph.prune import prune
from edgepeft.graph.rename import rename_values
from edgepeft.graph.training import TRAINING, TrainingFacts

__all__ = ["export_training_graph", "refuse_generated"]


def export_training_graph(
    step: Step, backbone: Backbone, rates: tuple[float, float], open_axes: Mapping[str, int] = MappingProxyType({})
) -> onnx.ModelProto:
    """The training graph, opset 20, IR 10; the same delta gives the same bytes.

    ``rates`` are the learning rates of delta and head to start from; ``open_axes`` says which axis of which tensor
    counts labels, where their number is left open.

    Raises:
        UsageError: the method cannot be trained this way; says why.
    """
    flat = _FlatStep.of(step, backbone, open_axes)
    model = flat.export()
    rename_values(model.graph, flat.renamer())
    _refer_to_weights(model.graph, flat.frozen, backbone)
    number_nodes(model.graph)
    mark(model, _properties(step, backbone, rates, flat.dropouts))
    return model


@dataclass(frozen=True)
class _FlatStep:
    """A flat list of example values in, a flat list out: what ``make_fx`` and the exporter want."""

    step: Step
    trained: TensorsByName
    frozen: TensorsByName
    inputs: TensorsByName
    labels: Tensor
    masks: list[Tensor]
    dropouts: list[tuple[float, int]]
    open_axes: Mapping[str, int]

    @classmethod
    def of(cls, step: Step, backbone: Backbone, open_axes: Mapping[str, int]) -> _FlatStep:
        refuse_generated(step.delta)
        frozen = step.frozen
        batch, length = _free_sizes([*step.trained.values(), *frozen.values()])
        ids = torch.full((batch, length), backbone.architecture.pad_token_id + 1)
        known = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        inputs = {name: known[name] for name in backbone.architecture.inputs}
        labels = torch.zeros(batch, dtype=torch.float32 if step.regression else torch.int64)
        dropouts = step.dropouts(inputs)
        masks = [torch.ones(batch, width) for _, width in dropouts]
        return cls(step, step.trained, frozen, inputs, labels, masks, dropouts, open_axes)

    @property
    def flat(self) -> list[tuple[str, Tensor]]:
        """(name, example) of each input."""
        masks = {names.dropout(i): mask for i, mask in enumerate(self.masks)}
        groups = (self.trained, self.frozen, self.inputs, {names.LABELS: self.labels}, masks)
        return [(name, tensor.detach()) for group in groups for name, tensor in group.items()]

    @property
    def outputs(self) -> list[str]:
        """Names, in order."""
        return [names.LOSS, names.LOGITS, *map(names.gradient, self.trained)]

    def run(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Values in the order of ``flat`` -> values in the order of ``outputs``."""
        supply = iter(values)
        trained, frozen, inputs = ({n: next(supply) for n in g} for g in (self.trained, self.frozen, self.inputs))
        outputs = self.step(trained, frozen, inputs, next(supply), list(supply))
        return tuple(outputs[name] for name in self.outputs)

    def export(self) -> onnx.ModelProto:
        """As ``traced`` gives it."""
        from torch._decomp import core_aten_decompositions
        from torch.fx.experimental.proxy_tensor import make_fx

        examples = tuple(tensor for _, tensor in self.flat)
        with quiet():
            # Small buffers of the model (position ids) are constants of the graph, hence the last argument.
            graph = make_fx(
                self.run,
                tracing_mode="symbolic",
                decomposition_table=core_aten_decompositions(),  # type: ignore[arg-type]
                _allow_non_fake_inputs=True,
            )(*examples)
        return traced(graph, examples, self._dims(), len(self.outputs))

    def _dims(self) -> tuple[dict[int, Any] | None, ...]:
        batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
        ours: dict[str, dict[int, Any]] = {name: {0: batch, 1: length} for name in self.inputs}
        ours |= {name: {0: batch} for name in (names.LABELS, *map(names.dropout, range(len(self.masks))))}
        n_labels = torch.export.Dim(names.N_LABELS, min=2)
        ours |= {name: {axis: n_labels} for name, axis in self.open_axes.items()}
        return tuple(ours.get(name) for name, _ in self.flat)

    def renamer(self) -> Callable[[str], str]:
        """Exporter's names -> ours; what is left is counted, for the exporter's names are long."""
        new = {f"in_{i}": name for i, (name, _) in enumerate(self.flat)}
        new |= {f"out_{i}": name for i, name in enumerate(self.outputs)}

        def rename(name: str) -> str:
            return new.setdefault(name, f"v{len(new)}")

        return rename


def refuse_generated(delta: Delta) -> None:
    """See that the method's gradients stay in tensors of its own.

    Raises:
        UsageError: they go through a projection of the whole backbone.
    """
    if delta.generator is not None:
        raise UsageError(
            f"task {delta.card.task}: {delta.card.method} trains one vector through a projection of every tensor of "
            "the backbone, which is larger than the backbone; there is no training graph for it. Export it without "
            "--trainable."
        )


def _free_sizes(tensors: Sequence[Tensor]) -> tuple[int, int]:
    """A batch and a length that are no dimension of any tensor: the tracer takes equal sizes for one dimension."""
    taken = {extent for tensor in tensors for extent in tensor.shape}
    length, batch = itertools.islice((size for size in itertools.count(3) if size not in taken), 2)
    return batch, length


def _refer_to_weights(graph: onnx.GraphProto, frozen: Mapping[str, Tensor], backbone: Backbone) -> None:
    """Turn inputs that are backbone tensors into initializers in the weights file; drop those without a reader."""
    checkpoint = backbone.checkpoint
    stored = {name: checkpoint.find(name) for name in frozen if checkpoint.has(name)}
    rename_values(graph, lambda name: stored[name].name if name in stored else name)
    gone = {*frozen, *(tensor.name for tensor in stored.values())}
    replace(graph.input, [value for value in graph.input if value.name not in gone])
    graph.initializer.extend(map(external_tensor, stored.values()))
    prune(graph)


def _properties(
    step: Step, backbone: Backbone, rates: tuple[float, float], dropouts: Sequence[tuple[float, int]]
) -> dict[str, str]:
    card = step.delta.card
    facts = TrainingFacts(
        trained=tuple(step.trained),
        regression=step.regression,
        dropouts=tuple(dropouts),
        learning_rate=rates[0],
        head_learning_rate=rates[1],
    )
    return {
        "edgepeft.format": "edgepeft.training/1",
        "edgepeft.task": card.task,
        "edgepeft.method": card.method,
        "edgepeft.backbone": card.backbone.source,
        "edgepeft.backbone_sha256": backbone.sha256,
        TRAINING: json.dumps(facts.model_dump(mode="json")),
    }
