"""DeBERTa, versions 2 and 3 (He et al., 2021, arXiv:2006.03654 and 2111.09543): BERT's layers without positions.

How far tokens stand from each other enters attention instead: see ``positions.py``.

Letters: B batch, S padded length, T real tokens, R rows of distances, d hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from edgepeft.backbones._layouts import ModelLayout
from edgepeft.backbones.base import Architecture, Distances, Role, Site
from edgepeft.backbones.config import checked
from edgepeft.backbones.encoder import Encoder, EncoderBuilder
from edgepeft.backbones.positions import LONGER, Disentangled
from edgepeft.common.errors import UsageError

_ON_DISTANCES_TOO = (Role.QUERY, Role.KEY)
_TABLE, _NORM = "encoder.rel_embeddings.weight", "encoder.LayerNorm"
_OF_DISTANCES = ("attention.self.pos_query_proj", "attention.self.pos_key_proj")  # where these are not shared
_LAYOUTS = {
    "deberta-v2": ModelLayout(
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
}
# What published models of versions 2 and 3 have: key -> (that value, what transformers takes where nothing is said).
_PUBLISHED: Mapping[str, tuple[Any, Any]] = {
    "relative_attention": (True, False),
    "norm_rel_ebd": ("layer_norm", "none"),
    "pos_att_type": (["c2p", "p2c"], None),
    "type_vocab_size": (0, 0),
    "conv_kernel_size": (0, 0),  # v2-xlarge's convolution beside the first layer is the exception
}


class _Builder(EncoderBuilder):
    """Every encoder's, with its own attention."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        table = self.emit.norm(_NORM, self.emit.weight(_TABLE), self.arch.layer_norm_eps, "distances")
        assert self.arch.distances
        self.disentangled = Disentangled(self.emit, self.packing, table, self.arch.distances, self.arch.hidden_size)

    def _attention(self, i: int, layer: str, name: str, hidden: str) -> str:
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
            for module, kind in zip(_OF_DISTANCES, ("query", "key"), strict=True)
        )
        return apart.attend(query, key, value, (op("Mul", of_query, scale), of_key), name + "context")


class DebertaV2(Encoder):
    """DeBERTa-v2, DeBERTa-v3 and mDeBERTa."""

    name: ClassVar[str] = "deberta-v2"
    model_types: ClassVar[tuple[str, ...]] = tuple(_LAYOUTS)
    layouts: ClassVar[Mapping[str, ModelLayout]] = _LAYOUTS
    builder: ClassVar[type[EncoderBuilder]] = _Builder
    limits: ClassVar[tuple[str, ...]] = (
        "As in published models: content to position and back, a normed table.",
        "The convolution of v2-xlarge is refused (conv_kernel_size).",
        "The methods prefix and mam are refused: attention has a product for each distance, and a prefix has none.",
        "Tasks at queries or keys answer in passes of their own; others share mixed ones.",
    )

    def layout_of(self, config: Mapping[str, Any]) -> ModelLayout:
        """The row of the table, with learnt positions too where the config says so."""
        return replace(super().layout_of(config), positions=config.get("position_biased_input", True))

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """As every encoder's, and what distances need; raises UsageError where the config has what is not supported."""
        for key, (published, silent) in _PUBLISHED.items():
            value = config.get(key, silent)
            if (_parts(value) if key == "pos_att_type" else value) != published:
                raise UsageError(
                    f"the config's {key} is {value!r}; supported: {published!r}, as published DeBERTas have."
                )
        for key in ("position_biased_input", "share_att_key"):
            if not isinstance(config.get(key, False), bool):
                raise UsageError(f"the config's {key} is {config[key]!r}; supported: true and false.")
        found = super().architecture(config)
        d = found.hidden_size
        for key, expected in {"embedding_size": d, "attention_head_size": d // found.n_heads}.items():
            if config.get(key, expected) != expected:
                raise UsageError(
                    f"the config's {key} is {config[key]!r}; supported: {expected}, as its other sizes say."
                )
        distances = _distances(config, found.max_length)
        tensors: dict[str, tuple[int, ...]] = {_TABLE: (2 * distances.span, d)}
        tensors |= {f"{_NORM}.weight": (d,), f"{_NORM}.bias": (d,)}
        for layer in () if distances.shared else map(found.layer_path, range(found.n_layers)):
            for module in _OF_DISTANCES:
                tensors |= {f"{layer}{module}.weight": (d, d), f"{layer}{module}.bias": (d,)}
        return replace(found, tensors={**found.tensors, **tensors}, norms=(_NORM, *found.norms), distances=distances)

    def neighbours(self, architecture: Architecture, site: Site) -> dict[str, str]:
        """What stands beside a site of its layer."""
        if site.role in _ON_DISTANCES_TOO and _shares(architecture):
            return {"input": f"layer.{site.layer}.attention_reads{LONGER}"}
        return super().neighbours(architecture, site)

    def bindings(self, architecture: Architecture) -> dict[str, str]:
        """As every family's; queries and keys with rows of distances behind those of tokens, where they are shared."""
        sites = architecture.sites_of(*_ON_DISTANCES_TOO) if _shares(architecture) else ()
        return super().bindings(architecture) | {site.name: site.name + LONGER for site in sites}


FAMILY = DebertaV2()


def _shares(architecture: Architecture) -> bool:
    return architecture.distances is not None and architecture.distances.shared


def _parts(kinds: Any) -> Any:
    """A config has a list or a text with bars."""
    split = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    listed = isinstance(split, list) and all(isinstance(part, str) for part in split)
    return sorted(part.strip() for part in split) if listed else kinds


def _distances(config: Mapping[str, Any], most: int) -> Distances:
    furthest, buckets = config.get("max_relative_positions", -1), config.get("position_buckets", -1)
    furthest = most if furthest == -1 else checked("max_relative_positions", furthest, "int")
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
