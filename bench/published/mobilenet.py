"""MobileNet v1 and v2 at width 1 and 224 x 224.

Howard et al., 2017, arXiv:1704.04861, table 1; Sandler et al., 2018, arXiv:1801.04381, table 2.
"""

from __future__ import annotations

from bench.published.shapes import convolution, matrix
from edgepeft.common.operators import Work

# (channels out, stride) of each depthwise separable pair.
_V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
# (expansion, channels out, repetitions, stride of the first) of each stage.
_V2 = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def mobilenet_v1() -> tuple[Work, ...]:
    """13 pairs of a depthwise 3x3 and a 1x1 convolution."""
    works = [convolution("stem", (3, 32), 112, kernel=3, stride=2)]
    channels, size = 32, 112
    for i, (outputs, stride) in enumerate(_V1):
        size //= stride
        works.append(convolution(f"pair.{i}.0", (channels, channels), size, kernel=3, stride=stride, groups=channels))
        works.append(convolution(f"pair.{i}.1", (channels, outputs), size, kernel=1))
        channels = outputs
    return (*works, matrix("classifier", 1, channels, 1000))


def mobilenet_v2() -> tuple[Work, ...]:
    """17 inverted residuals: 1x1 up, depthwise 3x3, 1x1 down."""
    works = [convolution("stem", (3, 32), 112, kernel=3, stride=2)]
    channels, size = 32, 112
    for stage, (expansion, outputs, repetitions, first) in enumerate(_V2):
        for block in range(repetitions):
            name, stride, wide = f"stage.{stage}.{block}", first if block == 0 else 1, channels * expansion
            if expansion > 1:
                works.append(convolution(f"{name}.up", (channels, wide), size, kernel=1))
            size //= stride
            works.append(convolution(f"{name}.depthwise", (wide, wide), size, kernel=3, stride=stride, groups=wide))
            works.append(convolution(f"{name}.down", (wide, outputs), size, kernel=1))
            channels = outputs
    works.append(convolution("last", (channels, 1280), size, kernel=1))
    return (*works, matrix("classifier", 1, 1280, 1000))
