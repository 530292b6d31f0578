"""ResNet at 224 x 224 (He et al., 2016, arXiv:1512.03385, table 1).

A bottleneck's stride is in its 3x3 convolution, as torchvision has it.
"""

from __future__ import annotations

from bench.published.shapes import convolution, matrix
from edgepeft.common.operators import Work

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_BOTTLENECKS = {50, 101, 152}
_WIDTHS = (64, 128, 256, 512)


def resnet(depth: int) -> tuple[Work, ...]:
    """18, 34, 50, 101 or 152 layers."""
    works = [convolution("stem", (3, 64), 112, kernel=7, stride=2)]
    wide = 4 if depth in _BOTTLENECKS else 1
    channels, size = 64, 56
    for stage, (n_blocks, width) in enumerate(zip(_BLOCKS[depth], _WIDTHS, strict=True)):
        for block in range(n_blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            name = f"stage.{stage}.block.{block}"
            make = _bottleneck if depth in _BOTTLENECKS else _basic
            works += make(name, channels, width, size, stride)
            size //= stride
            if channels != width * wide:
                works.append(convolution(f"{name}.shortcut", (channels, width * wide), size, kernel=1, stride=stride))
            channels = width * wide
    return (*works, matrix("classifier", 1, channels, 1000))


def _basic(name: str, channels: int, width: int, size: int, stride: int) -> list[Work]:
    """Two 3x3 convolutions."""
    return [
        convolution(f"{name}.0", (channels, width), size // stride, kernel=3, stride=stride),
        convolution(f"{name}.1", (width, width), size // stride, kernel=3),
    ]


def _bottleneck(name: str, channels: int, width: int, size: int, stride: int) -> list[Work]:
    """1x1 down, 3x3, 1x1 up."""
    return [
        convolution(f"{name}.0", (channels, width), size, kernel=1),
        convolution(f"{name}.1", (width, width), size // stride, kernel=3, stride=stride),
        convolution(f"{name}.2", (width, 4 * width), size // stride, kernel=1),
    ]
