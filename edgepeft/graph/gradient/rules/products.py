"""Matrix products.  A weight is read in its other layout by a flag or a Transpose, and never copied."""

from onnx import TensorProto

from edgepeft.device.machine import saturates_in_8_bits
from edgepeft.graph.gradient.rule import INTEGER_PRODUCT, Gradients, Visit, is_fixed, rule_of

_MIDDLE, _LARGEST = 128, 127  # of 8 bits


@rule_of("Gemm")
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


@rule_of("MatMul")
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
    if not is_fixed(width):
        raise at.refusal("of stacked rows whose width follows from the batch")
    return at.op("Reshape", value, at.tape.ints(-1, width[0]))


def _flipped(at: Visit, value: str) -> str:
    """The last two axes exchanged."""
    axes = list(range(at.tape.rank(value)))
    return at.op("Transpose", value, perm=[*axes[:-2], axes[-1], axes[-2]])


@rule_of("Einsum")
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


@rule_of(INTEGER_PRODUCT)
def _integer_product(at: Visit) -> Gradients:
    """A product with an 8-bit matrix, straight through the rounding of both operands (Bengio et al., 2013,
    arXiv:1308.3432).

    With g = dy scale, (T, out):  dx = g W8^T.  In float32 that is the gradient of what the 8 bits stand for.  In
    integers g is rounded as the forward pass rounds x, with a scale for each row:  g[t] = s[t] g8[t],
    s[t] = max |g[t]| / 127.
    """
    _, matrix, scale = at.node.input
    g = at.op("Mul", at.dy, scale)
    if at.attributes["backward"] == b"fp32":
        yield 0, at.op("Gemm", g, at.op("Cast", matrix, to=TensorProto.FLOAT), transB=1)
        return
    op, last = at.op, at.tape.ints(-1)
    largest = op("ReduceMax", op("Abs", g), last, keepdims=0)
    step = op("Max", op("Mul", largest, at.number(1 / _LARGEST)), at.number(1e-30))  # (T); of a row of zeros
    middle = at.tape.constant(_MIDDLE, TensorProto.UINT8)
    rounded = op("QuantizeLinear", g, step, op("Expand", middle, op("Shape", step)), axis=0)
    # By a shape that is only known in a run: of a constant, ONNX Runtime would keep a transposed copy.
    nothing = op("Mul", op("Shape", g), at.tape.ints(0, 0))
    sizes = at.tape.ints(*(extent[0] for extent in at.tape.extents(matrix)))
    factor, zero = op("Reshape", matrix, op("Add", nothing, sizes)), list[str]()
    if saturates_in_8_bits():  # products of two uint8 are exact there; of constants ONNX Runtime sees to that itself
        shifted = op("Add", op("Cast", factor, to=TensorProto.INT32), at.tape.constant(_MIDDLE, TensorProto.INT32))
        factor, zero = op("Cast", shifted, to=TensorProto.UINT8), [middle]
    product = op("MatMulInteger", rounded, op("Transpose", factor, perm=[1, 0]), middle, *zero)
    yield 0, op("Mul", op("Cast", product, to=TensorProto.FLOAT), op("Unsqueeze", step, last))
