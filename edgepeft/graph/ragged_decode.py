"""Pass: texts of unequal lengths go on in one step of the decoder.

Their cached keys and values end together, the newest last, so how far back a token lies is the same number in each row
and the bias by distance stays what it is; what stands before a shorter text's first token is hidden from it:

    softmax(q k^T + b + h),   h [N, 1, 1, L + 1] of 0, and of the lowest number in front of a text

Letters: N texts, L tokens of the longest before this step.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from edgepeft.backbones.text import CROSS_BIAS, PAST
from edgepeft.graph.contract import Contract, standard, values_stay, well_formed
from edgepeft.graph.protos import copied, replace, writers

HIDDEN = "past.bias"
_KEYS = f"{PAST}.key."


@Contract(requires=[well_formed, standard], ensures=[well_formed, standard], keeps=[values_stay])
def hide_fronts(decoder: onnx.ModelProto) -> onnx.ModelProto | None:
    """The decoder's graph with one input more, ``HIDDEN``; None where its attention is written in no way known here."""
    model = copied(decoder)
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
    shape = ("texts", 1, 1, "written_and_one")
    model.graph.input.append(helper.make_tensor_value_info(HIDDEN, TensorProto.FLOAT, shape))
    return model


def _hiding(bias: str) -> str:
    return f"{HIDDEN}/{bias}"
