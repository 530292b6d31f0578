"""PEFT's LayerNorm tuning (``LN_TUNING``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from edgepeft.bundle.delta import Delta
from edgepeft.methods.layernorm import LayerNormTuning
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.conversion import ConversionPlan
from edgepeft.training.interop.peft_methods.base import WrapConfig

__all__ = ["NormConfig"]


class NormConfig(WrapConfig):
    """The norms that it names; the others stay as they are."""

    kind: ClassVar[str] = "LN_TUNING"
    ours: ClassVar[tuple[str, ...]] = (LayerNormTuning.name,)

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``."""
        targets = self.adapted(classifier, classifier.norms, "LayerNorm", folder)
        tensors = [f"{module}.{part}" for module in targets for part in ("weight", "bias")]
        held = [tensor for tensor in tensors if tensor in classifier.tensors]  # T5's have no bias
        return ConversionPlan.renaming(LayerNormTuning(), classifier.overrides(held))

    @classmethod
    def written(cls, delta: Delta, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As ``PeftConfig.written``."""
        own = delta.override_tensors
        held = [theirs.rpartition(".") for theirs, ours in classifier.tensors.items() if ours in own]
        tensors = {
            f"{module}.ln_tuning_layers.{part}": own[classifier.tensors[f"{module}.{part}"]] for module, _, part in held
        }
        return {"target_modules": list(dict.fromkeys(module for module, _, _ in held))}, tensors
