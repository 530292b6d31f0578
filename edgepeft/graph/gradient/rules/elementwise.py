"""Operators on numbers: sums, products, activations.  Each operand may have been repeated (broadcast)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from edgepeft.graph.gradient.rule import Gradients, Rule, Visit

__all__ = ["RULES"]


def _add(at: Visit) -> Gradients:
    yield from ((i, at.reduced(at.dy, i)) for i in at.wanted)


def _sub(at: Visit) -> Gradients:
    if 0 in at.wanted:
        yield 0, at.reduced(at.dy, 0)
    if 1 in at.wanted:
        yield 1, at.op("Neg", at.reduced(at.dy, 1))


def _mul(at: Visit) -> Gradients:
    yield from ((i, at.reduced(at.op("Mul", at.dy, at.node.input[1 - i]), i)) for i in at.wanted)


def _div(at: Visit) -> Gradients:
    """d(a / b) = da / b - (a / b) db / b."""
    scaled = at.op("Div", at.dy, at.node.input[1])
    if 0 in at.wanted:
        yield 0, at.reduced(scaled, 0)
    if 1 in at.wanted:
        yield 1, at.op("Neg", at.reduced(at.op("Mul", scaled, at.y), 1))


def _where(at: Visit) -> Gradients:
    condition, nothing = at.node.input[0], at.number(0)
    if 1 in at.wanted:
        yield 1, at.reduced(at.op("Where", condition, at.dy, nothing), 1)
    if 2 in at.wanted:
        yield 2, at.reduced(at.op("Where", condition, nothing, at.dy), 2)


def _scaled(derivative: Callable[[Visit], str]) -> Rule:
    """dy times f'(x), of a function of one number."""

    def rule(at: Visit) -> Gradients:
        yield 0, at.op("Mul", at.dy, derivative(at))

    return rule


def _neg(at: Visit) -> Gradients:
    yield 0, at.op("Neg", at.dy)


def _pow(at: Visit) -> Gradients:
    """dx = dy p x^(p - 1), p a constant number."""
    power = at.tape.value(at.node.input[1])
    if power is None or power.size != 1 or 1 in at.wanted:
        raise at.refusal("to a power that is computed")
    p = float(power.item())
    slope = at.x if p == 2 else at.op("Pow", at.x, at.number(p - 1))
    yield 0, at.op("Mul", at.dy, at.op("Mul", slope, at.number(p)))


def _of_sqrt(at: Visit) -> str:
    """1 / (2 y)."""
    return at.op("Div", at.number(0.5), at.y)


def _relu(at: Visit) -> Gradients:
    zero = at.number(0)
    yield 0, at.op("Where", at.op("Greater", at.y, zero), at.dy, zero)


def _leaky_relu(at: Visit) -> Gradients:
    slope = at.number(at.attributes.get("alpha", 0.01))
    yield 0, at.op("Where", at.op("Greater", at.x, at.number(0)), at.dy, at.op("Mul", at.dy, slope))


def _clip(at: Visit) -> Gradients:
    """Nothing at the bounds themselves, as PyTorch has it for ReLU6."""
    gradient = at.dy
    for bound, inside in zip(at.node.input[1:], ("Greater", "Less"), strict=False):
        if bound:
            gradient = at.op("Where", at.op(inside, at.x, bound), gradient, at.number(0))
    yield 0, gradient


def _of_tanh(at: Visit, y: str = "") -> str:
    """1 - y^2."""
    y = y or at.y
    return at.op("Sub", at.number(1), at.op("Mul", y, y))


def _of_sigmoid(at: Visit) -> str:
    """y (1 - y)."""
    return at.op("Mul", at.y, at.op("Sub", at.number(1), at.y))


def _of_mish(at: Visit) -> str:
    """t + x (1 - t^2) sigmoid(x), t = tanh(softplus(x))."""
    t = at.op("Tanh", at.op("Softplus", at.x))
    slope = at.op("Mul", _of_tanh(at, t), at.op("Sigmoid", at.x))
    return at.op("Add", t, at.op("Mul", at.x, slope))


def _of_gelu(at: Visit) -> str:
    if at.attributes.get("approximate", b"none") == b"tanh":
        return _of_tanh_gelu(at)
    # Phi(x) + x phi(x)
    half, x = at.number(0.5), at.x
    below = at.op("Erf", at.op("Mul", x, at.number(math.sqrt(0.5))))
    below = at.op("Add", at.op("Mul", below, half), half)
    density = at.op("Exp", at.op("Mul", at.op("Mul", x, x), at.number(-0.5)))
    density = at.op("Mul", density, at.number(1 / math.sqrt(2 * math.pi)))
    return at.op("Add", below, at.op("Mul", x, density))


def _of_tanh_gelu(at: Visit) -> str:
    """(1 + t) / 2 + x (1 - t^2) u' / 2, t = tanh(u), u = c (x + 0.044715 x^3), c = sqrt(2 / pi)."""
    c, x = math.sqrt(2 / math.pi), at.x
    square = at.op("Mul", x, x)
    rest = at.op("Add", at.op("Mul", square, at.number(c * 0.044715)), at.number(c))
    t = at.op("Tanh", at.op("Mul", x, rest))
    slope = at.op("Add", at.op("Mul", square, at.number(3 * c * 0.044715)), at.number(c))
    inner = at.op("Mul", at.op("Mul", x, _of_tanh(at, t)), slope)
    return at.op("Mul", at.op("Add", at.op("Add", t, inner), at.number(1)), at.number(0.5))


RULES: Mapping[str, Rule] = {
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Div": _div,
    "Where": _where,
    "Neg": _neg,
    "Pow": _pow,
    "Sqrt": _scaled(_of_sqrt),
    "Relu": _relu,
    "LeakyRelu": _leaky_relu,
    "Clip": _clip,
    "Exp": _scaled(lambda at: at.y),
    "Tanh": _scaled(_of_tanh),
    "Sigmoid": _scaled(_of_sigmoid),
    "Softplus": _scaled(lambda at: at.op("Sigmoid", at.x)),
    "Mish": _scaled(_of_mish),
    "Gelu": _scaled(_of_gelu),
}
