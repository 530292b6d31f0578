"""Pass: products in 8-bit integers, as ``quantise`` writes them in standard operators, in ONNX Runtime's own.

Each row t of x is divided by its largest magnitude before it becomes bytes, so that one constant step serves all rows,
and the product is multiplied by it again:

    m[t] = max |x[t]|        x8[t] = round(127 x[t] / m[t])        x[t] W^T = m[t] (scale / 127) * (x8[t] W8^T)

``QuantizeLinear`` with one step is many times as fast as with one a row, and ``MatMulIntegerToFloat`` needs no fusion.
Past Gelu, whose least value is -0.17, x8 = round(223 x[t] / m[t]) + 32 with m[t] = max(max x[t], 1.2): a finer step,
and nothing negative is cut.  Where the step is fixed the bytes are those of the stored graph, one factor of all
channels as the step, and the product adds the bias.  A row's result depends on no other row, as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.protos import CONTRIB, constant, either_way, put, use_contrib, values_read, writers
from edgepeft.graph.quantise import integer_products


class _Bytes(NamedTuple):
    """How rows become bytes: ``zero`` is 0's byte; ``m`` is at least ``floor``."""

    name: str
    zero: int
    floor: float | None = None


# Of a row of zeros x / m is no number; what bytes it becomes is all one, for its product is multiplied by m = 0.
_ANY = _Bytes("any", 128)
_PAST_GELU = _Bytes("past_gelu", 32, 0.17 * (255 - 32) / 32)


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def lower_integers(model: onnx.ModelProto) -> bool:
    """Rewrite a spliced graph's products in integers; returns whether it has any."""
    graph, writer = model.graph, writers(model.graph)
    made: dict[str, list[onnx.NodeProto]] = {}  # by the value that they give
    biases = _biases(graph)
    for x, matrix, scale, y, rounded in integer_products(graph):
        if rounded is not None:
            made |= _one_step(graph, x, rounded, writer)
            sum_, bias = biases.get(y, (y, ""))
            inputs = [rounded, matrix, "unit", scale, f"{_ANY.name}.zero", "", bias]
            made[sum_] = [helper.make_node("MatMulIntegerToFloat", inputs, [sum_], domain=CONTRIB)]
            continue
        how = _PAST_GELU if x in writer and writer[x].op_type == "Gelu" else _ANY
        made.setdefault(f"{x}/bytes", _rows(x, how))
        inputs = [f"{x}/bytes", matrix, f"{how.name}.step", scale, f"{how.name}.zero"]
        made[y] = [
            helper.make_node("MatMulIntegerToFloat", inputs, [f"{y}/of_unit"], domain=CONTRIB),
            helper.make_node("Mul", [f"{y}/of_unit", f"{x}/largest"], [y]),
        ]
    if not made:
        return False
    put(graph, [node for nodes in made.values() for node in nodes])
    for name, zero, floor in (_ANY, _PAST_GELU):
        numbers = {"step": np.float32(1 / (255 - zero)), "zero": np.uint8(zero), "floor": np.float32(floor or 0)}
        graph.initializer.extend(numpy_helper.from_array(np.array(v), f"{name}.{n}") for n, v in numbers.items())
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.float32), "unit"))
    prune(graph)
    use_contrib(model)
    return True


def _one_step(
    graph: onnx.GraphProto, x: str, rounded: str, writer: Mapping[str, onnx.NodeProto]
) -> dict[str, list[onnx.NodeProto]]:
    """The bytes of what all channels of are multiplied by one factor: its reciprocal is a step."""
    factor = constant(graph, writer[x].input[1]) if x in writer and writer[x].op_type == "Mul" else None
    if factor is None or factor.shape != (1,):
        return {}
    step = f"{x}/step"
    graph.initializer.append(numpy_helper.from_array(1 / factor[0], step))
    inputs = [writer[x].input[0], step, f"{_ANY.name}.zero"]
    return {rounded: [helper.make_node("QuantizeLinear", inputs, [rounded])]}


def _biases(graph: onnx.GraphProto) -> dict[str, tuple[str, str]]:
    """By a value that is read once, in a sum with a constant vector: the sum and the vector."""
    vectors = {each.name for each in graph.initializer if len(each.dims) == 1}
    times = values_read(graph)
    return {
        value: (node.output[0], bias)
        for node in graph.node
        if node.op_type == "Add"
        for value, bias in either_way(node)
        if bias in vectors and times[value] == 1
    }


def _rows(x: str, how: _Bytes) -> list[onnx.NodeProto]:
    """Bytes [T, in] and the largest of each row [T, 1]."""
    steps = [
        ("Div", [x, f"{x}/largest"], f"{x}/divided"),
        ("QuantizeLinear", [f"{x}/divided", f"{how.name}.step", f"{how.name}.zero"], f"{x}/bytes"),
    ]
    if how.floor is None:
        steps += [("Abs", [x], f"{x}/magnitude"), ("ReduceMax", [f"{x}/magnitude", "last_axis"], f"{x}/largest")]
    else:
        steps += [("ReduceMax", [x, "last_axis"], f"{x}/found")]
        steps += [("Max", [f"{x}/found", f"{how.name}.floor"], f"{x}/largest")]
    return [helper.make_node(op, inputs, [output]) for op, inputs, output in steps]
