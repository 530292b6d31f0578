"""Decoders of Llama's kind: a row of switches a model type, and sizes, tensors and sites read from a config.

Letters: d hidden, f intermediate, h heads, k heads of keys and values, e a head's width, v vocabulary.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepeft.backbones.base import LINEAR_ROLES, OUTPUT_LAYER, Attention, Role, Site
from edgepeft.backbones.config import Sizes, checked, read_sizes, require_known, rope_theta
from edgepeft.backbones.packing import frequencies
from edgepeft.common.errors import UsageError

WORDS = "model.embed_tokens.weight"
ATTENDING = (Role.QUERY, Role.KEY, Role.VALUE)
_LINEAR = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class DecoderLayout:
    """How a model type differs from Llama.

    ``norms`` are a layer's, before and past attention, before and past the feed-forward; ``biased`` the linear layers
    with a bias whatever the config says; ``head_norms``: queries and keys are normed head by head, in transformers with
    heads on that axis; ``plus_one``: norms multiply by 1 + weight; ``scaled``: embeddings are multiplied by the root of
    d.
    """

    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    biased: tuple[str, ...] = ()
    head_norms: int = 0
    plus_one: bool = False
    scaled: bool = False
    activation: tuple[str, str] = ("hidden_act", "silu")  # the config's key, and what is taken where that is silent
    local_theta: bool = False  # layers with a window have a base of their own


LAYOUTS: Mapping[str, DecoderLayout] = {
    "llama": DecoderLayout(),  # SmolLM2 too
    "mistral": DecoderLayout(),
    "qwen2": DecoderLayout(biased=_LINEAR[:3]),
    "qwen3": DecoderLayout(head_norms=2),
    "gemma3_text": DecoderLayout(
        norms=(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ),
        head_norms=1,
        plus_one=True,
        scaled=True,
        local_theta=True,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class DecoderSizes(Sizes):
    """Heads of keys and values are as many or fewer."""

    max_length: int = 2048
    layer_norm_eps: float = 1e-6
    num_key_value_heads: int
    head_dim: int
    eos_token_id: int = 2


def sizes_of(config: Mapping[str, Any]) -> DecoderSizes:
    layout = LAYOUTS[config["model_type"]]
    heads = checked("num_attention_heads", config.get("num_attention_heads"))
    silent = {"num_key_value_heads": heads, "activation": layout.activation[1]}
    keys = {"layer_norm_eps": "rms_norm_eps", "activation": layout.activation[0]}
    silent["head_dim"] = checked("hidden_size", config.get("hidden_size")) // heads
    ends = config.get("eos_token_id")
    given = {**config, "eos_token_id": ends[0] if isinstance(ends, list) and ends else ends}
    silent["pad_token_id"] = given["eos_token_id"] if given["eos_token_id"] is not None else 0
    sizes = read_sizes(DecoderSizes, given, silent, keys)
    require_known(layout.activation[0], sizes.activation, ACTIVATIONS)
    if sizes.head_dim % 2:
        raise UsageError(f"the config's head_dim is {sizes.head_dim}; rotary positions turn pairs of numbers.")
    if heads % sizes.num_key_value_heads:
        raise UsageError(
            f"the config's num_attention_heads is {heads}, and num_key_value_heads {sizes.num_key_value_heads}, which "
            "must divide it."
        )
    scalar = config.get("query_pre_attn_scalar")
    if scalar not in (None, sizes.head_dim):
        raise UsageError(f"the config's query_pre_attn_scalar is {scalar!r}; supported: head_dim, {sizes.head_dim}.")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(key) is not None:
            raise UsageError(f"the config's {key} is {config[key]!r}; logits are not capped here.")
    return sizes


def attention_of(config: Mapping[str, Any], sizes: DecoderSizes) -> tuple[Attention, ...]:
    """Each layer's."""
    n, layout = sizes.n_layers, LAYOUTS[config["model_type"]]
    whole = _turning(config, sizes.head_dim, "full_attention" if layout.local_theta else "")
    if not layout.local_theta:
        return (whole,) * n
    window = "sliding_attention"
    parameters = config.get("rope_parameters") or {}
    local = parameters.get(window, {"rope_theta": config.get("rope_local_base_freq", 10_000.0)})
    within = _turning({"rope_scaling": local}, sizes.head_dim, "")
    pattern = checked("sliding_window_pattern", config.get("sliding_window_pattern", 6))
    types = config.get("layer_types") or [window if (i + 1) % pattern else "full_attention" for i in range(n)]
    if len(types) != n:
        raise UsageError(f"the config's layer_types are {len(types)}; there are {n} layers.")
    return tuple(within if kind == window else whole for kind in types)


