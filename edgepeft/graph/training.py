"""What of a task is trained, and where its head has dropout: as its delta graph says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from edgepeft.common.errors import BundleError
from edgepeft.graph.names import is_of_loader, without_prefix
from edgepeft.graph.protos import properties
from edgepeft.tasks.base import TaskType, stated

__all__ = ["DROPPED", "TrainingFacts", "training_facts"]

DROPPED = "edgepeft.dropped"  # of a delta graph: the head's weights whose products read what dropout leaves
# By kind of head, of graphs that were exported before they said so themselves.
_UNDECLARED: Mapping[str, tuple[str, ...]] = {
    "roberta": ("head/dense.weight", "head/out_proj.weight"),
    "electra": ("head/dense.weight", "head/out_proj.weight"),
}
_LAST = ("head/classifier.weight",)


@dataclass(frozen=True)
class TrainingFacts:
    """``trained`` tensors in order; ``dropouts`` are (probability, width) of the inputs ``dropout:<i>``.

    ``dropped`` are the weights of the products that read what each dropout leaves; ``generated`` are the inputs that a
    recipe makes of trained tensors; ``kind`` is of the task, whose loss it is.
    """

    trained: tuple[str, ...]
    kind: TaskType
    dropouts: tuple[tuple[float, int], ...] = ()
    dropped: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[str, ...]:
        """What a training graph takes, and gives gradients of."""
        return tuple(name for name in self.trained if not (self.generated and is_of_loader(name))) + self.generated

    def tensors(self, delta: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
        """The trained tensors as the delta graph has them, to be written to."""
        stored = {tensor.name: tensor for tensor in delta.graph.initializer}
        return {name: numpy_helper.to_array(stored[name]).copy() for name in self.trained}


def training_facts(delta: onnx.ModelProto) -> TrainingFacts:
    """Those of a task, by its delta graph.

    Raises:
        BundleError: the graph's card or its head is damaged.
    """
    stored = {tensor.name: tensor for tensor in delta.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    facts = properties(delta)
    try:
        card = json.loads(facts["edgepeft.card"])
        rate = float(card.get("head_dropout", 0.0))
        names = json.loads(facts[DROPPED]) if DROPPED in facts else _UNDECLARED.get(card["head"], _LAST)
        dropped = tuple(names) if rate > 0 else ()
        kind = stated(card.get("kind"), card.get("labels"), card.get("head_reads", ""), chosen=card.get("chosen") or {})
        dropouts = tuple((rate, stored[name].dims[1]) for name in dropped)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise BundleError(
            f"the delta graph does not say what its loss is, or where its head has dropout ({error}); export it again."
        ) from error
    generated = tuple(i.name for i in delta.graph.input if without_prefix(i.name)[0] == "generated")
    return TrainingFacts(tuple(stored), kind, dropouts, dropped, generated)
