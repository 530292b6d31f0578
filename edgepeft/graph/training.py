"""The facts that a training graph's ``metadata_props`` hold: see ``edgepeft.exporting.training_graph``."""

from __future__ import annotations

import onnx
from pydantic import BaseModel, ConfigDict, ValidationError

from edgepeft.errors import BundleError
from edgepeft.graph.protos import properties
from edgepeft.mistakes import in_words

__all__ = ["TRAINING", "TrainingFacts", "training_facts"]

TRAINING = "edgepeft.training"


class TrainingFacts(BaseModel):
    """``trained`` tensors in order; ``dropouts`` are (probability, width) of the inputs ``dropout:<i>``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    trained: tuple[str, ...]
    regression: bool = False
    dropouts: tuple[tuple[float, int], ...] = ()
    learning_rate: float
    head_learning_rate: float


def training_facts(graph: onnx.ModelProto, where: str) -> TrainingFacts:
    """Those of a graph.

    Raises:
        BundleError: it is no training graph that this version knows.
    """
    facts = properties(graph)
    known = facts.get("edgepeft.format", "none")
    if known != "edgepeft.training/1":
        raise BundleError(f"{where} is not a training graph that this version knows; its edgepeft.format is {known}.")
    try:
        return TrainingFacts.model_validate_json(facts.get(TRAINING, ""))
    except ValidationError as error:
        raise BundleError(f"{where}: its {TRAINING} is damaged: {in_words(error)}.") from error
