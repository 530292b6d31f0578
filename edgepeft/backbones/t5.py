"""T5 (Raffel et al., 2020, arXiv:1910.10683): shapes and sites, enough to count what a method trains.

Two stacks of pre-LN layers without biases; norms have a weight alone.  Sites are in self-attention and
the feed-forward, as in the Compacter paper; of cross-attention the keys and values have one, which (IA)^3 scales.

Letters: d hidden, i all heads together, f intermediate, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from edgepeft.backbones.base import NO_HEAD, Architecture, Role, Site, Table
from edgepeft.backbones.config import MOST_LAYERS, checked
from edgepeft.errors import UsageError

__all__ = ["FAMILY", "T5"]

_LINEAR = ("q", "k", "v")
_ENCODER = {"SelfAttention": "layer.0", "DenseReluDense": "layer.1"}
_DECODER = {"SelfAttention": "layer.0", "EncDecAttention": "layer.1", "DenseReluDense": "layer.2"}


@dataclass(frozen=True)
class _Sizes:
    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int
    num_decoder_layers: int
    relative_attention_num_buckets: int
    layer_norm_epsilon: float
    feed_forward_proj: str
    n_positions: int
    pad_token_id: int

    @property
    def inner(self) -> int:
        """Width of queries, keys and values."""
        return self.num_heads * self.d_kv

    @property
    def up(self) -> tuple[str, ...]:
        """The feed-forward's first linear layers; a gate is a second one."""
        return ("wi_0", "wi_1") if self.feed_forward_proj.startswith("gated-") else ("wi",)

    @property
    def stacks(self) -> tuple[tuple[str, int, dict[str, str]], ...]:
        """(module path, layers, sub-layer -> its path in a layer)."""
        return ("encoder", self.num_layers, _ENCODER), ("decoder", self.num_decoder_layers, _DECODER)


# What transformers takes where a config is silent; sizes have no default here.
_DEFAULTS = {
    "relative_attention_num_buckets": 32,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "n_positions": 512,
    "pad_token_id": 0,
}


class T5(Table):
    """T5 and its kin of the same ``model_type`` (T5 1.1, Flan-T5)."""

    name: ClassVar[str] = "t5"
    model_types: ClassVar[tuple[str, ...]] = ("t5",)

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config; of the output layer nothing, where it is the embeddings.

        Raises:
            UsageError: a key is missing or of the wrong kind.
        """
        sizes = _sizes(config)
        linear = dict(_linear_layers(sizes))
        norms = tuple(_norms(sizes))
        tensors: dict[str, tuple[int, ...]] = {"shared.weight": (sizes.vocab_size, sizes.d_model)}
        tensors |= {f"{module}.weight": shape for module, shape in linear.items()}
        tensors |= {f"{norm}.weight": (sizes.d_model,) for norm in norms}
        for stack, _, parts in sizes.stacks:
            name = f"{stack}.block.0.{parts['SelfAttention']}.SelfAttention.relative_attention_bias.weight"
            tensors[name] = (sizes.relative_attention_num_buckets, sizes.num_heads)
        if not config.get("tie_word_embeddings", True):
            tensors["lm_head.weight"] = (sizes.vocab_size, sizes.d_model)
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            hidden_size=sizes.d_model,
            n_layers=sizes.num_layers + sizes.num_decoder_layers,
            n_heads=sizes.num_heads,
            intermediate_size=sizes.d_ff,
            vocab_size=sizes.vocab_size,
            max_length=sizes.n_positions,
            pad_token_id=sizes.pad_token_id,
            layer_norm_eps=sizes.layer_norm_epsilon,
            activation=sizes.feed_forward_proj,
            sites=tuple(_sites(sizes)),
            tensors=tensors,
            pooler={},
            norms=norms,
            inputs=("input_ids", "attention_mask"),
            head=NO_HEAD,
            absent_biases=_absent_biases(sizes, linear, norms),
        )


FAMILY = T5()


def _sizes(config: Mapping[str, Any]) -> _Sizes:
    silent = {**_DEFAULTS, "num_decoder_layers": config.get("num_layers")}
    values = {}
    for name, kind in _Sizes.__annotations__.items():
        value = config.get(name)
        values[name] = checked(name, silent.get(name) if value is None else value, kind)
    sizes = _Sizes(**values)
    if max(sizes.num_layers, sizes.num_decoder_layers) > MOST_LAYERS:
        raise UsageError(f"the config asks for more layers than the {MOST_LAYERS} that are counted.")
    return sizes


def _layers(sizes: _Sizes) -> Iterator[tuple[str, dict[str, str]]]:
    """(module path of a layer, its sub-layers), of both stacks."""
    for stack, count, parts in sizes.stacks:
        for i in range(count):
            yield f"{stack}.block.{i}", parts


def _linear_layers(sizes: _Sizes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Module path and weight [out, in]."""
    d, inner, f = sizes.d_model, sizes.inner, sizes.d_ff
    for layer, parts in _layers(sizes):
        for part, place in parts.items():
            module = f"{layer}.{place}.{part}"
            if part == "DenseReluDense":
                yield from ((f"{module}.{up}", (f, d)) for up in sizes.up)
                yield f"{module}.wo", (d, f)
            else:
                yield from ((f"{module}.{name}", (inner, d)) for name in _LINEAR)
                yield f"{module}.o", (d, inner)


def _norms(sizes: _Sizes) -> Iterator[str]:
    """One before each sub-layer, and one after each stack."""
    for layer, parts in _layers(sizes):
        yield from (f"{layer}.{place}.layer_norm" for place in parts.values())
    yield from (f"{stack}.final_layer_norm" for stack, _, _ in sizes.stacks)


def _absent_biases(
    sizes: _Sizes, linear: Mapping[str, tuple[int, int]], norms: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Those that the Compacter paper adds for BitFit: none on the stacks' final norms, one on the output layer."""
    widths = {module: out for module, (out, _) in linear.items()}
    widths |= {norm: sizes.d_model for norm in norms if not norm.endswith("final_layer_norm")}
    return {f"{module}.bias": (width,) for module, width in {**widths, "lm_head": sizes.vocab_size}.items()}


def _sites(sizes: _Sizes) -> Iterator[Site]:
    d, inner, f = sizes.d_model, sizes.inner, sizes.d_ff
    widths = {
        Role.QUERY: (d, inner),
        Role.KEY: (d, inner),
        Role.VALUE: (d, inner),
        Role.ATTENTION_OUTPUT: (inner, d),
        Role.FFN_UP: (d, f),
        Role.FFN_ACTIVATION: (f, f),
        Role.FFN_OUTPUT: (f, d),
        Role.LAYER_OUTPUT: (d, d),
    }
    if len(sizes.up) > 1:
        del widths[Role.FFN_UP]  # a gate beside it: there are two
    cross = {Role.CROSS_KEY: (d, inner), Role.CROSS_VALUE: (d, inner)}
    yield Site("word_embeddings", Role.WORD_EMBEDDINGS, None, d, d)
    for stack, count, parts in sizes.stacks:
        roles = widths | (cross if "EncDecAttention" in parts else {})
        for i in range(count):
            yield from (Site(f"{stack}.layer.{i}.{role}", role, i, *width) for role, width in roles.items())
