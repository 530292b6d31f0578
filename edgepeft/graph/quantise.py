"""Passes: a backbone's projections in 8-bit integers, its word embeddings as 8-bit rows, and ONNX Runtime's products.

Per output channel c of a matrix W [out, in], symmetric (Jacob et al., 2018, arXiv:1712.05877, eq. 1 with Z = 0):

    scale[c] = max |W[c]| / 127        W8[c] = round(W[c] / scale[c])

and at run time, with each row t of x made unsigned bytes, x[t] = sx[t] (x8[t] - zx):

    x[t] W^T = sx[t] scale * ((x8[t] - zx) W8^T)

A scale for each row and not one for all: a token's activations may be far larger than all others', and a row's
answer does not depend on its company.  On MiniLM this takes 40 % off the error of logits.  zx is a constant, which past
an activation leaves no more room than needed for the little that is negative.

Where an export has measured x (``training.exporting.backbone``), its channels are multiplied by constants, or all by
one, and W's columns divided by them, so that a step of 1 serves every row and none is looked for:

    x W^T = scale * (round(x v) (W / v)8^T)

The weights file holds ``Quantised`` tensors for these, and every other tensor as it was; the stored graph has standard
operators only.

``lower_integers``, when a session opens: each row t of x is divided by its largest magnitude before it becomes bytes,
so that one constant step serves all rows, and the product is multiplied by it again:

    m[t] = max |x[t]|        x8[t] = round(127 x[t] / m[t])        x[t] W^T = m[t] (scale / 127) * (x8[t] W8^T)

``QuantizeLinear`` with one step is many times as fast as with one a row, and ``MatMulIntegerToFloat`` needs no fusion.
Past Gelu, whose least value is -0.17, x8 = round(223 x[t] / m[t]) + 32 with m[t] = max(max x[t], 1.2): a finer step,
and nothing negative is cut.
Where the step is fixed the bytes are those of the stored graph, one factor of all channels as the step, and the product
adds the bias.  A row's result depends on no other row, as before.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.checkpoint import Checkpoint, Quantised
from edgepeft.backbones.emit import Writer, external_tensor
from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import (
    Contract,
    closed,
    one_writer,
    same_interface,
    standard,
    values_stay,
    weights_outside,
    well_formed,
)
from edgepeft.graph.cut import prune
from edgepeft.graph.grouped import GROUP, OPSET_OF_GROUPS, ZEROS, in_eight_bits, in_four_bits, rows_of_groups, unpacking
from edgepeft.graph.protos import (
    CONTRIB,
    ancestors,
    constant,
    copied,
    either_way,
    external_tensors,
    match_chain,
    replace,
    replace_nodes,
    use_contrib,
    values_read,
    writers,
)

_LARGEST = 127  # symmetric: -128 is not used
# Words have more rows than this; positions and token types, well under one per cent of the weights, stay as they are.
_MIN_TABLE_ROWS = 1024
# zx, of 255: below it what is negative, above it what is positive.  Gelu's least value is -0.17.
_MIDDLE, _PAST_ACTIVATION = 128, 16
_ACTIVATIONS = {"Gelu", "Relu"}
_PAST_GELU = 32  # zx past Gelu in a lowered graph
_LEAST_M = 0.17 * (255 - _PAST_GELU) / _PAST_GELU  # so that -0.17 becomes no byte below 0
_UNIT_STEP = "unit_step"
_NODE = helper.make_node  # inner nodes have no names: the graph stays under 200 kB


def projections(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The products that may be in integers: ``Gemm`` of x and a matrix."""
    return [node for node in graph.node if _is_projection(node)]


