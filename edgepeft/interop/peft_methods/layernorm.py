"""PEFT's LayerNorm tuning (``LN_TUNING``)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from edgepeft.interop.classifier import Classifier
from edgepeft.interop.conversion import ConversionPlan
from edgepeft.interop.peft_methods.base import WrapConfig
from edgepeft.methods.layernorm import LayerNormTuning

__all__ = ["NormConfig"]


class NormConfig(WrapConfig):
    """The norms that it names; the others stay as they are."""

    kind: ClassVar[str] = "LN_TUNING"

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``."""
        targets = self.adapted(classifier, classifier.norms, "LayerNorm", folder)
        tensors = [f"{module}.{part}" for module in targets for part in ("weight", "bias")]
        held = [tensor for tensor in tensors if tensor in classifier.tensors]  # T5's have no bias
        return ConversionPlan.renaming(LayerNormTuning(), classifier.overrides(held))
