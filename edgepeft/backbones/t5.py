"""T5 (Raffel et al., 2020, arXiv:1910.10683): an encoder and a decoder of pre-LN layers, without biases.

Labels that are known are scored, not generated: the graph is the encoder on packed tokens, and one pass of the decoder
over the trie of the labels' tokens (``trie.py``), which the task puts in.  Where nothing reads the decoder it is left
out.  Text takes two graphs more (``text.py``): the encoder with the keys and values that the decoder's layers attend
to, and one step of the decoder, which keeps its own.
Distances are seen in buckets, the same in all layers of a stack; norms divide by the root of the mean square.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import onnx

from edgepeft.backbones._t5 import (
    MODEL_TYPES,
    absent_biases,
    aliases_of,
    decoder_of,
    is_tied,
    linear_layers,
    neighbours,
    norms_of,
    sites_of,
    sizes_of,
    tensors_of,
)
from edgepeft.backbones._t5_graph import Builder
from edgepeft.backbones.base import Architecture, Family, Site
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.text import TextGraphs
from edgepeft.backbones.trie import LABEL_VALUES

__all__ = ["FAMILY", "T5"]


class T5(Family):
    """T5, T5 1.1, Flan-T5, byT5 and mT5."""

    name: ClassVar[str] = "t5"
    model_types: ClassVar[tuple[str, ...]] = tuple(MODEL_TYPES)
    limits: ClassVar[tuple[str, ...]] = (
        "Labels are scored, or text is written; kinds of task with a head on the encoder alone are refused.",
        "The methods linear and top-k are refused; prefix and mam too, for attention tells keys apart by distances.",
    )
    own_values: ClassVar[Mapping[str, str]] = {name: name for name in LABEL_VALUES}

    def architecture(self, config: Mapping[str, Any]) -> Architecture:
        """Sizes, tensors and sites from the config; of the output layer nothing, where it is the embeddings.

        Raises:
            UsageError: a key is missing or of the wrong kind, or the model uses what is not supported.
        """
        sizes = sizes_of(config)
        linear = dict(linear_layers(sizes))
        norms = tuple(norms_of(sizes))
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
            sites=tuple(sites_of(sizes)),
            tensors=tensors_of(sizes, linear, norms, tied=is_tied(config)),
            pooler={},
            norms=norms,
            inputs=("input_ids", "attention_mask"),
            head="labels",
            words="shared.weight",
            absent_biases=absent_biases(sizes, linear, norms),
            decoder=decoder_of(config, sizes),
            aliases=aliases_of(config),
        )

    def neighbours(self, site: Site) -> dict[str, str]:
        """What stands beside a site of its layer."""
        return neighbours(site)

    def checkpoint_prefix(self, architecture: Architecture) -> str:
        """Nothing: whole models call their parts as the base model does."""
        return ""

    def build_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The packed-token graph; its outputs are the encoder's last_hidden_state [B, S, d] and pooled values [B, d],
        and what the decoder gives the edges of the labels, pooled.labels [B, n, e].

        Raises:
            BundleError: the checkpoint has a tensor in another shape or dtype.
        """
        return Builder(architecture, checkpoint).model()

    def text_graphs(self, architecture: Architecture, checkpoint: Checkpoint) -> TextGraphs:
        """The encoder, and a step of the decoder.

        Raises:
            BundleError: as ``build_graph``.
        """
        encoder, decoder = (Builder(architecture, checkpoint) for _ in range(2))
        return TextGraphs(encoder.text_encoder(), decoder.text_decoder())

    def teaching_graph(self, architecture: Architecture, checkpoint: Checkpoint) -> onnx.ModelProto:
        """The encoder, and the decoder on all that stands before each target token.

        Raises:
            BundleError: as ``build_graph``.
        """
        return Builder(architecture, checkpoint).teaching()


FAMILY = T5()
