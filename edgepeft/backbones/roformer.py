"""RoFormer (Su et al., 2021, arXiv:2104.09864): BERT with rotary positions in the place of learnt ones.

Letters: T real tokens, d hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from edgepeft.backbones._layouts import ModelLayout
from edgepeft.backbones.base import Architecture
from edgepeft.backbones.bert import Bert, BertBuilder
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.positions import Rotary
from edgepeft.common.errors import BundleError, UsageError

__all__ = ["FAMILY", "RoFormer", "RotaryBuilder"]

_THETA = 10_000.0
_LEARNT = "embeddings.position_embeddings.weight"
_LAYOUTS = {
    "roformer": ModelLayout(
        prefix="roformer.",
        positions=False,
        projection="embeddings_project",
        masked="",  # each key is turned by its place
        head="electra",  # with GELU in both
        fixed={"rotary_value": False, "hidden_act": "gelu"},
    )
}


class RoFormer(Bert):
    """RoFormer."""

    name: ClassVar[str] = "roformer"
    layouts: ClassVar[Mapping[str, ModelLayout]] = _LAYOUTS
    model_types: ClassVar[tuple[str, ...]] = tuple(_LAYOUTS)
    limits: ClassVar[tuple[str, ...]] = (
        "Queries and keys are turned, values not: rotary_value is refused.",
        "Sines are computed: a checkpoint's table of them (encoder.embed_positions) is not read; nothing trains it.",
        "The methods prefix and mam are refused: each key is turned by its place, and a prefix has none.",
        "Encoders alone: is_decoder and add_cross_attention are refused.",
    )

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """As BERT's."""
        found = super().architecture(config)
        if found.hidden_size % (2 * found.n_heads):
            raise UsageError(
                f"the config's num_attention_heads is {found.n_heads}, which does not divide its hidden_size "
                f"{found.hidden_size} into heads of even width."
            )
        return found

    def open_checkpoint(self, architecture: Architecture, weights: Path) -> Checkpoint:
        """As BERT's, which has all the tensors that are asked for here."""
        checkpoint = super().open_checkpoint(architecture, weights)
        if checkpoint.has(_LEARNT):
            raise BundleError(
                f"{weights} has {_LEARNT}, positions that were learnt, and the config's model_type is "
                f"{architecture.model_type!r}, which has none; weights and config do not belong together."
            )
        return checkpoint

    @property
    def builder(self) -> type[BertBuilder]:
        """What emits its models."""
        return RotaryBuilder


FAMILY = RoFormer()


class RotaryBuilder(BertBuilder):
    """BERT's, with its queries and keys turned."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rotary = self._rotary()

    def _rotary(self) -> Rotary:
        return Rotary(self.emit, self.packing, _THETA, self.arch.hidden_size, neighbours=True)

    def _attention(self, layer: str, name: str, hidden: str) -> str:
        """(T, d) -> (T, d)."""
        layout, linear, d = self.layout, self.emit.linear, self.arch.hidden_size
        query = linear(layer + layout.query, hidden, name + "query")
        key = linear(layer + layout.key, hidden, name + "key")
        value = linear(layer + layout.value, hidden, name + "value")
        return self.packing.attend(self.rotary.query(query), self.rotary.key(key), value, d, name + "context")
