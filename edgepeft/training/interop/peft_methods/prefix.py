"""PEFT's prefix tuning (``PREFIX_TUNING``): keys and values, folded if an MLP made them; texts stand behind the prefix.

Source: peft 0.21.2, ``peft_model.py`` (``get_prompt``): a row has each layer's key, then its value.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from edgepeft.backbones.base import Role
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import UsageError
from edgepeft.methods.prefix import PrefixTuning
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.conversion import ConversionPlan, StateDict
from edgepeft.training.interop.peft_methods.base import PeftConfig
from edgepeft.training.interop.peft_methods.prompt import VectorsConfig

__all__ = ["PrefixConfig"]

_VECTORS = "prompt_embeddings"


class PrefixConfig(VectorsConfig):
    """Vectors of all layers side by side, [p, 2 L d]."""

    kind: ClassVar[str] = "PREFIX_TUNING"
    ours: ClassVar[tuple[str, ...]] = (PrefixTuning.name,)
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "encoder_hidden_size",
        "init_weights",
        "num_attention_heads",
        "prefix_projection",
    }

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``."""
        self.check_sizes(classifier.architecture, folder)
        method = PrefixTuning(length=self.num_virtual_tokens, text="follows")
        sites = [site for site in method.sites(classifier.architecture) if site.layer is not None]
        width = sites[0].out_features

        def convert(state: StateDict) -> dict[str, Tensor]:
            parts = torch.split(state[_VECTORS], width, dim=1)
            return {f"{site.name}/vectors": part for site, part in zip(sites, parts, strict=True)}

        return ConversionPlan(method, {_VECTORS: (method.length, width * len(sites))}, convert)

    @classmethod
    def written(cls, delta: Delta, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As ``PeftConfig.written``."""
        method, architecture = PrefixTuning.from_settings(delta.card.hyperparameters), classifier.architecture
        if not _takes_keys(architecture.model_type):
            raise UsageError(
                f"PEFT gives a prefix to a model as past_key_values, which transformers' {architecture.model_type} "
                "does not take: a task with one cannot go there. Train it by lora, or on BERT or its kin."
            )
        if method.text != "follows":
            raise UsageError(
                f"the texts of the task {delta.card.task!r} stay at their positions, and PEFT's begin behind the "
                "prefix: it would give other logits. A task that is to go there is trained with --set text=follows."
            )
        vectors = delta.folded(classifier.backbone).tensors()
        pairs = architecture.sites_of(Role.KEY_HEADS, Role.VALUE_HEADS)
        settings = {
            "num_virtual_tokens": method.length,
            "token_dim": architecture.hidden_size,
            "num_layers": architecture.n_layers,
            "num_attention_heads": architecture.n_heads,
            "num_transformer_submodules": 1,
            "encoder_hidden_size": architecture.hidden_size,
            "prefix_projection": False,
        }
        return settings, {_VECTORS: torch.cat([vectors[f"{site.name}/vectors"] for site in pairs], dim=1)}


def _takes_keys(model_type: str) -> bool:
    """Whether transformers' base model of that type takes keys and values from outside."""
    import transformers

    model: Any = transformers.MODEL_MAPPING[transformers.CONFIG_MAPPING[model_type]]
    return "past_key_values" in inspect.signature(model.forward).parameters
