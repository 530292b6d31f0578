"""AdapterHub's prompt tuning: vectors before the text past position embeddings and LayerNorm, [v_1 ... v_p; LN(E)]."""

from __future__ import annotations

from edgepeft.interop._hub_config import HubPromptConfig
from edgepeft.interop._hub_places import Places
from edgepeft.interop.conversion import ConversionPlan
from edgepeft.methods.prompt_r import PromptR

__all__ = ["prompt_plan"]


def prompt_plan(config: HubPromptConfig, places: Places) -> ConversionPlan:
    """The same vectors; what they started from does not matter any more.

    Raises:
        UsageError: they leave no position for a text.
    """
    method = PromptR(length=config.prompt_length, place="embeddings")
    width = method.sites(places.classifier.architecture)[-1].out_features
    theirs = f"{places.classifier.prefix}prompt_tuning.prompt_tunings.{places.adapter}.prompt_embedding.weight"
    vectors = ("embeddings/vectors", (config.prompt_length, width))
    return ConversionPlan.renaming(method, {theirs: vectors})
