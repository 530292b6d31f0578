"""AdapterHub's ``adapter_config.json``: what it says of a finished checkpoint, and what of it no delta can represent.

Source: adapters 1.3.0, ``configuration/adapter_config.py``, ``methods/modeling.py`` and ``loading.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from edgepeft.backbones.base import Architecture, Role, Site
from edgepeft.common.errors import BundleError
from edgepeft.methods._adapters import Activation
from edgepeft.training.interop.base import ForeignConfig, left_out

# Theirs (transformers' names, and one more) -> ours.
ACTIVATION_NAMES: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "tanh-gelu",
    "gelu_fast": "tanh-gelu",
    "gelu_accurate": "tanh-gelu",
    "gelu_pytorch_tanh": "tanh-gelu",
    "gelu_python_tanh": "tanh-gelu",
    "quick_gelu": "quick-gelu",
    "silu": "silu",
    "swish": "silu",
    "mish": "mish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "relu6": "relu6",
    "leakyrelu": "leaky-relu",
    "leaky_relu": "leaky-relu",
    "linear": "linear",
}
_RENAMED = {"gelu": "gelu_new", "gelu_orig": "gelu"}  # in files without a version
_FIXED_LORA = (1, 1, 0)  # the first version that scales by alpha / r

_Factor = Annotated[FiniteFloat, Field(ge=1e-3)]  # a bottleneck wider than 1000 times the layer is a mistake


class HubFile(BaseModel):
    """The file around a method's config, or around a head's."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    config: dict[str, Any] | None = None
    model_type: str
    model_class: str = "unknown"
    hidden_size: int | None = None
    name: str | None = None
    version: str | None = None
    label2id: dict[str, int] | None = None

    def check_architecture(self, architecture: Architecture, path: Path) -> None:
        ours = (architecture.model_type, architecture.hidden_size)
        theirs = (self.model_type, self.hidden_size or ours[1])
        if theirs != ours:
            raise BundleError(
                f"{path} belongs to another architecture: {theirs[0]} of width {theirs[1]}; the backbone is "
                f"{ours[0]} of width {ours[1]}. Use the backbone that it was trained on."
            )

    def method_settings(self) -> dict[str, Any]:
        """The method's settings, as today's version reads an older one's file."""
        settings = dict(self.config or {})
        activation = settings.get("non_linearity")
        if self.version is None and isinstance(activation, str):
            settings["non_linearity"] = _RENAMED.get(activation, activation)
        digits = re.match(r"adapters\.(\d+)\.(\d+)\.(\d+)", self.version or "")
        if settings.get("architecture") == "lora" and digits and tuple(map(int, digits.groups())) < _FIXED_LORA:
            settings["alpha"] = settings.get("r")
        return settings


