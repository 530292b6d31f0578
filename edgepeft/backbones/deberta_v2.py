"""DeBERTa, versions 2 and 3 (He et al., 2021, arXiv:2006.03654 and 2111.09543): BERT's layers without positions.

How far tokens stand from each other enters attention instead: see ``positions.py``.

Letters: B batch, S padded length, T real tokens, R rows of distances, d hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import onnx

from edgepeft.backbones._bert import Sizes, layer_paths, modules_of, neighbours, sites_of, sizes_of, tensors_of
from edgepeft.backbones._layouts import ModelLayout
from edgepeft.backbones.base import Architecture, Distances, Family, Role, Site
from edgepeft.backbones.bert import BertBuilder
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import checked
from edgepeft.backbones.positions import LONGER, Disentangled
from edgepeft.common.errors import UsageError

__all__ = ["FAMILY", "DebertaV2", "norms_of", "shapes_of", "sizes_and_distances"]

_ON_DISTANCES_TOO = (Role.QUERY, Role.KEY)


class DebertaV2(Family):
    """DeBERTa-v2, DeBERTa-v3 and mDeBERTa."""

    name: ClassVar[str] = "deberta-v2"
    model_types: ClassVar[tuple[str, ...]] = ("deberta-v2",)
    limits: ClassVar[tuple[str, ...]] = (
        "As in published models: content to position and back, a normed table.",
        "The convolution of v2-xlarge is refused (conv_kernel_size).",
        "The methods prefix and mam are refused: attention has a product for each distance, and a prefix has none.",
        "Tasks at queries or keys answer in passes of their own; others share mixed ones.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config."""
        sizes, distances = sizes_and_distances(config)
        layout = replace(LAYOUT, positions=config.get("position_biased_input", True))
        return Architecture(
            family=self.name,
            model_type=config["model_type"],
            hidden_size=sizes.hidden_size,
            n_layers=sizes.num_hidden_layers,
            n_heads=sizes.num_attention_heads,
            intermediate_size=sizes.intermediate_size,
            vocab_size=sizes.vocab_size,
            max_length=sizes.max_position_embeddings,
            pad_token_id=sizes.pad_token_id,
            layer_norm_eps=sizes.layer_norm_eps,
            activation=sizes.hidden_act,
            sites=sites_of(layout, sizes),
            tensors=shapes_of(sizes, distances, layout),
            pooler={},
            norms=norms_of(sizes),
            inputs=("input_ids", "attention_mask"),
            head=LAYOUT.head,
            distances=distances,
        )

    def neighbours(self, site: Site) -> dict[str, str]:
        """What stands beside a site of its layer."""
        found = neighbours(site)
        return {"input": f"layer.{site.layer}.attention_reads{LONGER}"} if site.role in _ON_DISTANCES_TOO else found

    def bindings(self, architecture: Architecture) -> dict[str, str]:
        """As every family's; queries and keys with rows of distances behind those of tokens, where they are shared."""
        sites = architecture.sites_of(*_ON_DISTANCES_TOO)
        if architecture.distances is None or architecture.distances.shared:
            return super().bindings(architecture) | {site.name: site.name + LONGER for site in sites}
        own = {f"{site.name}.{suffix}": value for site in sites for suffix, value in neighbours(site).items()}
        return super().bindings(architecture) | own

    def checkpoint_prefix(self, architecture: Architecture) -> str:
        """What whole models put before the encoder."""
        return LAYOUT.prefix

    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph; its outputs are last_hidden_state [B, S, d] and the pooled values [B, d]."""
        layout = replace(LAYOUT, positions=POSITIONS in architecture.tensors)
        return _Builder(architecture, layout, checkpoint).model()


FAMILY = DebertaV2()


class _Builder(BertBuilder):
    """BERT's, with its own attention."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        table = self.emit.norm(NORM, self.emit.weight(TABLE), self.arch.layer_norm_eps, "distances")
        assert self.arch.distances
        self.disentangled = Disentangled(self.emit, self.packing, table, self.arch.distances, self.arch.hidden_size)

    def _attention(self, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        layout, op, linear, apart = self.layout, self.emit.op, self.emit.linear, self.disentangled
        scale = self.emit.constant("query_scale", (3 * self.arch.hidden_size // self.arch.n_heads) ** -0.5, np.float32)
        assert self.arch.distances
        shared, end = (True, LONGER) if self.arch.distances.shared else (False, "")
        reads = apart.reads(hidden, f"{name}attention_reads{LONGER}") if shared else hidden
        query = linear(layer + layout.query, reads, f"{name}query{end}")
        key = linear(layer + layout.key, reads, f"{name}key{end}")
        value = linear(layer + layout.value, hidden, name + "value")
        query = op("Mul", query, scale)
        if shared:
            (query, of_query), (key, of_key) = map(apart.parts, (query, key))
            return apart.attend(query, key, value, (of_query, of_key), name + "context")
        of_query, of_key = (  # not of tokens, as what ends so has more rows than these: no state that tuning keeps
            linear(layer + module, apart.needed, f"{name}{kind}_of_distances{LONGER}")
            for module, kind in zip(OF_DISTANCES, ("query", "key"), strict=True)
        )
        return apart.attend(query, key, value, (op("Mul", of_query, scale), of_key), name + "context")


TABLE, NORM = "encoder.rel_embeddings.weight", "encoder.LayerNorm"
POSITIONS = "embeddings.position_embeddings.weight"
OF_DISTANCES = ("attention.self.pos_query_proj", "attention.self.pos_key_proj")  # where these are not shared
LAYOUT = ModelLayout(
    prefix="deberta.",
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    positions=False,
    token_types=False,
    masked="",  # attention has a product for each distance
    head="deberta",
    defaults={"layer_norm_eps": 1e-7},
)
# What published models of versions 2 and 3 have: key -> (that value, what transformers takes where nothing is said).
_PUBLISHED: Mapping[str, tuple[Any, Any]] = {
    "relative_attention": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
    "pos_att_type": (["c2p", "p2c"], None),
    "type_vocab_size": (0, 0),
    "conv_kernel_size": (0, 0),  # v2-xlarge's convolution beside the first layer is the exception
}


def sizes_and_distances(config: Mapping[str, Any]) -> tuple[Sizes, Distances]:
    """Raises UsageError where the config has what is not supported."""
    for key, (published, silent) in _PUBLISHED.items():
        found = config.get(key, silent)
        if (_parts(found) if key == "pos_att_type" else found) != published:
            raise UsageError(f"the config's {key} is {found!r}; supported: {published!r}, as published DeBERTas have.")
    for key in ("position_biased_input", "share_att_key"):
        if not isinstance(config.get(key, False), bool):
            raise UsageError(f"the config's {key} is {config[key]!r}; supported: true and false.")
    sizes = sizes_of(config, LAYOUT)
    for key, expected in {
        "embedding_size": sizes.hidden_size,
        "attention_head_size": sizes.hidden_size // sizes.num_attention_heads,
    }.items():
        if config.get(key, expected) != expected:
            raise UsageError(f"the config's {key} is {config[key]!r}; supported: {expected}, as its other sizes say.")
    return sizes, _distances(config, sizes)


def _parts(kinds: Any) -> Any:
    """A config has a list or a text with bars."""
    split = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    return sorted(part.strip() for part in split) if isinstance(split, list) and all(map(_is_text, split)) else kinds


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _distances(config: Mapping[str, Any], sizes: Sizes) -> Distances:
    furthest, buckets = config.get("max_relative_positions", -1), config.get("position_buckets", -1)
    furthest = sizes.max_position_embeddings if furthest == -1 else checked("max_relative_positions", furthest, "int")
    shared = config.get("share_att_key", False)
    if buckets == -1:
        return Distances(furthest, furthest, by_powers=False, shared=shared)
    buckets = checked("position_buckets", buckets, "int")
    if buckets % 2 or not 4 <= buckets < 2 * (furthest - 1):
        raise UsageError(
            f"the config's position_buckets is {buckets}; supported: even numbers from 4 on, less than "
            f"{2 * (furthest - 1)}, for distances up to max_relative_positions {furthest}."
        )
    return Distances(buckets, furthest, by_powers=True, shared=shared)


def shapes_of(sizes: Sizes, distances: Distances, layout: ModelLayout) -> dict[str, tuple[int, ...]]:
    """Every tensor's."""
    d = sizes.hidden_size
    of_distances: dict[str, tuple[int, ...]] = {
        TABLE: (2 * distances.span, d),
        f"{NORM}.weight": (d,),
        f"{NORM}.bias": (d,),
    }
    for layer in () if distances.shared else layer_paths(layout, sizes):
        for module in OF_DISTANCES:
            of_distances |= {f"{layer}{module}.weight": (d, d), f"{layer}{module}.bias": (d,)}
    return tensors_of(layout, sizes) | of_distances


def norms_of(sizes: Sizes) -> tuple[str, ...]:
    """Every LayerNorm's module, the table's first."""
    return (NORM, *(module for module, shape in modules_of(LAYOUT, sizes) if len(shape) == 1))
