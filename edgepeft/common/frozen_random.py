"""Frozen random matrices, the generator "mt19937/1": PyTorch's own on a CPU, in NumPy alone, for a board has no torch.

Matrices are drawn one after the other, row by row.  One of n columns is Kaiming-uniform (He et al., 2015,
arXiv:1502.01852, with the gain of ReLU), as PEFT 0.21 starts VeRA's:

    b = sqrt(3) sqrt(2) / sqrt(n)
    u = the low 24 bits of the Mersenne Twister's next output (Matsumoto and Nishimura, 1998) / 2^24
    x = u (b - (-b)) + (-b),  b and b - (-b) in float32, the rest rounded to float32 once

so that a seed, 32 bits, is all that has to be kept of them.

Other random numbers are a function of a text, the same on every machine, Python and library version: SplitMix64 (Steele
et al., 2014) started from the text's SHA-256; normal ones by Box and Muller (1958).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.fastfood import splitmix64

__all__ = ["GENERATOR", "MOST_ENTRIES", "SEEDS", "frozen_matrices", "normal", "uniform"]

GENERATOR = "mt19937/1"
SEEDS = 2**32
MOST_ENTRIES = 2**28  # entries in all, 1 GiB: what a file can ask a board for


def frozen_matrices(seed: int, shapes: Mapping[str, tuple[int, int]]) -> dict[str, NDArray[np.float32]]:
    """The matrices by name, in the order of ``shapes``."""
    source, made = np.random.RandomState(seed), {}  # whose numbers are the same in all versions, by its contract
    for name, shape in shapes.items():
        bits = np.frombuffer(source.bytes(4 * math.prod(shape)), "<u4") & np.uint32(0xFFFFFF)
        bound = np.float32(math.sqrt(3.0) * (math.sqrt(2.0) / math.sqrt(shape[1])))
        width = np.float64(bound - (-bound))
        made[name] = (bits * 2.0**-24 * width - np.float64(bound)).astype(np.float32).reshape(shape)
    return made


def uniform(salt: str, shape: Sequence[int]) -> NDArray[np.float64]:
    """In [0, 1), by the text ``salt``."""
    key = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:8], "little")
    bits = splitmix64(key, 0, math.prod(shape)) >> np.uint64(11)
    values: NDArray[np.float64] = (bits.astype(np.float64) * 2.0**-53).reshape(shape)
    return values


def normal(salt: str, shape: Sequence[int]) -> NDArray[np.float64]:
    """Of mean 0 and variance 1, by the text ``salt``."""
    radius, angle = uniform(salt, (2, *shape))
    values: NDArray[np.float64] = np.sqrt(-2 * np.log1p(-radius)) * np.cos(2 * np.pi * angle)
    return values
