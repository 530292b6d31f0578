"""Which of a table's rows stands for a distance between two tokens (Raffel et al., 2020, section 2.1, and their code).

Half of the buckets hold one distance each, the others grow by powers up to the largest.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edgepeft.backbones.emit import Emitter

__all__ = ["buckets", "distance_bias"]


def buckets(n_buckets: int, largest: int, *, both_ways: bool) -> NDArray[np.int64]:
    """The bucket of each distance from ``-largest`` (where ``both_ways``, else 0) to ``largest``.

    One way, a distance is how far back; both ways, how far on, with buckets of its own for what comes later.  Float32,
    as in the code that the weights were learnt with.
    """
    if both_ways:
        half = buckets(n_buckets // 2, largest, both_ways=False)
        return np.concatenate([half[:0:-1], half[:1], half[1:] + n_buckets // 2])
    distances, exact = np.arange(largest + 1), n_buckets // 2
    grown = np.log(np.maximum(distances, 1).astype(np.float32) / np.float32(exact))
    grown = grown / np.float32(math.log(largest / exact)) * np.float32(n_buckets - exact)
    far = np.minimum(exact + grown.astype(np.int64), n_buckets - 1)
    return np.where(distances < exact, distances, far).astype(np.int64)


def distance_bias(emit: Emitter, table: str, distances: str, largest: int, *, both_ways: bool, output: str = "") -> str:
    """What is added to attention for each distance, int64 (rows, columns) -> (h, rows, columns).

    ``table`` is a weight [buckets, h] of the checkpoint.
    """
    op, stem = emit.op, table.partition(".")[0]
    found = buckets(emit.shapes[table][0], largest, both_ways=both_ways)
    # Bytes: as large as weights are, a constant would be stored among these, and must not move them from 64 bytes.
    bucket = op("Cast", emit.constant(f"{stem}.buckets", found, np.uint8), to=TensorProto.INT64)
    by_distance = op("Gather", emit.weight(table), bucket)
    furthest = emit.constant("furthest", largest, np.int64)
    if both_ways:
        distances = op("Add", distances, furthest)
    zero, last = emit.constant("zero", 0, np.int64), emit.constant(f"{stem}.last", len(found) - 1, np.int64)
    place = op("Clip", distances, zero, last)
    return op("Gather", op("Transpose", by_distance, perm=[1, 0]), place, axis=1, output=output)