def _turning(config: Mapping[str, Any], width: int, kind: str) -> Attention:
    """RoPE as transformers' ``rope_type`` default, linear and llama3 have it."""
    parameters = config.get("rope_parameters") or {}
    own = {**(config.get("rope_scaling") or {}), **(parameters.get(kind, parameters) if kind else parameters)}
    named = own.get("rope_type", own.get("type", "default"))
    theta = own.get("rope_theta", config.get("rope_theta"))
    theta = rope_theta({} if theta is None else {"rope_theta": theta}, "rope_theta", 10_000.0)
    if named == "default":
        return Attention(theta, None)
    w = frequencies(theta, width)
    if named == "linear":
        return Attention(theta, None, tuple((w / np.float32(_number(own, "factor"))).tolist()))
    if named == "llama3":
        factor, low, high = (_number(own, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
        before = _number(own, "original_max_position_embeddings")
        length = np.float32(2 * math.pi) / w
        smooth = (np.float32(before) / length - np.float32(low)) / np.float32(high - low)
        between = (1 - smooth) * w / np.float32(factor) + smooth * w
        scaled = np.where(length > before / low, w / np.float32(factor), np.where(length < before / high, w, between))
        return Attention(theta, None, tuple(scaled.astype(np.float32).tolist()))
    raise UsageError(f"the config's RoPE has the rope_type {named!r}; supported: default, linear, llama3.")


def _number(settings: Mapping[str, Any], name: str) -> float:
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"the config's RoPE needs {name} as a positive number; found {value!r}.")
    return float(value)


def tensors_of(config: Mapping[str, Any], sizes: DecoderSizes, sites: Iterable[Site]) -> dict[str, tuple[int, ...]]:
    layout, d, e = LAYOUTS[config["model_type"]], sizes.hidden_size, sizes.head_dim
    linear = [site for site in sites if site.role in LINEAR_ROLES]
    biased = {*layout.biased, *(_LINEAR if config.get("attention_bias") and not layout.biased else ())}
    biased |= {*(_FEED_FORWARD if config.get("mlp_bias") else ())}
    table: tuple[int, ...] = (sizes.vocab_size, d)
    tied = config.get("tie_word_embeddings", layout.scaled)  # transformers' default: Gemma's are, the others' not
    tensors = {WORDS: table} | ({} if tied else {OUTPUT_LAYER: table})
    for i in range(sizes.n_layers):
        layer = f"model.layers.{i}."
        for site in (site for site in linear if site.layer == i):
            tensors[f"{site.module}.weight"] = (site.out_features, site.in_features)
            if site.module.endswith(tuple(biased)):
                tensors[f"{site.module}.bias"] = (site.out_features,)
        tensors |= {f"{layer}{norm}.weight": (d,) for norm in filter(None, layout.norms)}
        if layout.head_norms:
            tensors |= {f"{layer}self_attn.{part}_norm.weight": (e,) for part in "qk"}
    return {**tensors, "model.norm.weight": (d,)}


def sites_of(layout: DecoderLayout, sizes: DecoderSizes) -> Iterator[Site]:
    d, f, e = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    wide, narrow = sizes.n_heads * e, sizes.num_key_value_heads * e
    yield Site("word_embeddings", Role.WORD_EMBEDDINGS, None, d, d, "model.layers.0", is_input=True)
    for i in range(sizes.n_layers):
        layer, name = f"model.layers.{i}", f"layer.{i}."

        def at(role: Role, module: str, widths: tuple[int, int], **more: Any) -> Site:
            place = f"{layer}.{module}".rstrip(".")  # noqa: B023
            return Site(name + role, role, i, *widths, place, place, **more)  # noqa: B023

        yield at(Role.ATTENTION_NORM, layout.norms[0], (d, d))
        for role, module, width in zip(ATTENDING, _LINEAR, (wide, narrow, narrow), strict=False):
            yield at(role, module, (d, width), input=name + Role.ATTENTION_NORM)
        # Where no norm stands between, a layer's keys and values are what its products give.
        key, value = ("self_attn.k_norm", "") if layout.head_norms else (_LINEAR[1], name + Role.KEY)
        states = {
            Role.KEY_STATES: (key, layout.head_norms, value),
            Role.VALUE_STATES: (_LINEAR[2], 0, name + Role.VALUE),
        }
        for role, (module, heads, value) in states.items():
            yield Site(name + role, role, i, narrow, narrow, f"{layer}.{module}", heads=heads, value=value)
        below = f"layer.{i - 1}.layer_output" if i else "word_embeddings"
        around = {"residual": layer, "input": f"{name}context", "added": below}
        yield at(Role.ATTENTION_OUTPUT, _LINEAR[3], (wide, d), **around)
        yield at(Role.FFN_NORM, layout.norms[2], (d, d))
        for role, module in zip((Role.FFN_GATE, Role.FFN_GATED), _FEED_FORWARD, strict=False):
            yield at(role, module, (d, f), input=name + Role.FFN_NORM)
        yield at(Role.FFN_ACTIVATION, _FEED_FORWARD[2], (f, f), is_input=True)
        around = {"residual": f"{layer}.{layout.norms[2]}", "added": f"{name}attention_output.sum"}
        around["input"] = name + Role.FFN_ACTIVATION
        yield at(Role.FFN_OUTPUT, _FEED_FORWARD[2], (f, d), **around)
        yield at(Role.LAYER_OUTPUT, "", (d, d))
    yield Site(Role.STACK_OUTPUT.value, Role.STACK_OUTPUT, None, d, d, "model.norm", "model.norm")
    yield from (Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN, Role.POOLED_LAST))
    yield Site(Role.POOLED_LABELS.value, Role.POOLED_LABELS, None, d, sizes.vocab_size, reads="lm_head")
