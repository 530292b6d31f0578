"""What rescales rows: norms and softmax, by what the forward pass has of them already."""

from __future__ import annotations

from collections.abc import Mapping

from edgepeft.graph.gradient.rule import Gradients, Rule, Visit

__all__ = ["RULES"]


def _layer_norm(at: Visit) -> Gradients:
    """y = n w + b, n = (x - mean) r:  dx = r (g - mean(g) - n mean(g n)), g = dy w.

    Mean and r (``InvStdDev``) are further results of the forward node, which it is asked for.
    """
    weight = at.node.input[1]
    rank = at.tape.rank(at.x)
    first = int(at.attributes.get("axis", -1)) % rank
    own = at.tape.ints(*range(first, rank))
    mean, r = _statistics(at)
    n = at.op("Mul", at.op("Sub", at.x, mean), r)
    if 0 in at.wanted:
        g = at.op("Mul", at.dy, weight)
        along = at.op("Mul", n, at.op("ReduceMean", at.op("Mul", g, n), own))
        centred = at.op("Sub", at.op("Sub", g, at.op("ReduceMean", g, own)), along)
        yield 0, at.op("Mul", centred, r)
    if 1 in at.wanted:
        yield 1, at.reduced(at.op("Mul", at.dy, n), 1)
    if 2 in at.wanted:
        yield 2, at.reduced(at.dy, 2)


def _statistics(at: Visit) -> list[str]:
    """The forward node's second and third result, named where they are not yet."""
    while len(at.node.output) < 3:
        at.node.output.append("")
    for place, what in enumerate(("mean", "scale"), 1):
        at.node.output[place] = at.node.output[place] or f"{at.y}/{what}"
    return list(at.node.output[1:])


def _softmax(at: Visit) -> Gradients:
    """dx = y (dy - sum(dy y))."""
    axis = at.tape.ints(int(at.attributes.get("axis", -1)))
    total = at.op("ReduceSum", at.op("Mul", at.dy, at.y), axis)
    yield 0, at.op("Mul", at.op("Sub", at.dy, total), at.y)


def _log_softmax(at: Visit) -> Gradients:
    """dx = dy - exp(y) sum(dy)."""
    total = at.op("ReduceSum", at.dy, at.tape.ints(int(at.attributes.get("axis", -1))))
    yield 0, at.op("Sub", at.dy, at.op("Mul", at.op("Exp", at.y), total))


RULES: Mapping[str, Rule] = {
    "LayerNormalization": _layer_norm,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
}
