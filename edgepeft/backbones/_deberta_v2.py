"""DeBERTa's shapes: BERT's with other names and a table of distances, and what of its config is not supported.

Letters: d hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgepeft.backbones._bert import Sizes, modules_of, sizes_of, tensors_of
from edgepeft.backbones._layouts import ModelLayout
from edgepeft.backbones.base import Distances
from edgepeft.backbones.config import checked
from edgepeft.common.errors import UsageError

__all__ = ["LAYOUT", "NORM", "TABLE", "norms_of", "shapes_of", "sizes_and_distances"]

TABLE, NORM = "encoder.rel_embeddings.weight", "encoder.LayerNorm"
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
    "position_biased_input": (False, True),
    "share_att_key": (True, False),
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
    if buckets == -1:
        return Distances(furthest, furthest, by_powers=False)
    buckets = checked("position_buckets", buckets, "int")
    if buckets % 2 or not 4 <= buckets < 2 * (furthest - 1):
        raise UsageError(
            f"the config's position_buckets is {buckets}; supported: even numbers from 4 on, less than "
            f"{2 * (furthest - 1)}, for distances up to max_relative_positions {furthest}."
        )
    return Distances(buckets, furthest, by_powers=True)


def shapes_of(sizes: Sizes, distances: Distances) -> dict[str, tuple[int, ...]]:
    """Every tensor's."""
    d = sizes.hidden_size
    of_distances = {TABLE: (2 * distances.span, d), f"{NORM}.weight": (d,), f"{NORM}.bias": (d,)}
    return tensors_of(LAYOUT, sizes) | of_distances


def norms_of(sizes: Sizes) -> tuple[str, ...]:
    return (NORM, *(module for module, shape in modules_of(LAYOUT, sizes) if len(shape) == 1))
