"""The loss of a task's kind as nodes behind the logits: a sum over the rows, whose labels and shares are inputs.

A row's share is 1 over the rows of the step, or what its label weighs over what all the step's rows weigh (PyTorch's
weighted mean).  So the losses and the gradients of a step's parts are simply added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import TensorProto, helper

from edgepeft.graph.contract import Contract
from edgepeft.graph.names import LABELS, LOGITS, LOSS, SHARES
from edgepeft.graph.predicates import closed, one_writer, values_stay

__all__ = ["add_loss"]

Nodes = list[tuple[str, list[str], str, dict[str, Any]]]
_ALL = "loss/columns"  # [outputs]

_CROSS_ENTROPY: Nodes = [
    ("Shape", [LOGITS], "loss/n_outputs", {"start": 1, "end": 2}),
    ("Squeeze", ["loss/n_outputs"], "loss/n", {}),
    ("Range", ["loss/zero", "loss/n", "loss/one"], _ALL, {}),
    ("Unsqueeze", [LABELS, "loss/last"], "loss/labels", {}),
    ("Equal", ["loss/labels", _ALL], "loss/chosen", {}),
    ("LogSoftmax", [LOGITS], "loss/log_shares", {"axis": -1}),
    ("Where", ["loss/chosen", "loss/log_shares", "loss/nothing"], "loss/of_labels", {}),
    ("ReduceSum", ["loss/of_labels", "loss/last"], "loss/likelihoods", {"keepdims": 0}),
    ("Neg", ["loss/likelihoods"], "loss/of_rows", {}),
]
_SQUARED_ERROR: Nodes = [
    ("Squeeze", [LOGITS, "loss/last"], "loss/numbers", {}),
    ("Sub", ["loss/numbers", LABELS], "loss/difference", {}),
    ("Mul", ["loss/difference", "loss/difference"], "loss/of_rows", {}),
]
_KINDS: Mapping[bool, Nodes] = {False: _CROSS_ENTROPY, True: _SQUARED_ERROR}


@Contract(requires=[closed, one_writer], ensures=[closed, one_writer], keeps=[values_stay], mutates=True)
def add_loss(graph: onnx.GraphProto, kind: int, *, regression: bool) -> None:
    """Append the loss of ``logits`` [batch, outputs], of that element type, and the inputs ``labels`` and ``shares``.

    Both are [batch]. Labels are int64 classes (cross entropy), or numbers where ``regression`` (squared error).
    """
    constants = {"loss/zero": 0, "loss/one": 1}
    for name, value in constants.items():
        graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [], [value]))
    graph.initializer.append(helper.make_tensor("loss/last", TensorProto.INT64, [1], [-1]))
    graph.initializer.append(helper.make_tensor("loss/nothing", kind, [], [0.0]))
    nodes: Nodes = [
        *_KINDS[regression],
        ("Mul", ["loss/of_rows", SHARES], "loss/parts", {}),
        ("ReduceSum", ["loss/parts"], LOSS, {"keepdims": 0}),
    ]
    graph.node.extend(helper.make_node(op, inputs, [out], name=out, **more) for op, inputs, out, more in nodes)
    inputs = {LABELS: kind if regression else TensorProto.INT64, SHARES: kind}
    graph.input.extend(helper.make_tensor_value_info(name, of, ["batch"]) for name, of in inputs.items())
    graph.output.append(helper.make_tensor_value_info(LOSS, kind, []))
