"""The loss of a task's kind as nodes behind the logits: a mean over the rows, whose labels are an input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import TensorProto, helper

from edgepeft.graph.contract import Contract
from edgepeft.graph.names import LABELS, LOGITS, LOSS
from edgepeft.graph.predicates import closed, one_writer, values_stay

__all__ = ["add_loss"]

Nodes = list[tuple[str, list[str], str, dict[str, Any]]]
_ALL, _ROWS = "loss/columns", "loss/rows"  # [outputs], and how many rows as a number

_CROSS_ENTROPY: Nodes = [
    ("Shape", [LOGITS], "loss/n_outputs", {"start": 1, "end": 2}),
    ("Squeeze", ["loss/n_outputs"], "loss/n", {}),
    ("Range", ["loss/zero", "loss/n", "loss/one"], _ALL, {}),
    ("Unsqueeze", [LABELS, "loss/last"], "loss/labels", {}),
    ("Equal", ["loss/labels", _ALL], "loss/chosen", {}),
    ("LogSoftmax", [LOGITS], "loss/log_shares", {"axis": -1}),
    ("Where", ["loss/chosen", "loss/log_shares", "loss/nothing"], "loss/of_labels", {}),
    ("ReduceSum", ["loss/of_labels"], "loss/sum", {"keepdims": 0}),
    ("Neg", ["loss/sum"], "loss/total", {}),
]
_SQUARED_ERROR: Nodes = [
    ("Squeeze", [LOGITS, "loss/last"], "loss/numbers", {}),
    ("Sub", ["loss/numbers", LABELS], "loss/difference", {}),
    ("Mul", ["loss/difference", "loss/difference"], "loss/squares", {}),
    ("ReduceSum", ["loss/squares"], "loss/total", {"keepdims": 0}),
]
_KINDS: Mapping[bool, Nodes] = {False: _CROSS_ENTROPY, True: _SQUARED_ERROR}


@Contract(requires=[closed, one_writer], ensures=[closed, one_writer], keeps=[values_stay], mutates=True)
def add_loss(graph: onnx.GraphProto, kind: int, *, regression: bool) -> None:
    """Append the mean loss of ``logits`` [batch, outputs], of that element type, and the input ``labels`` [batch].

    Labels are int64 classes (cross entropy), or numbers where ``regression`` (mean squared error).
    """
    constants = {"loss/zero": 0, "loss/one": 1}
    for name, value in constants.items():
        graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [], [value]))
    graph.initializer.append(helper.make_tensor("loss/last", TensorProto.INT64, [1], [-1]))
    graph.initializer.append(helper.make_tensor("loss/nothing", kind, [], [0.0]))
    nodes: Nodes = [
        *_KINDS[regression],
        ("Shape", [LOGITS], "loss/n_rows", {"start": 0, "end": 1}),
        ("Squeeze", ["loss/n_rows"], "loss/count", {}),
        ("Cast", ["loss/count"], _ROWS, {"to": kind}),
        ("Div", ["loss/total", _ROWS], LOSS, {}),
    ]
    graph.node.extend(helper.make_node(op, inputs, [out], name=out, **more) for op, inputs, out, more in nodes)
    of_labels = kind if regression else TensorProto.INT64
    graph.input.append(helper.make_tensor_value_info(LABELS, of_labels, ["batch"]))
    graph.output.append(helper.make_tensor_value_info(LOSS, kind, []))
