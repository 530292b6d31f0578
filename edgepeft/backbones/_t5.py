"""T5's shapes: sizes, tensors and sites of both stacks, read from a config.

Letters: d hidden, i all heads together, f intermediate, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgepeft.backbones.base import LINEAR_ROLES, OUTPUT_LAYER, Role, Site
from edgepeft.backbones.config import Sizes, read_sizes, require_known
from edgepeft.common.errors import UsageError

_CROSS = (Role.CROSS_QUERY, Role.CROSS_KEY, Role.CROSS_VALUE, Role.CROSS_ATTENTION_OUTPUT)
_ENCODER = {"SelfAttention": "layer.0", "DenseReluDense": "layer.1"}
_DECODER = {"SelfAttention": "layer.0", "EncDecAttention": "layer.1", "DenseReluDense": "layer.2"}
_MAX_BUCKETS, _FURTHEST = 256, 400  # so that a table of distances is a few hundred bytes; all T5 have 32 and 128


KEYS = {
    "hidden_size": "d_model",
    "n_layers": "num_layers",
    "n_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_length": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "activation": "feed_forward_proj",
}


@dataclass(frozen=True, kw_only=True)
class T5Sizes(Sizes):
    """``n_layers`` are the encoder's."""

    max_length: int = 512
    pad_token_id: int = 0
    layer_norm_eps: float = 1e-6
    activation: str = "relu"
    d_kv: int
    num_decoder_layers: int
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    eos_token_id: int = 1
    decoder_start_token_id: int

    @property
    def inner(self) -> int:
        """Width of queries, keys and values."""
        return self.n_heads * self.d_kv

    @property
    def up(self) -> tuple[str, ...]:
        """The feed-forward's first linear layers; a gate is a second one."""
        return ("wi_0", "wi_1") if self.activation.startswith("gated-") else ("wi",)

    @property
    def stacks(self) -> tuple[tuple[str, int, dict[str, str]], ...]:
        """(module path, layers, sub-layer -> its path in a layer)."""
        return ("encoder", self.n_layers, _ENCODER), ("decoder", self.num_decoder_layers, _DECODER)


# What differs where a config is silent.
MODEL_TYPES: dict[str, dict[str, Any]] = {
    "t5": {},  # T5 1.1, Flan-T5 and byT5 too
    "mt5": {"activation": "gated-gelu", "tie_word_embeddings": False},
}


def sizes_of(config: Mapping[str, Any]) -> T5Sizes:
    silent = {**MODEL_TYPES[config["model_type"]], "num_decoder_layers": config.get("num_layers")}
    silent["decoder_start_token_id"] = config.get("pad_token_id", T5Sizes.pad_token_id)
    sizes = read_sizes(T5Sizes, config, silent, KEYS)
    require_known("feed_forward_proj", sizes.activation, ("relu", "gelu", "gated-gelu", "gated-relu"))
    n_buckets, furthest = sizes.relative_attention_num_buckets, sizes.relative_attention_max_distance
    if not n_buckets // 2 < furthest <= _FURTHEST:
        raise UsageError(
            f"the config's relative_attention_max_distance is {furthest}; supported with its {n_buckets} "
            f"relative_attention_num_buckets: more than {n_buckets // 2}, which fill these, and at most {_FURTHEST}."
        )
    if n_buckets > _MAX_BUCKETS:
        raise UsageError(f"the config's relative_attention_num_buckets is {n_buckets}; at most {_MAX_BUCKETS}.")
    return sizes


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether logits are products with the embeddings; transformers 5 writes other models' as tied, but not scaled."""
    tied = config.get("tie_word_embeddings", MODEL_TYPES[config["model_type"]].get("tie_word_embeddings", True))
    return bool(tied and config.get("scale_decoder_outputs") is not False)


def linear_layers(sites: Iterable[Site]) -> dict[str, tuple[int, int]]:
    """Module path -> weight [out, in]."""
    return {
        site.reads: (site.out_features, site.in_features) for site in sites if site.role in (*LINEAR_ROLES, *_CROSS)
    }


