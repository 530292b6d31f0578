"""Transformer encoders: ViT-B/32 and those of HAT.

Dosovitskiy et al., 2021, arXiv:2010.11929; Wang et al., 2020, arXiv:2005.14187.
"""

from __future__ import annotations

from bench.published.shapes import convolution, matrix, moved
from edgepeft.common.operators import OperatorClass, Work

_HAT_LAYERS, _HAT_ATTENTION, _HAT_TOKENS = 6, 512, 30  # attention is 512 wide whatever the model's width


def vit_b32_384() -> tuple[Work, ...]:
    """12 layers, 768 wide, on 144 patches of 32 x 32 and a class token."""
    patches = convolution("patches", (3, 768), 12, kernel=32, stride=32)
    return patches, *encoder(12, 145, 768, 12, 3072), matrix("classifier", 1, 768, 1000)


def encoder(n_layers: int, tokens: int, width: int, heads: int, inner: int) -> tuple[Work, ...]:
    """BERT's layers, embeddings and head left out."""
    works: list[Work] = []
    for i in range(n_layers):
        works += _layer(f"layer.{i}", tokens=tokens, width=width, attention=width, heads=heads, inner=inner)
    return tuple(works)


def wmt_encoder(width: int, inner: float) -> tuple[Work, ...]:
    """One of HAT's encoders at 30 tokens; ``inner`` is the mean of its layers' feed-forward widths."""
    works: list[Work] = []
    for i in range(_HAT_LAYERS):
        # Widths differ from layer to layer, but the sum over layers is exact.
        before, after = round(inner * i), round(inner * (i + 1))
        works += _layer(
            f"layer.{i}", tokens=_HAT_TOKENS, width=width, attention=_HAT_ATTENTION, heads=8, inner=after - before
        )
    return tuple(works)


def _layer(name: str, *, tokens: int, width: int, attention: int, heads: int, inner: int) -> list[Work]:
    e, square = attention // heads, tokens * tokens * heads
    norm, softmax, elementwise = OperatorClass.NORM, OperatorClass.SOFTMAX, OperatorClass.ELEMENTWISE
    return [
        *(matrix(f"{name}.{part}", tokens, width, attention) for part in ("query", "key", "value")),
        matrix(f"{name}.scores", tokens, e, tokens, times=heads, weights=False),
        moved(f"{name}.softmax", "Softmax", softmax, square, 5),
        matrix(f"{name}.context", tokens, tokens, e, times=heads, weights=False),
        matrix(f"{name}.attention_output", tokens, attention, width),
        moved(f"{name}.attention_sum", "Add", elementwise, tokens * width, 1, inputs=2),
        moved(f"{name}.attention_norm", "LayerNormalization", norm, tokens * width, 7),
        matrix(f"{name}.ffn_up", tokens, width, inner),
        moved(f"{name}.activation", "Gelu", elementwise, tokens * inner, 5),
        matrix(f"{name}.ffn_output", tokens, inner, width),
        moved(f"{name}.ffn_sum", "Add", elementwise, tokens * width, 1, inputs=2),
        moved(f"{name}.layer_norm", "LayerNormalization", norm, tokens * width, 7),
    ]
