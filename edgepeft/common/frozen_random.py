"""Frozen random numbers: NumPy alone, for a board has no torch.

The generator "mt19937/1", PyTorch's own on a CPU: matrices are drawn one after the other, row by row.  One of n columns
is Kaiming-uniform (He et al., 2015, arXiv:1502.01852, with the gain of ReLU), as PEFT 0.21 starts VeRA's:

    b = sqrt(3) sqrt(2) / sqrt(n)
    u = the low 24 bits of the Mersenne Twister's next output (Matsumoto and Nishimura, 1998) / 2^24
    x = u (b - (-b)) + (-b),  b and b - (-b) in float32, the rest rounded to float32 once

so that a seed, 32 bits, is all that has to be kept of them.

The generator "fastfood/1", Intrinsic-SAID's projection:

P v = [H G Pi H B pad(v)][:D] / (sqrt(LL sum G^2) sqrt(D / LL))   (Le et al., 2013; Aghajanyan et al., 2021)

LL is the least power of two >= D, 2^n; pad(v) is v with zeros behind it, or its first LL entries where it has
more; H is the unnormalised Walsh-Hadamard matrix.  B, G and Pi are functions of (seed, stream, index) in
integer arithmetic, so that any program can make them again:

    out(key, j)  output j (from 0) of SplitMix64 (Steele et al., 2014) started from ``key``, 64 bits
    root         out(seed, stream)
    B[j]         -1 where the highest bit of out(out(root, 0), j) is set, else 1
    G[j]         the normal distribution's quantile at (q + 1/2) / 65536, q the highest 16 bits of
                 out(out(root, 1), j); its 65536 values have mean 0 and variance 0.9999
    Pi           (Pi u)[j] = u[p(j)]; p is 4 rounds of  x <- (a x + c) mod 2^n,  x <- x xor (x >> ceil(n / 2));
                 round r (from 0) has a = 1 + 2 (low 31 bits of out(out(root, 2), 2 r)) and
                 c = low 32 bits of out(out(root, 2), 2 r + 1).  Both steps are one to one, so p is a permutation.

With w the least power of two that holds v, or LL if that is less, H B pad(v) repeats with period w: only
w of its entries are computed, and p is needed modulo w.

Other random numbers are a function of a text, the same on every machine, Python and library version: SplitMix64 started
from the text's SHA-256; normal ones by Box and Muller (1958).
"""

import functools
import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FASTFOOD = "fastfood/1"
_BLOCK = 1 << 15  # entries of G and Pi made at a time: they stay in the cache
_ROUNDS = 4
_GAMMA, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1

