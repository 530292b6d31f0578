"""Pass: texts of unequal lengths go on in one step of the decoder.

Their cached keys and values end together, the newest last, so how far back a token lies is the same number in each row
and the bias by distance stays what it is; what stands before a shorter text's first token is hidden from it:

    softmax(q k^T + b + h),   h [N, 1, 1, L + 1] of 0, and of the lowest number in front of a text

Letters: N texts, L tokens of the longest before this step.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.text import CACHED, CROSS_BIAS, OWN_BIAS, PAST
from edgepeft.graph.contract import Contract, standard, values_stay, well_formed
from edgepeft.graph.protos import copied, replace, writers

__all__ = ["HIDDEN", "hide_fronts"]

HIDDEN = "past.bias"
_KEYS = f"{PAST}.key."


@Contract(requires=[well_formed, standard], ensures=[well_formed, standard], keeps=[values_stay])
def hide_fronts(decoder: onnx.ModelProto) -> onnx.ModelProto | None:
    """The decoder's graph with one input more, ``HIDDEN``; None where its attention is written in no way known here."""
    model = copied(decoder)
    if OWN_BIAS in writers(model.graph):
        _of_one_stack(model.graph)
        return model
    writer, layers = writers(model.graph), [value for value in model.graph.input if value.name.startswith(_KEYS)]
    softmaxes = [writer.get(node.input[0]) for node in model.graph.node if node.op_type == "Softmax"]
    # A delta's own nodes stay as they are.
    sums = [
        node for node in softmaxes if node is not None and node.op_type == "Add" and not node.name.startswith("delta/")
    ]
    itself = [node for node in sums if node.input[1] != CROSS_BIAS]
    biases = {node.input[1] for node in itself}
    if len(sums) != 2 * len(layers) or len(itself) != len(layers) or not biases <= set(writer):
        return None
    for node in itself:
        node.input[1] = _hiding(node.input[1])
    nodes = []
    for node in model.graph.node:
        more = [_hiding(name) for name in node.output if name in biases]
        nodes += [node, *(helper.make_node("Add", [node.output[0], HIDDEN], [name], name=name) for name in more)]
    replace(model.graph.node, nodes)
    _take_hidden(model.graph)
    return model


def _of_one_stack(graph: onnx.GraphProto) -> None:
    """A decoder that goes on with what it read says itself what it adds to scores of its own text, and its place."""
    counted = [
        helper.make_node("Equal", [HIDDEN, f"{HIDDEN}/none"], [f"{HIDDEN}/shown"]),
        helper.make_node("Cast", [f"{HIDDEN}/shown"], [f"{HIDDEN}/numbers"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", [f"{HIDDEN}/numbers", f"{HIDDEN}/axes"], [f"{HIDDEN}/with_new"], keepdims=0),
        helper.make_node("Sub", [f"{HIDDEN}/with_new", f"{HIDDEN}/one"], [CACHED]),  # (N)
        helper.make_node("Identity", [HIDDEN], [OWN_BIAS]),
    ]
    kept = [node for node in graph.node if not {CACHED, OWN_BIAS} & {*node.output}]
    replace(graph.node, [*counted, *kept])
    constants = {"axes": np.array([1, 2, 3]), "one": np.array(1), "none": np.array(0, np.float32)}
    graph.initializer.extend(numpy_helper.from_array(value, f"{HIDDEN}/{name}") for name, value in constants.items())
    _take_hidden(graph)


def _take_hidden(graph: onnx.GraphProto) -> None:
    shape = ("texts", 1, 1, "written_and_one")
    graph.input.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, shape))


def _hiding(bias: str) -> str:
    return f"{HIDDEN}/{bias}"
