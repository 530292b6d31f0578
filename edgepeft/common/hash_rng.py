"""Random numbers that are a function of a text: the same on every machine, Python and library version.

SplitMix64 (Steele et al., 2014) started from the text's SHA-256; normal ones by Box and Muller (1958).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.fastfood import splitmix64

__all__ = ["normal", "uniform"]


def uniform(salt: str, shape: Sequence[int]) -> NDArray[np.float64]:
    """In [0, 1)."""
    key = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "little")
    bits = splitmix64(key, 0, math.prod(shape)) >> np.uint64(11)
    drawn: NDArray[np.float64] = (bits.astype(np.float64) * 2.0**-53).reshape(shape)
    return drawn


def normal(salt: str, shape: Sequence[int]) -> NDArray[np.float64]:
    """Of mean 0 and variance 1."""
    radius, angle = uniform(salt, (2, *shape))
    drawn: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return drawn
