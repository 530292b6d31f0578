"""Matrix products.  A weight is read in its other layout by a flag or a Transpose, and never copied."""

from __future__ import annotations

from collections.abc import Mapping

from edgepeft.graph.gradient.rule import Gradients, Rule, Visit

__all__ = ["RULES"]


def _gemm(at: Visit) -> Gradients:
    """Y = alpha A' B' + beta C."""
    a, b = at.node.input[:2]
    alpha, beta = (float(at.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    of_a, of_b = (int(at.attributes.get(name, 0)) for name in ("transA", "transB"))
    if 0 in at.wanted:
        if of_a:
            yield 0, at.op("Gemm", b, at.dy, alpha=alpha, transA=of_b, transB=1)
        else:
            yield 0, at.op("Gemm", at.dy, b, alpha=alpha, transB=1 - of_b)
    if 1 in at.wanted:
        if of_b:
            yield 1, at.op("Gemm", at.dy, a, alpha=alpha, transA=1, transB=of_a)
        else:
            yield 1, at.op("Gemm", a, at.dy, alpha=alpha, transA=1 - of_a)
    if 2 in at.wanted:
        gradient = at.dy if beta == 1 else at.op("Mul", at.dy, at.number(beta))
        yield 2, at.reduced(gradient, 2)


def _matmul(at: Visit) -> Gradients:
    """Y = A B, of matrices or of stacks of them."""
    a, b = at.node.input
    rows, columns = at.tape.extents(a), at.tape.extents(b)
    if min(len(rows), len(columns)) < 2:
        raise at.refusal("with a vector")
    stack = at.tape.extents(at.y)[:-2]
    if 0 in at.wanted:
        gradient = at.op("MatMul", at.dy, _flipped(at, b))
        yield 0, at.reduced(gradient, 0, (*stack, *rows[-2:]))
    if 1 in at.wanted and len(columns) == 2:
        yield 1, at.op("Gemm", _tall(at, a, a), _tall(at, at.dy, at.y), transA=1)
    elif 1 in at.wanted:
        gradient = at.op("MatMul", _flipped(at, a), at.dy)
        yield 1, at.reduced(gradient, 1, (*stack, *columns[-2:]))


def _tall(at: Visit, value: str, like: str) -> str:
    """A stack of matrices, of the extents of ``like``, as one: a product over all rows, not a sum of products."""
    if at.tape.rank(like) == 2:
        return value
    width = at.tape.extents(like)[-1]
    if len(set(width)) > 1:
        raise at.refusal("of stacked rows whose width follows from the batch")
    return at.op("Reshape", value, at.tape.ints(-1, width[0]))


def _flipped(at: Visit, value: str) -> str:
    """The last two axes exchanged."""
    axes = list(range(at.tape.rank(value)))
    return at.op("Transpose", value, perm=[*axes[:-2], axes[-1], axes[-2]])


def _einsum(at: Visit) -> Gradients:
    """Each operand's gradient is the sum over the result and the other operands."""
    equation = at.attributes["equation"].decode().replace(" ", "")
    terms, _, result = equation.partition("->")
    operands = terms.split(",")
    for i in at.wanted:
        others = [(term, value) for j, (term, value) in enumerate(zip(operands, at.node.input, strict=True)) if j != i]
        known = set(result).union(*(term for term, _ in others))
        if "." in equation or not result or len(set(operands[i])) < len(operands[i]) or set(operands[i]) - known:
            raise at.refusal(f"of {equation}")
        names = ",".join([result, *(term for term, _ in others)])
        yield i, at.op("Einsum", at.dy, *(value for _, value in others), equation=f"{names}->{operands[i]}")


RULES: Mapping[str, Rule] = {"Gemm": _gemm, "MatMul": _matmul, "Einsum": _einsum}
