"""DeBERTa, versions 2 and 3 (He et al., 2021, arXiv:2006.03654 and 2111.09543): BERT's layers without positions.

Attention has relative positions instead (equation 4, with the buckets of version 2):

    A_ij = (Q_i K_j + Q_i Kr_b(i - j) + K_j Qr_b(i - j)) / sqrt(3 e)

Kr and Qr are a table's rows through the layer's own projections, in one product with the tokens, behind them: a delta
at a query or key changes them too.  Only the rows that a batch needs take part.  Shifting row i by i places turns a
query's products with distances into products with keys.

Letters: B batch, S padded length, T real tokens, R rows of the table that a batch needs, d hidden, h heads, e = d / h,
D = 2 S distances.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgepeft.backbones.base import Architecture, Distances, Role
from edgepeft.backbones.config import checked, require_switches
from edgepeft.backbones.encoder import Encoder, EncoderBuilder, ModelLayout
from edgepeft.backbones.packing import LONGER
from edgepeft.common.errors import UsageError

_TABLE, _NORM = "encoder.rel_embeddings.weight", "encoder.LayerNorm"
_OF_DISTANCES = ("attention.self.pos_query_proj", "attention.self.pos_key_proj")  # where these are not shared
_LAYOUT = ModelLayout(
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


def rows_of_distances(span: int, furthest: int) -> NDArray[np.int64]:
    """How many rows of the table the distances 1 to ``furthest`` are from that of 0; half of ``span`` has each its own.

    Float32, as in the code that the weights were learnt with.
    """
    distances, middle = np.arange(1, furthest + 1), span // 2
    grown = np.log(np.maximum(distances, middle).astype(np.float32) / np.float32(middle))
    grown = np.ceil(grown / np.float32(math.log((furthest - 1) / middle)) * np.float32(middle - 1))
    return np.where(distances <= middle, distances, grown.astype(np.int64) + middle)


class _Builder(EncoderBuilder):
    """Every encoder's, with disentangled attention."""

    def __init__(self, *given: Any, **layout: Any) -> None:
        super().__init__(*given, **layout)
        assert self.arch.distances
        self.known = self.arch.distances
        op, ints, packing = self.emit.op, self.emit.ints, self.packing
        table = self.emit.norm(_NORM, self.emit.weight(_TABLE), "distances")  # (2 span, d)
        columns = op("Range", packing.zero, op("Add", packing.length, packing.length), packing.one)  # (D)
        ahead = op("Sub", columns, op("Sub", packing.length, packing.one))  # from 1 - S to S
        of_keys, of_queries = self._rows(ahead), self._rows(op("Neg", ahead))
        last, self.end = ints(-1), ints(np.iinfo(np.int64).max)
        first = op("Slice", of_queries, last, self.end, ints(0))  # the row of -S; that of S is the last needed
        beyond = op("Add", op("Slice", of_keys, last, self.end, ints(0)), packing.one)
        self.needed = op("Slice", table, first, beyond, ints(0))  # (R, d)
        self.of_keys, self.of_queries = (op("Sub", rows, first) for rows in (of_keys, of_queries))
        self.tokens = op("Shape", packing.index)
        length = op("Unsqueeze", packing.length, ints(0))
        wide = op("Sub", op("Add", length, length), ints(1))  # D - 1
        before = op("Sub", length, ints(1))
        self.shift = (before, op("Add", before, op("Mul", length, wide)))
        self.rows_of_shift, self.length = op("Concat", ints(0, 0), length, wide, axis=0), length

    def _rows(self, distances: str) -> str:
        """int64 (D): the table's row of each distance."""
        op, constant, known = self.emit.op, self.emit.constant, self.known
        far = op("Max", distances, op("Neg", distances))
        if known.by_powers:
            rows = rows_of_distances(known.span, known.furthest)
            rows = np.pad(rows - 1, (0, -len(rows) % 64), mode="edge")  # a constant must not move weights from 64 bytes
            half = constant("distances.rows", rows, np.uint8 if rows.max() < 256 else np.uint16)
            one, furthest = self.packing.one, constant("furthest", known.furthest, np.int64)
            place = op("Sub", op("Clip", far, one, furthest), one)
            far = op("Add", op("Cast", op("Gather", half, place), to=TensorProto.INT64), one)
        side = op("Clip", distances, constant("minus_one", -1, np.int64), self.packing.one)
        row = op("Add", op("Mul", side, far), constant("span", known.span, np.int64))
        return op("Clip", row, self.packing.zero, constant("last_row", 2 * known.span - 1, np.int64))

    def _attention(self, i: int, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        layout, op, linear = self.layout, self.emit.op, self.emit.linear
        packing, width = self.packing, self.arch.hidden_size
        scale = self.emit.constant("query_scale", (3 * width // self.arch.n_heads) ** -0.5, np.float32)
        shared, end, reads = self.known.shared, LONGER if self.known.shared else "", hidden
        if shared:  # (T + R, d)
            reads = op("Concat", hidden, self.needed, axis=0, output=f"{name}attention_reads{LONGER}")
        query = linear(layer + layout.query, reads, f"{name}query{end}")
        key = linear(layer + layout.key, reads, f"{name}key{end}")
        value = linear(layer + layout.value, hidden, name + "value")
        query = op("Mul", query, scale)
        if shared:
            (query, of_query), (key, of_key) = map(self._parts, (query, key))
        else:
            of_query, of_key = (  # not of tokens, as what ends so has more rows than these: no state that tuning keeps
                linear(layer + module, self.needed, f"{name}{kind}_of_distances{LONGER}")
                for module, kind in zip(_OF_DISTANCES, ("query", "key"), strict=True)
            )
            of_query = op("Mul", of_query, scale)
        heads = (packing.split_heads(each, width) for each in (query, key))  # (B, h, S, e)
        distances = (self._by_distance(of_key, self.of_queries), self._by_distance(of_query, self.of_keys))
        to_keys, to_queries = (self._shifted(op("MatMul", *pair)) for pair in zip(heads, distances, strict=True))
        both = op("Add", to_keys, op("Transpose", to_queries, perm=[0, 1, 3, 2]))
        return packing.attend(query, key, value, width, name + "context", bias=op("Add", both, packing.mask_bias))

    def _parts(self, whole: str) -> tuple[str, str]:
        """(T + R, d) -> (T, d), (R, d)."""
        op, ints = self.emit.op, self.emit.ints
        return op("Slice", whole, ints(0), self.tokens, ints(0)), op("Slice", whole, self.tokens, self.end, ints(0))

    def _by_distance(self, rows: str, places: str) -> str:
        """(R, d) -> (h, e, D)."""
        op, h = self.emit.op, self.arch.n_heads
        heads = op("Reshape", op("Gather", rows, places), self.emit.ints(-1, h, self.arch.hidden_size // h))
        return op("Transpose", heads, perm=[1, 2, 0])

    def _shifted(self, products: str) -> str:
        """(B, h, S, D) -> (B, h, S, S): row i from its column S - 1 - i on."""
        op, ints = self.emit.op, self.emit.ints
        flat = op("Slice", op("Reshape", products, ints(0, 0, -1)), *self.shift, ints(2))
        return op("Slice", op("Reshape", flat, self.rows_of_shift), ints(0), self.length, ints(3))


class DebertaV2(Encoder):
    """DeBERTa-v2, DeBERTa-v3 and mDeBERTa."""

    builder: ClassVar[type[EncoderBuilder]] = _Builder

    def layout_of(self, config: Mapping[str, Any]) -> ModelLayout:
        """The row of the table, with learnt positions too where the config says so."""
        activation = config.get("pooler_hidden_act", "gelu")  # of the head ``deberta``; no task here reads the key
        odd = "" if activation == "gelu" else f"a pooler with the pooler_hidden_act {activation!r}"
        positions = config.get("position_biased_input", True)
        return replace(super().layout_of(config), positions=positions, foreign_head=odd)

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """As every encoder's, and what distances need; raises UsageError where the config has what is not supported."""
        for key, (published, silent) in _PUBLISHED.items():
            value = config.get(key, silent)
            if (_parts(value) if key == "pos_att_type" else value) != published:
                raise UsageError(
                    f"the config's {key} is {value!r}; supported: {published!r}, as published DeBERTas have."
                )
        require_switches(config, "position_biased_input", "share_att_key")
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
        sites = list(found.sites)
        for i, site in enumerate(sites if distances.shared else ()):
            if site.role in (Role.QUERY, Role.KEY):  # which has rows of distances behind those of tokens
                read = f"layer.{site.layer}.attention_reads{LONGER}"
                sites[i] = replace(site, value=site.name + LONGER, input=read)
        norms, tensors = (_NORM, *found.norms), {**found.tensors, **tensors}
        return replace(found, sites=tuple(sites), tensors=tensors, norms=norms, distances=distances)


FAMILY = DebertaV2(
    "deberta-v2",
    {"deberta-v2": _LAYOUT},
    limits=(
        "As in published models: content to position and back, a normed table.",
        "The convolution of v2-xlarge is refused (conv_kernel_size).",
        "The methods prefix and mam are refused: attention has a product for each distance, and a prefix has none.",
        "Tasks at queries or keys answer in passes of their own; others share mixed ones.",
    ),
)


def _parts(kinds: Any) -> Any:
    """A config has a list or a text with bars."""
    split = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    listed = isinstance(split, list) and all(isinstance(part, str) for part in split)
    return sorted(part.strip() for part in split) if listed else kinds


def _distances(config: Mapping[str, Any], most: int) -> Distances:
    furthest, buckets = config.get("max_relative_positions", -1), config.get("position_buckets", -1)
    furthest = most if furthest == -1 else checked("max_relative_positions", furthest)
    shared = config.get("share_att_key", False)
    if buckets == -1:
        return Distances(furthest, furthest, by_powers=False, shared=shared)
    buckets = checked("position_buckets", buckets)
    if buckets % 2 or not 4 <= buckets < 2 * (furthest - 1):
        raise UsageError(
            f"the config's position_buckets is {buckets}; supported: even numbers from 4 on, less than "
            f"{2 * (furthest - 1)}, for distances up to max_relative_positions {furthest}."
        )
    return Distances(buckets, furthest, by_powers=True, shared=shared)