def quantised_tensors(
    graph: onnx.GraphProto,
    checkpoint: Checkpoint,
    factors: Mapping[str, NDArray[np.float32]] = MappingProxyType({}),
    *,
    others: Iterable[onnx.GraphProto] = (),
    four_bits: bool = False,
    groups: bool = False,
) -> dict[str, NDArray[np.generic]]:
    """What the weights file of a quantised backbone holds, by name; ``checkpoint`` has float32 only.

    ``others`` are further graphs of this backbone, which may read more of it: a decoder's output matrix, in 8 bits.
    ``factors`` [in] or [1] are those of what a matrix reads, by its name, the same for all that read one value.
    With ``four_bits`` projections of ``graph`` have 4 where they can; tables have 8.  With ``groups`` what has 8 has a
    scale for each group of a row, where it can.
    """
    graphs = (graph, *others)
    matrices = {node.input[1] for each in graphs for node in projections(each)}
    four_bit = {node.input[1] for node in projections(graph)} if four_bits else set()
    looked_up = {node.input[0] for each in graphs for node in each.node if node.op_type == "Gather"}
    looked_up &= checkpoint.tensors.keys()
    tables = {name for name in looked_up if checkpoint.tensors[name].shape[0] >= _MIN_TABLE_ROWS}
    matrices -= looked_up - tables  # a small table stays as it is, whatever multiplies by it too
    stored_tensors: dict[str, NDArray[np.generic]] = {}
    for name in dict.fromkeys(tensor.name for each in graphs for tensor in external_tensors(each)):
        values, stored = checkpoint.values(name), Quantised(name)
        if name not in matrices | tables:
            stored_tensors[name] = values
            continue
        can_group = values.shape[-1] % GROUP == 0
        if name in four_bit and name not in tables and can_group:
            stored_tensors[stored.packed], stored_tensors[stored.scale] = in_four_bits(_finite(values, name))
            continue
        if groups and can_group:
            stored_tensors[stored.bytes], stored_tensors[stored.scale] = in_eight_bits(_finite(values, name))
            continue
        if name in factors and name not in tables:
            values = values / factors[name]
            stored_tensors[stored.columns] = factors[name]
        largest = np.abs(_finite(values, name)).max(axis=1)
        scale = np.where(largest > 0, largest / np.float32(_LARGEST), np.float32(1)).astype(np.float32)  # [rows]
        stored_tensors[stored.scale], integers = scale, np.rint(values / scale[:, None]).astype(np.int8)
        form = stored.table if name in tables else stored.matrix
        stored_tensors[form] = integers if name in tables else np.ascontiguousarray(integers.T)
    return stored_tensors


@Contract(
    requires=[well_formed, standard, weights_outside],
    ensures=[well_formed, standard, weights_outside],
    keeps=[same_interface, values_stay],
    mutates=True,
)
def quantise(model: onnx.ModelProto, checkpoint: Checkpoint) -> None:
    """Rewrite a backbone to read ``checkpoint``, a file of ``quantised_tensors``."""
    graph, known = model.graph, checkpoint.tensors.keys()
    activations = {name for node in graph.node if node.op_type in _ACTIVATIONS for name in node.output}
    shared: set[tuple[str, bool]] = set()  # values that are quantised already: query, key and value read one
    nodes: list[onnx.NodeProto] = []
    written: set[str] = set()  # by what unpacks groups
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    for node in graph.node:
        stored, result = Quantised(node.input[1]) if _is_projection(node) else None, node.output[0]
        if stored and known & {stored.packed, stored.bytes}:
            nodes += unpacking(stored, checkpoint, written)
        if stored and known & {stored.matrix, stored.table}:
            source = node.input[0]
            zero = _PAST_ACTIVATION if source in activations else _MIDDLE
            fixed = stored.columns in known
            if (source, fixed) not in shared and fixed:  # bytes [T, in], of which 128 is 0
                scaled, bytes_ = f"{source}:times_columns", f"{source}:bytes"
                nodes.append(_NODE("Mul", [source, stored.columns], [scaled], name=scaled))
                nodes.append(_NODE("QuantizeLinear", [scaled, _UNIT_STEP, f"zero_point_{_MIDDLE}"], [bytes_]))
            elif (source, fixed) not in shared:
                nodes += _quantised_rows(source, zero)
            shared.add((source, fixed))
            if stored.table in known:  # of words, which are looked up too; transposed once, at load
                nodes.append(_NODE("Transpose", [stored.table], [stored.matrix], perm=[1, 0]))
            nodes += _product(source, stored, result, zero, fixed=fixed)
        elif node.op_type == "Gather" and Quantised(node.input[0]).table in known:  # (T) -> (T, d)
            table, integers, scale = Quantised(node.input[0]), f"{result}:int8", f"{result}:scale"
            nodes.append(_NODE("Gather", [table.table, node.input[1]], [integers]))
            nodes.append(_NODE("Gather", [table.scale, node.input[1]], [scale]))
            nodes.append(_NODE("DequantizeLinear", [integers, scale], [result], name=result, axis=0))
        elif node.op_type == "Gather" and Quantised(node.input[0]).bytes in known:
            nodes += rows_of_groups(Quantised(node.input[0]), node.input[1], result)
        else:
            nodes.append(copied(node))
    if written or any(Quantised(name).bytes in known for name in looked_up):
        replace(model.opset_import, [helper.make_opsetid("", OPSET_OF_GROUPS)])
    inline = (i for i in graph.initializer if i.data_location != TensorProto.EXTERNAL)
    external = (external_tensor(t) for t in checkpoint.tensors.values())
    replace(graph.node, nodes)
    read = values_read(graph)
    replace(graph.initializer, [i for i in (*inline, *_constants(), *external) if i.name in read])


