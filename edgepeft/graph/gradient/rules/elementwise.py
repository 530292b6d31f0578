"""Operators on numbers: sums, products, activations, norms.  Each operand may have been repeated (broadcast)."""

import math
from collections.abc import Callable, Mapping

from edgepeft.graph.gradient.rule import Gradients, Visit, rule_of


@rule_of("Add", "Expand", "Identity")
def _add(at: Visit) -> Gradients:
    """To each operand what all its copies bring."""
    yield from ((i, at.reduced(at.dy, i)) for i in at.wanted)


@rule_of("Sub")
def _sub(at: Visit) -> Gradients:
    if 0 in at.wanted:
        yield 0, at.reduced(at.dy, 0)
    if 1 in at.wanted:
        yield 1, at.op("Neg", at.reduced(at.dy, 1))


@rule_of("Mul")
def _mul(at: Visit) -> Gradients:
    yield from ((i, at.reduced(at.op("Mul", at.dy, at.node.input[1 - i]), i)) for i in at.wanted)


@rule_of("Div")
def _div(at: Visit) -> Gradients:
    """d(a / b) = da / b - (a / b) db / b."""
    scaled = at.op("Div", at.dy, at.node.input[1])
    if 0 in at.wanted:
        yield 0, at.reduced(scaled, 0)
    if 1 in at.wanted:
        yield 1, at.op("Neg", at.reduced(at.op("Mul", scaled, at.y), 1))


@rule_of("Where")
def _where(at: Visit) -> Gradients:
    condition, nothing = at.node.input[0], at.number(0)
    if 1 in at.wanted:
        yield 1, at.reduced(at.op("Where", condition, at.dy, nothing), 1)
    if 2 in at.wanted:
        yield 2, at.reduced(at.op("Where", condition, nothing, at.dy), 2)


@rule_of("Neg")
def _neg(at: Visit) -> Gradients:
    yield 0, at.op("Neg", at.dy)


@rule_of("Pow")
def _pow(at: Visit) -> Gradients:
    """dx = dy p x^(p - 1), p a constant number."""
    power = at.tape.value(at.node.input[1])
    if power is None or power.size != 1 or 1 in at.wanted:
        raise at.refusal("to a power that is computed")
    p = float(power.item())
    slope = at.x if p == 2 else at.op("Pow", at.x, at.number(p - 1))
    yield 0, at.op("Mul", at.dy, at.op("Mul", slope, at.number(p)))


@rule_of("Relu")
def _relu(at: Visit) -> Gradients:
    zero = at.number(0)
    yield 0, at.op("Where", at.op("Greater", at.y, zero), at.dy, zero)


@rule_of("LeakyRelu")
def _leaky_relu(at: Visit) -> Gradients:
    slope = at.number(at.attributes.get("alpha", 0.01))
    yield 0, at.op("Where", at.op("Greater", at.x, at.number(0)), at.dy, at.op("Mul", at.dy, slope))


@rule_of("Clip")
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


def _of_mish(at: Visit) -> str:
    """t + x (1 - t^2) sigmoid(x), t = tanh(softplus(x))."""
    t = at.op("Tanh", at.op("Softplus", at.x))
    slope = at.op("Mul", _of_tanh(at, t), at.op("Sigmoid", at.x))
    return at.op("Add", t, at.op("Mul", at.x, slope))


def _of_gelu(at: Visit) -> str:
    """Phi(x) + x phi(x).

    In the tanh form (1 + t) / 2 + x (1 - t^2) u' / 2,  t = tanh(u),  u = c (x + 0.044715 x^3),  c = sqrt(2 / pi).
    """
    op, number, x = at.op, at.number, at.x
    square = op("Mul", x, x)
    if at.attributes.get("approximate", b"none") == b"tanh":
        c = math.sqrt(2 / math.pi)
        t = op("Tanh", op("Mul", x, op("Add", op("Mul", square, number(c * 0.044715)), number(c))))
        slope = op("Add", op("Mul", square, number(3 * c * 0.044715)), number(c))
        inner = op("Mul", op("Mul", x, _of_tanh(at, t)), slope)
        return op("Mul", op("Add", op("Add", t, inner), number(1)), number(0.5))
    half = number(0.5)
    below = op("Add", op("Mul", op("Erf", op("Mul", x, number(math.sqrt(0.5)))), half), half)
    density = op("Mul", op("Exp", op("Mul", square, number(-0.5))), number(1 / math.sqrt(2 * math.pi)))
    return op("Add", below, op("Mul", x, density))


# Functions of one number, by their derivative f'(x).
_SLOPES: Mapping[str, Callable[[Visit], str]] = {
    "Exp": lambda at: at.y,
    "Gelu": _of_gelu,
    "Mish": _of_mish,
    "Sigmoid": lambda at: at.op("Mul", at.y, at.op("Sub", at.number(1), at.y)),  # y (1 - y)
    "Softplus": lambda at: at.op("Sigmoid", at.x),
    "Sqrt": lambda at: at.op("Div", at.number(0.5), at.y),  # 1 / (2 y)
    "Tanh": _of_tanh,
}


@rule_of(*_SLOPES)
def _of_number(at: Visit) -> Gradients:
    yield 0, at.op("Mul", at.dy, _SLOPES[at.node.op_type](at))


@rule_of("LayerNormalization")
def _layer_norm(at: Visit) -> Gradients:
    """y = n w + b, n = (x - mean) r:  dx = r (g - mean(g) - n mean(g n)), g = dy w.

    Mean and r (``InvStdDev``) are further results of the forward node, which it is asked for.
    """
    weight = at.node.input[1]
    rank = at.tape.rank(at.x)
    first = int(at.attributes.get("axis", -1)) % rank
    own = at.tape.ints(*range(first, rank))
    at.node.output.extend([""] * (3 - len(at.node.output)))
    at.node.output[1] = mean = at.node.output[1] or f"{at.y}/mean"
    at.node.output[2] = r = at.node.output[2] or f"{at.y}/scale"
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


@rule_of("Softmax")
def _softmax(at: Visit) -> Gradients:
    """dx = y (dy - sum(dy y))."""
    axis = at.tape.ints(int(at.attributes.get("axis", -1)))
    total = at.op("ReduceSum", at.op("Mul", at.dy, at.y), axis)
    yield 0, at.op("Mul", at.op("Sub", at.dy, total), at.y)


@rule_of("LogSoftmax")
def _log_softmax(at: Visit) -> Gradients:
    """dx = dy - exp(y) sum(dy)."""
    total = at.op("ReduceSum", at.dy, at.tape.ints(int(at.attributes.get("axis", -1))))
    yield 0, at.op("Sub", at.dy, at.op("Mul", at.op("Exp", at.y), total))
