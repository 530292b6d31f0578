"""AdapterHub's LoRA: y + (alpha / r) B A x."""

from __future__ import annotations

from torch import Tensor

from edgepeft.backbones.base import Role
from edgepeft.interop._hub_config import HubLoraConfig, leading_layers
from edgepeft.interop._hub_plan import ConversionPlan, Places, StateDict
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
    names: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for site in method.sites(architecture):
        theirs = places.of_lora(site)
        names |= {f"{site.name}/A": f"{theirs}lora_A", f"{site.name}/B": f"{theirs}lora_B"}
        shapes[f"{theirs}lora_A"] = (config.r, site.in_features)
        shapes[f"{theirs}lora_B"] = (site.out_features, config.r)

    def convert(state: StateDict) -> dict[str, Tensor]:
        return {ours: state[theirs] for ours, theirs in names.items()}

    return ConversionPlan(method, shapes, convert)
