"""AdapterHub's LoRA: y + (alpha / r) B A x."""

from __future__ import annotations

from edgepeft.backbones.base import Role
from edgepeft.interop._hub_config import HubLoraConfig, leading_layers
from edgepeft.interop._hub_places import Places
from edgepeft.interop.conversion import ConversionPlan
from edgepeft.methods.lora import LoRA

__all__ = ["lora_plan"]

_MATRICES = {"q": Role.QUERY, "k": Role.KEY, "v": Role.VALUE}


def lora_plan(config: HubLoraConfig, places: Places) -> ConversionPlan:
    """The same method with their settings."""
    architecture = places.classifier.architecture
    attention = [role for key, role in _MATRICES.items() if config.selfattn_lora and key in config.attn_matrices]
    feed_forward = {Role.FFN_UP: config.intermediate_lora, Role.FFN_OUTPUT: config.output_lora}
    roles = tuple(map(str, (*attention, *(role for role, wanted in feed_forward.items() if wanted))))
    layers = leading_layers(config, architecture.n_layers)
    method = LoRA(rank=config.r, alpha=config.alpha, roles=roles, **layers)
    names: dict[str, tuple[str, tuple[int, ...]]] = {}
    for site in method.sites(architecture):
        theirs = places.of_lora(site)
        names[f"{theirs}lora_A"] = (f"{site.name}/A", (config.r, site.in_features))
        names[f"{theirs}lora_B"] = (f"{site.name}/B", (site.out_features, config.r))
    return ConversionPlan.renaming(method, names)
