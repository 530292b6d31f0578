"""AdapterHub's methods: which of ours their config is, with its tensors, and ours as settings of theirs.

A folder is written by the plan that reads it, in which only names differ: inverted, so the mapping is written once.
``_hub_adapter`` has the bottleneck adapters that come in.  Source: adapters 1.3.0, ``configuration/adapter_config.py``.

AdapterFusion computes k + sum_i p_i V A_i(z), p = softmax_i((Q z) . (K A_i(z))), of adapters in Pfeiffer's form, with
the last one's z and k.  V before or after the sum is the same.  Source: ``methods/modeling.py``, ``BertFusion``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import torch
from pydantic import Field, FiniteFloat
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Role
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.methods._adapters import ACTIVATIONS, KroneckerAdapters
from edgepeft.methods.base import Method, PerLayer, method_named, methods
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.compacter import Compacter
from edgepeft.methods.fusion import Fusion
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.lora import LoRA
from edgepeft.methods.mam import MAM
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.phm import PHM
from edgepeft.methods.prefix import PrefixTuning
from edgepeft.methods.prompt_r import PromptR
from edgepeft.training.interop._hub_adapter import ACTIVATION_NAMES, BnConfig, MethodConfig, Places, leading_layers
from edgepeft.training.interop.base import ConversionPlan, ForeignConfig, StateDict

Settings = dict[str, Any]
_LORA_MATRICES = {"q": Role.QUERY, "k": Role.KEY, "v": Role.VALUE}
_SCORED = ("distilbert",)  # whose masks of ones their code adds to scores
_KEEPS: Mapping[str, Any] = {"sublayer": True, "norm": False, "sum": "post_add"}


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

    def plan(self, places: Places) -> ConversionPlan:
        architecture = places.classifier.architecture
        attention = [role for key, role in _LORA_MATRICES.items() if self.selfattn_lora and key in self.attn_matrices]
        up = Role.FFN_UP if architecture.sites_of(Role.FFN_UP) else Role.FFN_GATED
        feed_forward = {up: self.intermediate_lora, Role.FFN_OUTPUT: self.output_lora}
        roles = tuple(map(str, (*attention, *(role for role, wanted in feed_forward.items() if wanted))))
        layers = leading_layers(self, architecture)
        layers["cross_attention"] = bool(attention) and architecture.decoder is not None  # theirs wraps every attention
        method = LoRA(rank=self.r, alpha=self.alpha, roles=roles, **layers)
        names: dict[str, tuple[str, tuple[int, ...]]] = {}
        for site in method.sites(architecture):
            theirs = f"{places.classifier.prefix}{site.reads}.loras.{places.adapter}."
            names[f"{theirs}lora_A"] = (f"{site.name}/A", (self.r, site.in_features))
            names[f"{theirs}lora_B"] = (f"{site.name}/B", (site.out_features, self.r))
        return ConversionPlan.renaming(method, names)


class HubPromptConfig(MethodConfig):
    """Their prompt tuning."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "prompt_init",
        "prompt_init_text",
        "random_uniform_scale",
    }

    prompt_length: int = Field(default=10, ge=1)
    combine: Literal["prefix"] = "prefix"

    def plan(self, places: Places) -> ConversionPlan:
        if places.classifier.architecture.model_type in _SCORED:
            raise BundleError(
                "of a DistilBERT AdapterHub (1.3.0) adds 1 to the scores of a prompt's places and has it see padding, "
                "which no delta does. Train the prompt here, or with PEFT."
            )
        method = PromptR(length=self.prompt_length, place="embeddings")
        width = method.sites(places.classifier.architecture)[-1].out_features
        theirs = f"{places.classifier.prefix}prompt_tuning.prompt_tunings.{places.adapter}.prompt_embedding.weight"
        vectors = ("embeddings/vectors", (self.prompt_length, width))
        return ConversionPlan.renaming(method, {theirs: vectors})


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

    def plan(self, places: Places) -> ConversionPlan:
        if places.classifier.architecture.model_type in _SCORED:
            raise BundleError(
                "of a DistilBERT AdapterHub (1.3.0) adds 1 to the scores of a prefix's places, which no delta does. "
                "Train the prefix here."
            )
        method = PrefixTuning(length=self.prefix_length)
        pairs = [site for site in method.sites(places.classifier.architecture) if site.layer is not None]
        width, k = pairs[0].out_features, self.bottleneck_size
        whole = len(pairs) * width
        stem = f"{places.classifier.prefix}prefix_tuning.prefix_tunings.{places.adapter}.self_prefix."
        made, ours = f"{stem}control_trans", tuple(f"{site.name}/vectors" for site in pairs)
        mlp = {f"{made}.0.weight": (k, width), f"{made}.0.bias": (k,)}
        mlp |= {f"{made}.2.weight": (whole, k), f"{made}.2.bias": (whole,), f"{stem}wte.weight": (method.length, width)}

        def convert(state: StateDict) -> dict[str, Tensor]:
            if self.flat:
                vectors = state[made].view(method.length, whole)
            else:
                act = ACTIVATIONS[ACTIVATION_NAMES[self.non_linearity.lower()]]
                down, down_bias, up, up_bias, table = (state[name] for name in mlp)
                vectors = act(table @ down.T + down_bias) @ up.T + up_bias
            return dict(zip(ours, torch.split(vectors, width, dim=1), strict=True))

        if self.flat:
            return ConversionPlan(method, {made: (method.length * whole,)}, convert, joined={made: ours})
        return ConversionPlan(method, mlp, convert)