@Contract(requires=[closed, one_writer], ensures=[one_writer], keeps=[same_interface, values_stay], mutates=True)
def restore(graph: onnx.GraphProto, tensors: Iterable[str]) -> None:
    """Have the float32 operators read these tensors again, by name; what quantised them is left for ``prune``.

    For tensors that a delta overrides: its own values are float32.
    """
    forms = {tensor: Quantised(tensor) for tensor in tensors}
    originals = {name: tensor for tensor, of in forms.items() for name in (of.matrix, of.table, of.bytes)}
    writer = writers(graph)
    for node in graph.node:
        lookup = match_chain(node.output[0], writer, "DequantizeLinear", "Gather")
        product = _integer_product(node.output[0], writer)
        if lookup and lookup[1].input[0] in originals:
            inputs = [originals[lookup[1].input[0]], lookup[1].input[1]]
            node.CopyFrom(_NODE("Gather", inputs, node.output, name=node.name))
        elif product is not None and product.matrix in originals:
            # Before the factors of its columns, where there are some.
            x = product.x if product.rounded is None else writer[product.x].input[0]
            node.CopyFrom(_NODE("Gemm", [x, originals[product.matrix]], node.output, name=node.name, transB=1))


@Contract(requires=[one_writer], ensures=[one_writer], keeps=[same_interface, values_stay], mutates=True)
def free_steps(graph: onnx.GraphProto, changed: Collection[str]) -> None:
    """Have rows take steps of their own again past attention that depends on ``changed`` values, a delta's.

    Its step was measured on the backbone's own queries, keys and values; what quantises these again bounds them, so
    that nothing further up counts.  What has no reader then is left for ``prune``.
    """
    stored = {each.name: each for each in graph.initializer}
    writer = writers(graph)
    bounded = {name for node in graph.node if node.op_type == "MatMulInteger" for name in node.output}
    new: list[onnx.NodeProto] = []
    for x, matrix, _, y, rounded in list(integer_products(graph)):
        if rounded is None or writer[x].op_type != "Mul" or list(stored[writer[x].input[1]].dims) != [1]:
            continue
        seen = set(bounded)
        every = {name for node in ancestors([x], writer, seen) for name in node.input} | seen
        if not every.isdisjoint(changed):
            of_matrix = Quantised(matrix.removesuffix(Quantised("").matrix))
            new += [*_quantised_rows(x, _MIDDLE), *_product(x, of_matrix, y, _MIDDLE)]
    if new:
        replace_nodes(graph, new)
        read = values_read(graph).keys() - stored.keys()
        graph.initializer.extend(each for each in _constants() if each.name in read)


class IntegerProduct(NamedTuple):
    """A product in integers: ``y`` (T, out) of ``x`` (T, in), both float32; ``matrix`` and ``scale`` as stored.

    ``rounded`` are x's bytes where its step is 1 for all rows and 128 the byte of 0; None where each row has its own.
    """

    x: str
    matrix: str
    scale: str
    y: str
    rounded: str | None


def integer_products(graph: onnx.GraphProto) -> Iterator[IntegerProduct]:
    """Each that ``quantise`` has written, in the order of their results."""
    writer = writers(graph)
    for node in graph.node:
        if (product := _integer_product(node.output[0], writer)) is not None:
            yield product


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
            largest = add.op("Max", largest, add.number(_LEAST_M, np.float32)) if past_gelu else largest
            # Of a row of zeros x / m is no number; what bytes it becomes is all one: its product is times m = 0.
            rows[x] = add.op("QuantizeLinear", add.op("Div", x, largest), step, zero), largest
        of_unit = add.op("MatMulIntegerToFloat", rows[x][0], matrix, step, scale, zero, domain=CONTRIB)
        add.op("Mul", of_unit, rows[x][1], output=y)
    if not add.nodes:
        return False
    replace_nodes(graph, add.nodes)
    graph.initializer.extend(add.initializers.values())
    prune(graph)
    use_contrib(model)
    return True


def _integer_product(y: str, writer: Mapping[str, onnx.NodeProto]) -> IntegerProduct | None:
    fixed = match_chain(y, writer, "Mul", "Cast", "MatMulInteger", "QuantizeLinear")
    if fixed and fixed[-1].input[1] == _UNIT_STEP:
        scaled, _, product, rounded = fixed
        return IntegerProduct(rounded.input[0], product.input[1], scaled.input[1], y, rounded.output[0])
    by_row = match_chain(y, writer, "Mul", "Mul", "Cast", "MatMulInteger", "QuantizeLinear")
    scale = writer.get(by_row[1].input[1]) if by_row else None
    if scale is None:
        return None
    *_, product, rounded = by_row
    return IntegerProduct(rounded.input[0], product.input[1], scale.input[1], y, None)


