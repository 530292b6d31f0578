"""DenseNet-121 at 224 x 224 (Huang et al., 2017, arXiv:1608.06993, table 1)."""

from __future__ import annotations

from bench.published.shapes import convolution, matrix
from edgepeft.common.operators import Work

_BLOCKS = (6, 12, 24, 16)
_GROWTH = 32


def densenet121() -> tuple[Work, ...]:
    """Growth 32; a transition halves channels and size."""
    works = [convolution("stem", (3, 64), 112, kernel=7, stride=2)]
    channels, size = 64, 56
    for stage, n_layers in enumerate(_BLOCKS):
        for layer in range(n_layers):
            name = f"block.{stage}.{layer}"
            works.append(convolution(f"{name}.0", (channels, 4 * _GROWTH), size, kernel=1))
            works.append(convolution(f"{name}.1", (4 * _GROWTH, _GROWTH), size, kernel=3))
            channels += _GROWTH
        if stage < len(_BLOCKS) - 1:
            works.append(convolution(f"transition.{stage}", (channels, channels // 2), size, kernel=1))
            channels, size = channels // 2, size // 2
    return (*works, matrix("classifier", 1, channels, 1000))
