"""Pass: products in 8-bit integers, as ``quantise`` writes them in standard operators, in ONNX Runtime's own.

Each row t of x is divided by its largest magnitude before it becomes bytes, so that one constant step serves all rows,
and the product is multiplied by it again:

    m[t] = max |x[t]|        x8[t] = round(127 x[t] / m[t])        x[t] W^T = m[t] (scale / 127) * (x8[t] W8^T)

``QuantizeLinear`` with one step is many times as fast as with one a row, and ``MatMulIntegerToFloat`` needs no fusion.
Past Gelu, whose least value is -0.17, x8 = round(223 x[t] / m[t]) + 32 with m[t] = max(max x[t], 1.2): a finer step,
and nothing negative is cut.  Where the step is fixed the bytes are those of the stored graph, one factor of all
channels as the step, and the product adds the bias.  A row's result depends on no other row, as before.
"""

import numpy as np
import onnx

from edgepeft.backbones.emit import Writer
from edgepeft.graph.contract import Contract, same_interface, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.protos import CONTRIB, constant, either_way, put, use_contrib, values_read, writers
from edgepeft.graph.quantise import integer_products

_MIDDLE, _PAST_GELU = 128, 32  # 0's byte
_LEAST = 0.17 * (255 - _PAST_GELU) / _PAST_GELU  # m past Gelu


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_interface], mutates=True)
def lower_integers(model: onnx.ModelProto) -> bool:
    """Rewrite a spliced graph's products in integers; returns whether it has any."""
    graph, writer, add = model.graph, writers(model.graph), Writer("lowered.")
    vectors, times = {each.name for each in graph.initializer if len(each.dims) == 1}, values_read(graph)
    sums = [(node.output[0], *pair) for node in graph.node if node.op_type == "Add" for pair in either_way(node)]
    biases = {value: (total, bias) for total, value, bias in sums if bias in vectors and times[value] == 1}
    rows: dict[str, tuple[str, str]] = {}  # of x [T, in]: bytes, and the largest of each row [T, 1]
    for x, matrix, scale, y, rounded in integer_products(graph):
        if rounded is not None:
            # Where all channels were multiplied by one factor, its reciprocal is the step.
            factor = constant(graph, writer[x].input[1]) if x in writer and writer[x].op_type == "Mul" else None
            if factor is not None and factor.shape == (1,) and f"{x}/step" not in add.initializers:
                step = add.constant(f"{x}/step", 1 / factor[0], np.float32)
                add.op("QuantizeLinear", writer[x].input[0], step, add.number(_MIDDLE, np.uint8), output=rounded)
            total, bias = biases.get(y, (y, ""))
            inputs = [rounded, matrix, add.number(1, np.float32), scale, add.number(_MIDDLE, np.uint8), "", bias]
            add.op("MatMulIntegerToFloat", *inputs, output=total, domain=CONTRIB)
            continue
        past_gelu = x in writer and writer[x].op_type == "Gelu"
        middle = _PAST_GELU if past_gelu else _MIDDLE
        step, zero = add.number(1 / (255 - middle), np.float32), add.number(middle, np.uint8)
        if x not in rows:
            largest = add.op("ReduceMax", x if past_gelu else add.op("Abs", x), "last_axis")
            largest = add.op("Max", largest, add.number(_LEAST, np.float32)) if past_gelu else largest
            # Of a row of zeros x / m is no number; what bytes it becomes is all one: its product is times m = 0.
            rows[x] = add.op("QuantizeLinear", add.op("Div", x, largest), step, zero), largest
        of_unit = add.op("MatMulIntegerToFloat", rows[x][0], matrix, step, scale, zero, domain=CONTRIB)
        add.op("Mul", of_unit, rows[x][1], output=y)
    if not add.nodes:
        return False
    put(graph, add.nodes)
    graph.initializer.extend(add.initializers.values())
    prune(graph)
    use_contrib(model)
    return True
