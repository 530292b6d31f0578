"""PEFT's LoRA and DoRA (``LORA``), with its variants of scale, bias and pattern.

Where ranks differ, zeros fill up to the largest; where scales differ, B takes the factor: B A x is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import LINEAR_ROLES
from edgepeft.delta import Delta, pretrained
from edgepeft.interop.classifier import Classifier
from edgepeft.interop.conversion import ConversionPlan, StateDict
from edgepeft.interop.peft_methods.base import PeftConfig, WrapConfig, match_pattern
from edgepeft.methods._cross_attention import crossed
from edgepeft.methods.base import method_named, weight_at
from edgepeft.methods.dora import DoRA
from edgepeft.methods.lora import LoRA

__all__ = ["LoraConfig"]

# Starts that leave the base model's weights alone; the others (pissa, olora, loftq, ...) change those too.
_HARMLESS_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")

_MAGNITUDE = "lora_magnitude_vector"  # of DoRA
_Value = TypeVar("_Value", int, float)


class LoraConfig(WrapConfig):
    """Pairs of factors, and biases."""

    kind: ClassVar[str] = "LORA"
    ours: ClassVar[tuple[str, ...]] = (LoRA.name, DoRA.name)
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "lora_dropout",
        "fan_in_fan_out",  # of GPT-2's Conv1D; PEFT itself turns it off on a linear layer
        "megatron_core",  # a module's name, used with megatron_config only
        "qalora_group_size",  # with use_qalora only
        "ensure_weight_tying",
        "eva_config",
        "runtime_config",
    }

    r: int = Field(ge=1, strict=True)
    lora_alpha: FiniteFloat
    use_rslora: bool = False
    use_dora: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"
    rank_pattern: dict[str, Annotated[int, Field(ge=1)]] | None = None
    alpha_pattern: dict[str, FiniteFloat] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    init_lora_weights: bool | str | None = True

    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """As ``PeftConfig.plan``; zeros where a layer of the chosen roles is left alone."""
        targets = self.adapted(classifier, classifier.linear_sites, "linear layer with a site", folder)
        sites = {module: classifier.linear_sites[module] for module in targets}
        rank = max(self.rank(module) for module in targets)
        alpha = max((self.alpha(module) for module in targets), key=abs) or 1.0
        found = {site.role for site in sites.values()}
        across = found & set(crossed(LINEAR_ROLES))
        roles = tuple(str(role) for role in LINEAR_ROLES if not found.isdisjoint((role, *crossed((role,)))))
        method = (DoRA if self.use_dora else LoRA)(
            rank=rank,
            alpha=alpha,
            roles=roles,
            rank_stabilised=self.use_rslora,
            bias=self.bias,
            cross_attention=bool(across),
        )
        every = [name for name in classifier.tensors if name.endswith(".bias")]
        trained = {"none": [], "lora_only": [f"{module}.bias" for module in targets], "all": every}[self.bias]
        backbone = classifier.backbone
        biases = classifier.overrides(name for name in trained if name in classifier.tensors)  # T5 has none
        shapes = {theirs: shape for theirs, (_, shape) in biases.items()}
        for module, site in sites.items():
            shapes[f"{module}.lora_A.weight"] = (self.rank(module), site.in_features)
            shapes[f"{module}.lora_B.weight"] = (site.out_features, self.rank(module))
            shapes |= {f"{module}.{_MAGNITUDE}": (site.out_features,)} if self.use_dora else {}

        def convert(state: StateDict) -> dict[str, Tensor]:
            values = {ours: state[theirs] for theirs, (ours, _) in biases.items()}
            for site in method.sites(classifier.architecture):
                values[f"{site.name}/A"] = torch.zeros(rank, site.in_features)
                values[f"{site.name}/B"] = torch.zeros(site.out_features, rank)
                if self.use_dora:
                    values[f"{site.name}/magnitude"] = weight_at(site, partial(pretrained, backbone)).norm(dim=1)
            for module, site in sites.items():
                more, factor = rank - self.rank(module), self.scale(module) / method.scale
                values[f"{site.name}/A"] = functional.pad(state[f"{module}.lora_A.weight"], (0, 0, 0, more))
                values[f"{site.name}/B"] = functional.pad(state[f"{module}.lora_B.weight"] * factor, (0, more))
                if self.use_dora:
                    values[f"{site.name}/magnitude"] = state[f"{module}.{_MAGNITUDE}"]
            return values

        return ConversionPlan(method, shapes, convert)

    def rank(self, module: str) -> int:
        """r at that module."""
        return _by_pattern(self.rank_pattern or {}, module, self.r)

    def alpha(self, module: str) -> float:
        """The scale's numerator at that module."""
        return _by_pattern(self.alpha_pattern or {}, module, self.lora_alpha)

    def scale(self, module: str) -> float:
        """What B A x is multiplied by at that module."""
        rank = self.rank(module)
        return self.alpha(module) / (rank**0.5 if self.use_rslora else rank)

    def check_patterns(self) -> None:
        """As its base does; those of ranks and alphas too."""
        super().check_patterns()
        self.scale("some.layer.0.module")

    def checks(self) -> dict[str, bool]:
        """As its base has them: not starts that changed the base model's weights too."""
        return {"init_lora_weights": self.init_lora_weights in _HARMLESS_STARTS}

    @classmethod
    def written(cls, delta: Delta, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """As ``PeftConfig.written``."""
        method = method_named(delta.card.method).from_settings(delta.card.hyperparameters)
        assert isinstance(method, LoRA)
        modules = classifier.modules_of(delta.site_modules)
        parts = {"A": "lora_A.weight", "B": "lora_B.weight", "magnitude": _MAGNITUDE}
        names = {f"{site}/{ours}": f"{module}.{parts[ours]}" for site, module in modules.items() for ours in parts}
        for theirs, ours in classifier.tensors.items():
            module, _, part = theirs.rpartition(".")
            names[f"override/{ours}"] = f"{module}.base_layer.{part}" if module in modules.values() else theirs
        settings = {
            "r": method.rank,
            "lora_alpha": int(method.alpha) if method.alpha.is_integer() else method.alpha,
            "use_rslora": method.rank_stabilised,
            "use_dora": isinstance(method, DoRA),
            "bias": method.bias,
            # By whole names: an end such as output.dense means two of them.
            "target_modules": list(modules.values()),
            "lora_dropout": 0.0,
            "fan_in_fan_out": False,
            "init_lora_weights": True,
        }
        return settings, {names[name]: tensor for name, tensor in delta.tensors().items() if name in names}

    def _is_target(self, module: str) -> bool:
        return super()._is_target(module) and (isinstance(self.target_modules, str) or self._is_chosen_layer(module))

    def _is_chosen_layer(self, module: str) -> bool:
        chosen = self.layers_to_transform
        if chosen is None or chosen == []:
            return True
        names = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in names or ()] or [r".*?\.[^.]*\.(\d+)\."]
        matches = (match_pattern(pattern, module) for pattern in patterns)
        layer = next((matched[1] for matched in matches if matched), None)
        return layer is not None and int(layer) in ([chosen] if isinstance(chosen, int) else chosen)


def _by_pattern(patterns: Mapping[str, _Value], module: str, default: _Value) -> _Value:
    return next(
        (value for pattern, value in patterns.items() if match_pattern(rf"(.*\.)?({pattern})$", module)), default
    )
