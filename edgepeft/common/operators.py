"""What an operator does, for predictions: its class, its floating-point operations, the bytes it moves.

Records come from a bundle's graph (``edgepeft.deploy.cost``) or from the shape lists of published models
(``bench.published``); predictions read nothing else.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class OperatorClass(StrEnum):
    """Operators that a processor runs at like rates."""

    MATRIX = "matrix product"
    CONV = "convolution"
    CONV_3X3 = "convolution 3x3, stride 1"  # where Winograd's algorithm saves multiplications
    CONV_DEPTHWISE = "convolution, depthwise"
    NORM = "norm"
    SOFTMAX = "softmax"
    ELEMENTWISE = "elementwise"
    MOVE = "gather and copy"
    INDEX = "token bookkeeping"  # integers that follow from the mask
    NONE = "no work"  # views, shapes, and what is folded when a model is loaded


PRODUCTS = frozenset({OperatorClass.MATRIX, OperatorClass.CONV, OperatorClass.CONV_3X3, OperatorClass.CONV_DEPTHWISE})


class GraphKind(StrEnum):
    """What a whole graph mostly does; a rate that was fitted on one kind does not hold for another."""

    MATRIX = "matrix"
    CONV = "conv"
    CONV_3X3 = "conv-3x3"
    SEPARABLE = "separable"


_MOSTLY = 0.95  # of a graph's product FLOPs: VGGs have 98 % in 3x3 convolutions of stride 1, ResNets at most 92 %


@dataclass(frozen=True)
class Work:
    """One operator's work in one run: ``flops`` (a multiply-add is two), bytes read, weights of them, written."""

    name: str
    op: str
    kind: OperatorClass
    flops: int
    read_bytes: int
    written_bytes: int
    weight_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.written_bytes


def product_flops(works: Iterable[Work]) -> int:
    """FLOPs of matrix products and convolutions, which rates are fitted to."""
    return sum(work.flops for work in works if work.kind in PRODUCTS)


def graph_kind_of(works: Iterable[Work]) -> GraphKind:
    """What most of the products are; a single depthwise convolution makes a graph a separable one.

    Depthwise convolutions are 3 % of a MobileNet's FLOPs and far more of its time.
    """
    by_class: dict[OperatorClass, int] = {}
    for work in works:
        if work.kind in PRODUCTS:
            by_class[work.kind] = by_class.get(work.kind, 0) + work.flops
    total = sum(by_class.values())
    if OperatorClass.CONV_DEPTHWISE in by_class:
        return GraphKind.SEPARABLE
    if by_class.get(OperatorClass.MATRIX, 0) >= _MOSTLY * total:
        return GraphKind.MATRIX
    if by_class.get(OperatorClass.CONV_3X3, 0) >= _MOSTLY * total:
        return GraphKind.CONV_3X3
    return GraphKind.CONV