class HubUnionConfig(MethodConfig):
    """Several methods in one adapter, such as their MAM and UniPELT."""

    configs: list[dict[str, Any]]

    def plan(self, places: Places) -> ConversionPlan:
        parts = [plan_of(settings, places, Path(f"configs[{i}]"))[1] for i, settings in enumerate(self.configs)]
        prefix = next((part.method for part in parts if isinstance(part.method, PrefixTuning)), None)
        adapter = next((part.method for part in parts if isinstance(part.method, BottleneckAdapter)), None)
        if len(parts) == 2 and prefix is not None and adapter is not None:
            method = MAM(length=prefix.length, bottleneck=adapter.bottleneck, activation=adapter.activation)
            if method.adapter == adapter:
                shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
                return ConversionPlan(
                    method,
                    shapes,
                    lambda state: {name: t for part in parts for name, t in part.convert(state).items()},
                    tuple(pair for part in parts for pair in part.names),
                    {theirs: ours for part in parts for theirs, ours in part.joined.items()},
                )
        raise BundleError(
            f"a union of {' and '.join(part.method.title for part in parts)} is no delta; what can be is MAM: a prefix "
            "and a parallel adapter (par_bn) after each feed-forward. Train one of the methods alone."
        )


# Their ``architecture`` -> its config; a new method is one entry.
_METHODS: Mapping[str | None, type[MethodConfig]] = {
    None: BnConfig,
    "lora": HubLoraConfig,
    "prefix_tuning": HubPrefixConfig,
    "prompt_tuning": HubPromptConfig,
    "union": HubUnionConfig,
}


def plan_of(settings: Mapping[str, Any], places: Places, path: Path) -> tuple[MethodConfig, ConversionPlan]:
    """The config of a method, of which ``path`` names the file, and how its tensors become ours."""
    kind = settings.get("architecture")
    if not (kind is None or isinstance(kind, str)) or kind not in _METHODS:
        known = ", ".join(kind or "bottleneck adapters (which have no architecture)" for kind in _METHODS)
        raise BundleError(f"{path}: AdapterHub's {kind} cannot be imported; what can: {known}.")
    config = _METHODS[kind].read(settings, path)
    try:
        return config, config.plan(places)
    except EdgepeftError as error:  # of our methods' settings, or of widths that do not fit
        raise BundleError(f"{path}: {error}") from error