def norms_of(sites: Iterable[Site]) -> tuple[str, ...]:
    """One before each sub-layer, and behind these one after each stack."""
    norms = (site.module for site in sites if site.role.endswith("_norm") or site.role is Role.STACK_OUTPUT)
    return tuple(sorted(norms, key=lambda norm: norm.endswith("final_layer_norm")))


def absent_biases(
    sizes: T5Sizes, linear: Mapping[str, tuple[int, int]], norms: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Biases that the Compacter paper adds for BitFit: none on the stacks' final norms, one on the output layer."""
    widths = {module: out for module, (out, _) in linear.items()}
    widths |= {norm: sizes.hidden_size for norm in norms if not norm.endswith("final_layer_norm")}
    return {f"{module}.bias": (width,) for module, width in {**widths, "lm_head": sizes.vocab_size}.items()}


def tensors_of(
    sizes: T5Sizes, linear: Mapping[str, tuple[int, int]], norms: tuple[str, ...], *, tied: bool
) -> dict[str, tuple[int, ...]]:
    table: tuple[int, ...] = (sizes.vocab_size, sizes.hidden_size)
    tensors = {"shared.weight": table} | ({} if tied else {OUTPUT_LAYER: table})
    tensors |= {f"{module}.weight": shape for module, shape in linear.items()}
    tensors |= {f"{norm}.weight": (sizes.hidden_size,) for norm in norms}
    for stack, _, parts in sizes.stacks:
        name = f"{stack}.block.0.{parts['SelfAttention']}.SelfAttention.relative_attention_bias.weight"
        tensors[name] = (sizes.relative_attention_num_buckets, sizes.n_heads)
    return tensors


def sites_of(sizes: T5Sizes) -> Iterator[Site]:
    d = sizes.hidden_size
    yield Site("word_embeddings", Role.WORD_EMBEDDINGS, None, d, d, "encoder.block.0", is_input=True)
    yield Site("decoder.embeddings", Role.EMBEDDINGS, None, d, d, "decoder.block.0", is_input=True)
    for stack, count, parts in sizes.stacks:
        yield from (site for i in range(count) for site in _layer_sites(sizes, stack, i, parts))
        norm = f"{stack}.final_layer_norm"
        yield Site(f"{stack}.{Role.STACK_OUTPUT}", Role.STACK_OUTPUT, None, d, d, norm, norm)
    yield from (Site(role.value, role, None, d, d) for role in (Role.POOLED_FIRST, Role.POOLED_MEAN))
    yield Site(Role.POOLED_LABELS.value, Role.POOLED_LABELS, None, d, sizes.vocab_size, reads="lm_head")


def _layer_sites(sizes: T5Sizes, stack: str, i: int, parts: Mapping[str, str]) -> Iterator[Site]:
    d, inner, f = sizes.hidden_size, sizes.inner, sizes.intermediate_size

    def at(role: Role, module: str, widths: tuple[int, int], residual: str = "", reads: str = "") -> Site:
        added = (residual, 0) if residual else None
        return Site(f"{stack}.layer.{i}.{role}", role, i, *widths, module, reads or module, added)

    for part, place in parts.items():
        around = f"{stack}.block.{i}.{place}"
        within = f"{around}.{part}."
        if part == "DenseReluDense":
            yield at(Role.FFN_NORM, f"{around}.layer_norm", (d, d))
            first = (Role.FFN_UP,) if len(sizes.up) == 1 else (Role.FFN_GATE, Role.FFN_GATED)
            yield from (at(role, within + up, (d, f)) for role, up in zip(first, sizes.up, strict=True))
            yield at(Role.FFN_ACTIVATION, within + "dropout", (f, f), reads=within + "act")
            yield at(Role.FFN_OUTPUT, within + "wo", (f, d), around)
            yield at(Role.LAYER_OUTPUT, around, (d, d))
        else:
            cross = "cross_" if part == "EncDecAttention" else ""
            yield at(Role(cross + Role.ATTENTION_NORM), f"{around}.layer_norm", (d, d))
            for role, linear in ((Role.QUERY, "q"), (Role.KEY, "k"), (Role.VALUE, "v")):
                yield at(Role(cross + role), within + linear, (d, inner))
            yield at(Role(cross + Role.ATTENTION_OUTPUT), within + "o", (inner, d), around)
