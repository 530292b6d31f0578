"""What kinds of task share: losses as nodes and of PyTorch's tensors, metrics, and how answers are compared."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

CLOSE = 1e-4  # a difference of two logits that counts as rounding, where no tolerance holds them

Values = NDArray[Any]


class GraphWriter(Protocol):
    """``backbones.emit.Writer``, which imports onnx: what knows a task need not."""

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str: ...
    def ints(self, *values: int) -> str: ...
    def number(self, value: float, dtype: type[np.generic] = ...) -> str: ...


class LossGraph(NamedTuple):
    """A loss as nodes of ``logits`` and ``labels``; ``of_rows`` [batch] is the value that has the sum of each row's
    terms."""

    of_rows: str
    integers: bool  # ``labels`` are int64, else numbers
    dims: tuple[str | int, ...] = ("batch",)  # of ``labels``


class Metric(NamedTuple):
    """A function of (the bound kind, targets [n, ...], outputs [n, ...]), higher is better; and how it comes to one
    number.

    With ``of_sums`` the function gives values [n, ...] of the rows, and the score is made of their sums and n.  What is
    not ``resampled`` is too slow for a bootstrap.
    """

    function: Callable[[Any, Any, Any], Any]
    averaged: str = "over all rows"
    of_sums: Callable[[Any, int], float] | None = None
    resampled: bool = True

    def score(self, *of: Any) -> float:
        """Return the score as one number."""
        found = self.function(*of)
        return float(found) if self.of_sums is None else self.of_sums(np.sum(found, 0), len(found))


def mean(sums: Any, n: int) -> float:
    """Return the mean of the rows' values, as ``Metric.of_sums``."""
    return float(sums) / n


class Agreement(NamedTuple):
    """The share of decided rows that have the reference's decision, and the number of undecided rows."""

    share: float
    undecided: int

    @staticmethod
    def decided(reference: Values, tolerance: float | None, axis: int) -> NDArray[np.bool_]:
        """Mark where the two largest along an axis are too far apart to change places within the tolerance."""
        best = np.sort(reference, axis)
        return best.take(-1, axis) - best.take(-2, axis) > 2 * (tolerance or CLOSE)


def same_best(reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
    """Compare which is the largest of [n, C, ...]; undecided is a row whose two largest are too near everywhere."""
    decided = Agreement.decided(reference, tolerance, axis=1)
    equal = reference.argmax(axis=1) == logits.argmax(axis=1)
    undecided = (~decided).all(tuple(range(1, decided.ndim)))
    return Agreement(float(equal[decided].mean()) if decided.any() else 1.0, int(undecided.sum()))


def log_softmax(logits: NDArray[Any], axis: int | tuple[int, ...] = -1) -> NDArray[np.float64]:
    """Return the logarithm of the softmax along an axis or several, in float64."""
    exact = logits.astype(np.float64)
    exact -= exact.max(axis, keepdims=True)
    return exact - np.log(np.exp(exact).sum(axis, keepdims=True))


def token_loss(logits: Any, targets: Any) -> Any:
    """Return the mean -log softmax of PyTorch's ``logits`` [B, S, C] at ``targets`` [B, S], but for NO_TARGET."""
    known = targets >= 0
    each = logits.log_softmax(-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -(each * known).sum() / known.sum().clamp(min=1)


def cross_entropy(graph: GraphWriter, logits: str, labels: str, axis: int) -> str:
    """Write -log softmax of ``logits`` [..., C] at int64 ``labels`` [...], which have ``axis`` dimensions; 0 where a
    label is no column."""
    op, last = graph.op, graph.ints(-1)
    n = op("Squeeze", op("Shape", logits, start=axis, end=axis + 1))
    columns = op("Range", graph.number(0), n, graph.number(1))
    chosen = op("Equal", op("Unsqueeze", labels, last), columns)
    shares = op("Where", chosen, op("LogSoftmax", logits, axis=-1), graph.number(0, np.float32))
    return op("Neg", op("ReduceSum", shares, last, keepdims=0))