class MethodConfig(ForeignConfig):
    """What the configs of all their methods have."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {"architecture", "dropout", "init_weights", "init_weights_seed", "stochastic_depth"}
    )

    leave_out: list[int] | None = None


class BnConfig(MethodConfig):
    """Their bottleneck adapters, whose weights may be sums of Kronecker products (``phm_layer``)."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "hypercomplex_nonlinearity",  # despite its name, how the weights start
        "inv_adapter_reduction_factor",  # with inv_adapter only
        "learn_phm",
        "phm_c_init",
        "phm_init_range",
    }

    mh_adapter: bool
    output_adapter: bool
    cross_adapter: bool = False  # an encoder has no cross-attention
    reduction_factor: _Factor | dict[str, _Factor]
    non_linearity: str
    original_ln_before: bool = False
    original_ln_after: bool = True  # without it the adapter stands past the layer's last norm
    ln_before: bool = False
    ln_after: bool = False
    is_parallel: bool = False
    scaling: FiniteFloat | str = 1.0
    residual_before_ln: bool | str = True
    adapter_residual_before_ln: bool = False
    phm_layer: bool = False
    phm_dim: int = Field(default=4, ge=1)
    phm_rank: int = Field(default=1, ge=1)
    phm_bias: bool = True
    factorized_phm_W: bool = True
    shared_W_phm: bool = False
    shared_phm_rule: bool = True
    factorized_phm_rule: bool = False

    def width(self, hidden: int, layer: int) -> int:
        factor = self.reduction_factor
        if isinstance(factor, dict):
            found = factor.get(str(layer), factor.get("default"))
            if found is None:
                raise BundleError(
                    f"reduction_factor = {factor} says nothing of layer {layer} and has no default; add either."
                )
            factor = found
        return max(1, int(hidden // factor))

    def checks(self) -> dict[str, bool]:
        past_norm = self.original_ln_before and self.residual_before_ln is False and not self.is_parallel
        return {
            "non_linearity": self.non_linearity.lower() in ACTIVATION_NAMES,
            "scaling": not isinstance(self.scaling, str) or self.scaling in ("learned", "channel"),
            "residual_before_ln": isinstance(self.residual_before_ln, bool)
            or (self.residual_before_ln == "post_add" and self.original_ln_before)
            or self.is_parallel,
            # Without a residual and a norm behind it, an adapter can only stand past the layer's last norm.
            "original_ln_after": self.original_ln_after or (past_norm and not self.mh_adapter),
            "output_adapter": self.mh_adapter or self.output_adapter,
            "cross_adapter": self.original_ln_after or not self.cross_adapter,
            # Their code fails there, so that no checkpoint can have both.
            "shared_W_phm": not (self.phm_layer and self.shared_W_phm) or self.factorized_phm_W,
        }


class HubLoraConfig(MethodConfig):
    """Their LoRA."""

    r: int = Field(default=8, ge=1)
    alpha: FiniteFloat = 8.0
    attn_matrices: list[Literal["q", "k", "v"]] = Field(default=["q", "v"])
    selfattn_lora: bool = True
    intermediate_lora: bool = False
    output_lora: bool = False
    composition_mode: Literal["add"] = "add"
    vera_d: None = None
    vera_b: None = None
    dtype: Literal["float32"] | None = None


class HubPromptConfig(MethodConfig):
    """Their prompt tuning."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "prompt_init",
        "prompt_init_text",
        "random_uniform_scale",
    }

    prompt_length: int = Field(default=10, ge=1)
    combine: Literal["prefix"] = "prefix"


class HubPrefixConfig(MethodConfig):
    """Their prefix tuning, whose vectors an MLP makes where it is not ``flat``."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "cross_prefix",  # an encoder has no cross-attention
        "shared_gating",  # with use_gating only
    }

    prefix_length: int = Field(default=30, ge=1)
    flat: bool = False
    bottleneck_size: int = Field(default=512, ge=1)
    non_linearity: str = "tanh"
    encoder_prefix: Literal[True] = True
    use_gating: Literal[False] = False

    def checks(self) -> dict[str, bool]:
        return {"leave_out": not self.leave_out, "non_linearity": self.non_linearity.lower() in ACTIVATION_NAMES}


class HubUnionConfig(MethodConfig):
    """Several methods in one adapter, such as their MAM and UniPELT."""

    configs: list[dict[str, Any]]


def counted_layers(architecture: Architecture) -> dict[str, Site]:
    """How sites of a layer are called before their role -> its output, in the order in which theirs are counted.

    A decoder's layers are counted on from the encoder's.
    """
    return {site.name.removesuffix(site.role): site for site in architecture.sites_of(Role.LAYER_OUTPUT)}


def leading_layers(config: MethodConfig, architecture: Architecture) -> dict[str, Any]:
    """``leave_out`` as the settings that our methods have for it."""
    theirs = {i: site.layer or 0 for i, site in enumerate(counted_layers(architecture).values())}
    without = theirs.keys() & set(config.leave_out or ())
    left = {theirs[i] for i in without}
    if odd := [i for i, layer in theirs.items() if layer in left and i not in without]:
        raise BundleError(
            f"leave_out = {sorted(without)} names a layer of one stack and not {odd[0]}, the same of the other, which "
            "no delta can represent. Train it with both left out, or none."
        )
    return left_out(left)
