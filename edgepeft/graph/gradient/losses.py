"""The loss of a task's kind as nodes behind the logits: a sum over the rows, whose labels and shares are inputs.

The kind gives the nodes up to the sum of each row's terms.  A row's share is 1 over the terms of all the step's rows,
or what its label weighs over what they all weigh (PyTorch's weighted mean).  So the losses and the gradients of a
step's parts are simply added.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from edgepeft.data.row_grouping import LOWEST
from edgepeft.graph.contract import Contract
from edgepeft.graph.names import LABELS, LOGITS, LOSS, PLACES, POOLING, SHARES
from edgepeft.graph.predicates import closed, one_writer, values_stay
from edgepeft.tasks.base import Nodes, TaskType

__all__ = ["add_loss"]

_OF_ROWS, _OF_TEXTS = "loss/logits", "loss/pooled"


@Contract(requires=[closed, one_writer], ensures=[closed, one_writer], keeps=[values_stay], mutates=True)
def add_loss(graph: onnx.GraphProto, element: int, kind: TaskType) -> None:
    """Append the kind's loss of ``logits``, of that element type, and the inputs ``labels`` and ``shares`` [batch], or
    [tokens] where the kind's labels are.

    Its nodes may read the constants ``loss/zero``, ``loss/one`` and ``loss/last`` (-1), int64, and ``loss/nothing`` (0)
    of the logits' type.  Where a row has several token rows, an input ``places`` [rows, most] says which are its own,
    and the loss is of logits [rows, most, outputs]; labels and shares are of rows then.  Where texts are read in
    windows whose logits are pooled, an input ``pooling`` [texts, batch] of the logits' type takes their means first.
    """
    of_texts = _OF_TEXTS if kind.pooled else LOGITS
    loss = kind.loss_graph(_OF_ROWS if kind.several else of_texts, LABELS)
    constants = {"loss/zero": 0, "loss/one": 1}
    for name, value in constants.items():
        graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [], [value]))
    graph.initializer.append(helper.make_tensor("loss/last", TensorProto.INT64, [1], [-1]))
    graph.initializer.append(helper.make_tensor("loss/nothing", element, [], [0.0]))
    nodes: Nodes = [
        *([("MatMul", [POOLING, LOGITS], _OF_TEXTS, {})] if kind.pooled else []),
        *(_grouping(graph, element, of_texts) if kind.several else []),
        *loss.nodes,
        ("Mul", ["loss/of_rows", SHARES], "loss/parts", {}),
        ("ReduceSum", ["loss/parts"], LOSS, {"keepdims": 0}),
    ]
    graph.node.extend(helper.make_node(op, inputs, [out], name=out, **more) for op, inputs, out, more in nodes)
    rows = "rows" if kind.several or kind.pooled else loss.dims[0]  # or tokens, where each has a loss of its own
    if kind.pooled:
        texts = "texts" if kind.several else "rows"
        graph.input.append(helper.make_tensor_value_info(POOLING, element, [texts, "batch"]))
    of_labels = TensorProto.INT64 if loss.integers else element
    graph.input.append(helper.make_tensor_value_info(LABELS, of_labels, (rows, *loss.dims[1:])))
    graph.input.append(helper.make_tensor_value_info(SHARES, element, [rows]))
    graph.output.append(helper.make_tensor_value_info(LOSS, element, []))


def _grouping(graph: onnx.GraphProto, element: int, logits: str) -> Nodes:
    """[token rows, outputs] -> [rows, most, outputs], LOWEST where a row has no such token row."""
    graph.input.append(helper.make_tensor_value_info(PLACES, TensorProto.INT64, ["rows", "most"]))
    graph.initializer.append(helper.make_tensor("loss/lowest", element, [], [LOWEST]))
    return [
        ("Max", [PLACES, "loss/zero"], "loss/places", {}),
        ("Gather", [logits, "loss/places"], "loss/gathered", {"axis": 0}),
        ("Unsqueeze", [PLACES, "loss/last"], "loss/place", {}),
        ("Less", ["loss/place", "loss/zero"], "loss/missing", {}),
        ("Where", ["loss/missing", "loss/lowest", "loss/gathered"], _OF_ROWS, {}),
    ]