class FusionConfig(ForeignConfig):
    """Its settings; what is ignored is of training, or the same by another way."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "dropout_prob",
        "regularization",
        "value_before_softmax",
        "value_initialized",
    }

    query: Literal[True]
    key: Literal[True]
    value: bool
    query_before_ln: Literal[False] = False
    residual_before: Literal[False] = False
    temperature: Literal[False] = False

    def plan(self, parts: Sequence[ConversionPlan], places: Places) -> ConversionPlan:
        """The adapters' plans and the fusion's tensors as one; ``places`` are the fusion's."""
        adapters = [m for m in (part.method for part in parts) if isinstance(m, Pfeiffer) and m.placement == "ffn"]
        if len(adapters) != len(parts) or len({replace(each, bottleneck=1) for each in adapters}) != 1:
            found = "; ".join(f"{part.method.title} {part.method.settings()}" for part in parts)
            raise BundleError(
                "adapters that are fused must all be in Pfeiffer's form (seq_bn) with one activation, in the same "
                f"layers; found {found}. Train a fusion of such, or import one adapter."
            )
        first, width = adapters[0], max(each.bottleneck for each in adapters)
        own = {"adapters": len(parts), "bottleneck": width, "value": self.value, "activation": first.activation}
        layers = {"skip_layers": first.skip_layers, "leave_out": first.leave_out}
        method, architecture = Fusion.from_settings({**own, **layers}), places.classifier.architecture
        used = {site.name for site in method.sites(architecture)}
        names: dict[str, tuple[str, tuple[int, ...]]] = {}
        for site in Fusion.from_settings(own).sites(architecture):  # theirs has it in layers without adapters, too
            d, start = site.out_features, places.of_adapter(site).replace(".adapters.", ".adapter_fusion_layer.")
            for part in ("query", "key", *(["value"] if self.value else [])):
                names[f"{start}{part}.weight"] = (f"{site.name}/{part}.weight", (d, d))
            names |= {f"{start}{part}.bias": (f"{site.name}/{part}.bias", (d,)) for part in ("query", "key")}

        def convert(state: StateDict) -> dict[str, Tensor]:
            values = {ours: state[theirs] for theirs, (ours, _) in names.items() if ours.partition("/")[0] in used}
            for i, (adapter, part) in enumerate(zip(adapters, parts, strict=True)):
                more = width - adapter.bottleneck  # zeros fill up to the widest
                filled = {
                    "down.weight": (0, 0, 0, more),
                    "down.bias": (0, more),
                    "up.weight": (0, more),
                    "up.bias": (0, 0),
                }
                for name, tensor in part.convert(state).items():
                    site_name, _, of = name.partition("/")
                    values[f"{site_name}/adapters.{i}.{of}"] = functional.pad(tensor, filled[of])
            return values

        shapes = {theirs: shape for theirs, (_, shape) in names.items()}
        return ConversionPlan(method, shapes | {name: s for part in parts for name, s in part.shapes.items()}, convert)


def settings_of(delta: Delta) -> Settings:
    """The delta's method as settings of theirs."""
    method = method_named(delta.card.method).from_settings(delta.card.hyperparameters)
    said = next((say for kind, say in _SAID.items() if isinstance(method, kind)), None)
    if said is None:
        known = sorted(name for name, each in methods().items() if issubclass(each, tuple(_SAID)))
        refuse(delta, f"it has no form for {method.name}", f"What can be: {', '.join(known)}")
    if getattr(method, "norms", False):
        refuse(delta, "LayerNorms are trained too, which save_adapter leaves out", "Train it with --set norms=false")
    settings = said(delta, method)
    if isinstance(method, PerLayer):
        used = set(delta.adapted_layers())
        every = {site.layer for site in delta.architecture.sites_of(Role.LAYER_OUTPUT)}
        settings["leave_out"] = sorted(layer for layer in every if layer is not None and layer not in used)
    return settings


def _bottleneck(
    delta: Delta, method: Any, roles: Sequence[str], reads: str, keeps: str = "sublayer", **more: Any
) -> Settings:
    """What all adapters between layers have: m = d // reduction_factor, the forms of ``_hub_adapter``."""
    d, m = delta.architecture.hidden_size, method.bottleneck
    after_the_layer = Role.LAYER_OUTPUT in roles
    if (reads != "norm" and keeps != "sublayer") or (after_the_layer and len(roles) > 1):
        at = ", ".join(roles)
        refuse(delta, f"reads={reads} with keeps={keeps} at {at} is no form of its adapters", "Train it with another")
    return {
        "mh_adapter": Role.ATTENTION_OUTPUT in roles,
        "output_adapter": Role.FFN_OUTPUT in roles or after_the_layer,
        "cross_adapter": False,
        "reduction_factor": d // m if d % m == 0 else d / m if int(d // (d / m)) == m else d / (m + 0.5),
        "non_linearity": next(theirs for theirs, ours in ACTIVATION_NAMES.items() if ours == method.activation),
        "original_ln_before": reads == "norm" or after_the_layer,
        "original_ln_after": not after_the_layer,
        "residual_before_ln": not after_the_layer and _KEEPS[keeps],
        "is_parallel": reads == "residual",
        "scaling": 1.0,
        **more,
    }