Floats = NDArray[np.float32]
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Fastfood:
    """P of one stream for a tensor of ``size`` entries and a vector of ``width``."""

    seed: int
    stream: int
    size: int
    width: int

    @property
    def bits(self) -> int:
        """n, of LL = 2^n."""
        return (self.size - 1).bit_length()

    @property
    def period(self) -> int:
        """w: how many entries of H B pad(v) differ."""
        return 1 << min(self.bits, (self.width - 1).bit_length())

    def signs(self) -> Floats:
        """B's first w entries; pad(v) is zero behind them."""
        high = splitmix64(self._keys[0], 0, self.period) >> np.uint64(63)
        return 1 - 2 * high.astype(np.float32)

    def blocks(self) -> Iterator[tuple[slice, NDArray[np.uint32], Floats]]:
        """(where, p modulo w, G), block by block over the LL entries."""
        length, shift = 1 << self.bits, np.uint32((self.bits + 1) // 2)
        for start in range(0, length, _BLOCK):
            where = slice(start, min(length, start + _BLOCK))
            x = np.arange(where.start, where.stop, dtype=np.uint32)
            for a, c in self._rounds:
                x *= a  # unsigned arithmetic wraps, which is mod 2^32
                x += c
                x &= np.uint32(length - 1)
                x ^= x >> shift
            drawn = splitmix64(self._keys[1], where.start, where.stop - where.start) >> np.uint64(48)
            yield where, x & np.uint32(self.period - 1), _quantiles().take(drawn.view(np.int64))

    def table(self) -> tuple[NDArray[np.int32], Floats, float]:
        """(p modulo w [LL], G [LL], the denominator): what training keeps between steps."""
        index, gaussian = np.empty(1 << self.bits, np.int32), np.empty(1 << self.bits, np.float32)
        for where, permuted, random in self.blocks():
            index[where], gaussian[where] = permuted, random
        return index, gaussian, self.denominator(_square_sum(gaussian))

    def project(self, vector: Floats) -> Floats:
        """P v: [width] -> [size]."""
        padded = np.zeros(self.period, np.float32)
        padded[: min(self.width, self.period)] = vector[: self.period]
        mixed = walsh_hadamard(self.signs() * padded)
        values, squares = np.empty(1 << self.bits, np.float32), 0.0
        for where, index, gaussian in self.blocks():
            np.multiply(mixed.take(index), gaussian, out=values[where])
            squares += _square_sum(gaussian)
        return walsh_hadamard(values)[: self.size] * np.float32(1 / self.denominator(squares))

    def back(self, gradient: Floats) -> Floats:
        """P^T g: [size] -> [width], the way back through ``project``; what meets in one entry is summed in float64."""
        values = np.zeros(1 << self.bits, np.float32)
        values[: self.size] = gradient
        values, mixed, squares = walsh_hadamard(values), np.zeros(self.period), 0.0
        for where, index, gaussian in self.blocks():
            mixed += np.bincount(index, values[where] * gaussian, self.period)
            squares += _square_sum(gaussian)
        found = walsh_hadamard((mixed / self.denominator(squares)).astype(np.float32)) * self.signs()
        return np.pad(found[: self.width], (0, max(0, self.width - self.period)))

    def denominator(self, squares: float) -> float:
        """sqrt(LL sum G^2) sqrt(D / LL)."""
        return float(np.sqrt(squares * self.size))

    @functools.cached_property
    def _keys(self) -> tuple[int, ...]:
        root = int(splitmix64(self.seed, self.stream, 1)[0])
        return tuple(int(key) for key in splitmix64(root, 0, 3))

    @functools.cached_property
    def _rounds(self) -> list[tuple[np.uint32, np.uint32]]:
        """(a, c) of each round."""
        keys = [int(key) for key in splitmix64(self._keys[2], 0, 2 * _ROUNDS)]
        pairs = zip(keys[::2], keys[1::2], strict=True)
        return [(np.uint32(2 * (a & 0x7FFFFFFF) + 1), np.uint32(c & 0xFFFFFFFF)) for a, c in pairs]


def map_ahead(make: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """``map`` in threads (NumPy's loops run beside each other), never more than ``threads`` items ahead."""
    with ThreadPoolExecutor(threads) as pool:
        begun: deque[Future[Result]] = deque()
        for item in items:
            begun.append(pool.submit(make, item))
            if len(begun) > threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


def splitmix64(key: int, start: int, count: int) -> NDArray[np.uint64]:
    """Outputs ``start`` to ``start + count - 1`` of the generator started from ``key``."""
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z *= np.uint64(_GAMMA)
    z += np.uint64(key & _WORD)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def walsh_hadamard(values: Floats) -> Floats:
    """H values, [LL] -> [LL], in place: low bits block by block, then the bits above, so that each part is cached.

    Sums and differences only: products with small matrices are faster alone, and 20 times slower where BLAS
    spreads each over threads that are busy.
    """
    grid = values.reshape(-1, min(_BLOCK, len(values)))
    side = 1 << (grid.shape[1].bit_length() // 2)
    for block in grid:
        upper = _transformed(block.reshape(-1, side))  # transposed below, for rows of a few numbers are slow
        block[:] = _transformed(np.ascontiguousarray(upper.T)).T.ravel()
    columns = max(1, 8 * _BLOCK // len(grid))
    for start in range(0, grid.shape[1] if len(grid) > 1 else 0, columns):
        part = grid[:, start : start + columns]
        part[:] = _transformed(np.ascontiguousarray(part))
    return values


def _transformed(rows: Floats) -> Floats:
    """H rows, [2^k, any] -> the same, in place."""
    height = rows.shape[1]
    while height < rows.size:
        pairs = rows.reshape(-1, 2, height)
        total = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = total
        height *= 2
    return rows


@functools.cache
def hadamard(size: int) -> Floats:
    """H [size, size], by Sylvester's construction; not to be written to."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@functools.cache
def _quantiles() -> Floats:
    normal = NormalDist()
    return np.array([normal.inv_cdf((q + 0.5) / 65536) for q in range(65536)], np.float32)


def _square_sum(values: Floats) -> float:
    return float(np.square(values, dtype=np.float64).sum())


MERSENNE_TWISTER = "mt19937/1"
SEEDS = 2**32
MAX_ENTRIES = 2**28  # entries in all, 1 GiB: what a file can ask a board for


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
