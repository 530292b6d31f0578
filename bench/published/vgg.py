"""VGG at 224 x 224 (Simonyan and Zisserman, 2015, arXiv:1409.1556, table 1): 3x3 convolutions of stride 1."""

from __future__ import annotations

from bench.published.shapes import convolution, matrix
from edgepeft.common.operators import Work

_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDTHS = (64, 128, 256, 512, 512)


def vgg(depth: int) -> tuple[Work, ...]:
    """11, 13, 16 or 19 layers."""
    works, channels, size = [], 3, 224
    for stage, (n_layers, width) in enumerate(zip(_CONVOLUTIONS[depth], _WIDTHS, strict=True)):
        for layer in range(n_layers):
            works.append(convolution(f"stage.{stage}.{layer}", (channels, width), size, kernel=3))
            channels = width
        size //= 2
    features = channels * size * size
    heads = [(features, 4096), (4096, 4096), (4096, 1000)]
    return (*works, *(matrix(f"classifier.{i}", 1, inner, outer) for i, (inner, outer) in enumerate(heads)))