def _general(delta: Delta, method: BottleneckAdapter) -> Settings:
    norms = {"ln_before": method.norm_before, "ln_after": method.norm_after != "none"}
    norms["adapter_residual_before_ln"] = method.norm_after == "sum"
    if method.norm_after == "sum" and method.reads == "residual":
        refuse(delta, "norm_after=sum is no form of its parallel adapters", "Train it with norm_after=change")
    return _bottleneck(delta, method, method.roles, method.reads, method.keeps, **norms)


def _products(delta: Delta, method: KroneckerAdapters) -> Settings:
    """Compacter's rule is shared and its factors are of low rank; PHM's are neither."""
    low_rank = isinstance(method, Compacter)
    of_phm: Settings = {"phm_layer": True, "phm_dim": method.n, "phm_bias": True, "shared_phm_rule": low_rank}
    of_phm |= {"factorized_phm_W": low_rank, "phm_rank": method.rank if isinstance(method, Compacter) else 1}
    return _bottleneck(delta, method, method.roles, method.reads, **of_phm)


def _lora(delta: Delta, method: LoRA) -> Settings:
    known = {*_LORA_MATRICES.values(), "ffn_up", "ffn_output"}
    if odd := [role for role in method.roles if role not in known]:
        refuse(delta, f"its LoRA has no matrices at {', '.join(odd)}", f"Roles that can be: {', '.join(sorted(known))}")
    if method.bias != "none" or method.whole:
        refuse(delta, "tensors of the backbone are trained too", "Train it with --set bias=none, and no whole ones")
    return {
        "architecture": "lora",
        "r": method.rank,
        "alpha": method.alpha * (method.rank**0.5 if method.rank_stabilised else 1),  # theirs is divided by r
        "attn_matrices": [theirs for theirs, role in _LORA_MATRICES.items() if role in method.roles],
        "selfattn_lora": not set(method.roles).isdisjoint(_LORA_MATRICES.values()),
        "intermediate_lora": "ffn_up" in method.roles,
        "output_lora": "ffn_output" in method.roles,
        "composition_mode": "add",
    }


def _prompt(delta: Delta, method: PromptR) -> Settings:
    if method.place != "embeddings":
        refuse(delta, "its prompts stand past positions and norm", "Train it with --set place=embeddings")
    return {"architecture": "prompt_tuning", "prompt_length": method.length, "combine": "prefix"}


def _prefix(delta: Delta, method: PrefixTuning) -> Settings:
    if method.text != "stays":
        refuse(delta, "its texts begin behind the prefix", "Train it with --set text=stays")
    return {"architecture": "prefix_tuning", "prefix_length": method.length, "flat": True}


# Our method -> its settings; a method before what it is made of.
_SAID: Mapping[type[Method], Callable[[Delta, Any], Settings]] = {
    Houlsby: lambda delta, method: _bottleneck(delta, method, method.attaches_to(), "sublayer"),
    Pfeiffer: lambda delta, method: _bottleneck(
        delta, method, method.attaches_to(), "norm" if method.placement == "ffn" else "sublayer"
    ),
    BottleneckAdapter: _general,
    Compacter: _products,
    PHM: _products,
    LoRA: _lora,
    MAM: lambda delta, method: {
        "architecture": "union",
        "configs": [_prefix(delta, method), _general(delta, method.adapter)],
    },
    PrefixTuning: _prefix,
    PromptR: _prompt,
}


def refuse(delta: Delta, why: str, remedy: str) -> NoReturn:
    """Say why it cannot go there."""
    raise UsageError(f"the task {delta.card.task!r} cannot be written for AdapterHub: {why}. {remedy}.")