def dequantise_nodes(tensor: str, checkpoint: Checkpoint, written: set[str]) -> Iterator[onnx.NodeProto]:
    """Nodes that make a quantised tensor's float32 values, under its own name; what is ``written`` is left out."""
    stored, whole, scale = Quantised(tensor), f"{tensor}:float", f"{tensor}:column"
    if checkpoint.tensors.keys() & {stored.packed, stored.bytes}:
        yield from unpacking(stored, checkpoint, written)
        return
    if stored.table in checkpoint.tensors:
        yield _NODE("Cast", [stored.table], [whole], name=whole, to=TensorProto.FLOAT)
    else:
        yield _NODE("Cast", [stored.matrix], [f"{whole}:transposed"], name=f"{whole}:transposed", to=TensorProto.FLOAT)
        yield _NODE("Transpose", [f"{whole}:transposed"], [whole], name=whole, perm=[1, 0])
    yield _NODE("Unsqueeze", [stored.scale, "last_axis"], [scale], name=scale)
    if stored.columns in checkpoint.tensors:
        yield _NODE("Mul", [whole, stored.columns], [f"{whole}:rows"], name=f"{whole}:rows")
        whole = f"{whole}:rows"
    yield _NODE("Mul", [whole, scale], [tensor], name=tensor)


def _is_projection(node: onnx.NodeProto) -> bool:
    return node.op_type == "Gemm" and len(node.input) == 2


def _finite(values: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise BundleError(f"the checkpoint's {name} has values that are not finite; it cannot be quantised.")
    return values


def _constants() -> Iterator[TensorProto]:
    yield from ZEROS
    yield numpy_helper.from_array(np.array([-1]), "last_axis")
    yield numpy_helper.from_array(np.array(1, np.float32), _UNIT_STEP)
    yield numpy_helper.from_array(np.array(1e-30, np.float32), "least_scale")  # of a row of zeros
    for zero in (_MIDDLE, _PAST_ACTIVATION):
        yield numpy_helper.from_array(np.array(zero, np.uint8), f"zero_point_{zero}")
        yield numpy_helper.from_array(np.array(1 / (255 - zero), np.float32), f"step_up_{zero}")
        yield numpy_helper.from_array(np.array(-1 / zero, np.float32), f"step_down_{zero}")


def _quantised_rows(x: str, zero: int) -> list[onnx.NodeProto]:
    """Bytes [T, in] and scales [T]:  sx[t] = max(max x[t] / (255 - zx), -min x[t] / zx)."""
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("ReduceMax", [x, "last_axis"], f"{x}:highest", {"keepdims": 0}),
        ("ReduceMin", [x, "last_axis"], f"{x}:lowest", {"keepdims": 0}),
        ("Mul", [f"{x}:highest", f"step_up_{zero}"], f"{x}:step_up", {}),
        ("Mul", [f"{x}:lowest", f"step_down_{zero}"], f"{x}:step_down", {}),
        ("Max", [f"{x}:step_up", f"{x}:step_down", "least_scale"], f"{x}:scale", {}),
        ("Shape", [f"{x}:scale"], f"{x}:rows", {}),
        ("Expand", [f"zero_point_{zero}", f"{x}:rows"], f"{x}:zero_point", {}),
        ("QuantizeLinear", [x, f"{x}:scale", f"{x}:zero_point"], f"{x}:uint8", {"axis": 0}),
        ("Unsqueeze", [f"{x}:scale", "last_axis"], f"{x}:scales", {}),  # (T, 1)
        # The fusion wants a scale of x that is no constant, and one for all rows: 1, from what is only known in a run.
        ("ReduceMax", [f"{x}:scale"], f"{x}:top", {"keepdims": 0}),
        ("Div", [f"{x}:top", f"{x}:top"], f"{x}:one", {}),
    ]
    return [_NODE(op, inputs, [output], **more) for op, inputs, output, more in steps]


def _product(x: str, stored: Quantised, output: str, zero: int, *, fixed: bool = False) -> Iterator[onnx.NodeProto]:
    """(T, in) -> (T, out); without the last node, where rows have scales, ONNX Runtime's one MatMulIntegerToFloat."""
    integers, floats, scale, product = (f"{output}:{part}" for part in ("int32", "float", "scale", "product"))
    rounded, zero = (f"{x}:bytes", _MIDDLE) if fixed else (f"{x}:uint8", zero)
    yield _NODE("MatMulInteger", [rounded, stored.matrix, f"zero_point_{zero}"], [integers])
    yield _NODE("Cast", [integers], [floats], to=TensorProto.FLOAT)
    if fixed:
        yield _NODE("Mul", [floats, stored.scale], [output], name=output)
        return
    yield _NODE("Mul", [f"{x}:one", stored.scale], [scale])
    yield _NODE("Mul", [floats, scale], [product])
    yield _NODE("Mul", [product, f"{x}:scales"], [output], name=output)
