"""Passes: a task's model in the form that transformers' class for its kind has, for other readers.

Letters: B batch, S padded length, K choices of a row, d hidden size; a prompt's P tokens stand in front of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.graph.contract import Contract
from edgepeft.graph.names import END, LOGITS, START, STATES
from edgepeft.graph.predicates import all_used, gives_logits, same_inputs, well_formed
from edgepeft.graph.prompt import LENGTH, prompt_in
from edgepeft.graph.protos import copied, read_instead, replace, set_aside

__all__ = ["as_choices", "as_starts_and_ends", "own_states"]

_Nodes = Sequence[tuple[str, list[str], list[str], dict[str, Any]]]


@Contract(requires=[well_formed, gives_logits], ensures=[well_formed, all_used], keeps=[same_inputs])
def as_starts_and_ends(model: onnx.ModelProto, threshold: float) -> onnx.ModelProto:
    """The same model with ``start_logits`` and ``end_logits`` (B, S) in place of logits (B, S, 2).

    ``threshold`` is taken from the start at each row's first token, which stands for no answer: that is the best one
    where its score is above the best span's by more than the threshold.
    """
    changed, both = _renamed(model, LOGITS), f"{LOGITS}/both"
    graph = changed.graph
    _add_constants(graph, {"zero": 0, "one": 1, "last": [2]})
    graph.initializer.append(numpy_helper.from_array(np.array(threshold, np.float32), "forms/threshold"))
    nodes: _Nodes = [
        ("Split", [both], ["forms/start", "forms/end"], {"axis": 2, "num_outputs": 2}),  # (B, S, 1) twice
        ("Squeeze", ["forms/end", "forms/last"], [END], {}),
        ("Squeeze", ["forms/start", "forms/last"], ["forms/starts"], {}),
        ("Shape", [both], ["forms/length"], {"start": 1, "end": 2}),
        ("Squeeze", ["forms/length"], ["forms/n"], {}),
        ("Range", ["forms/zero", "forms/n", "forms/one"], ["forms/places"], {}),  # (S)
        ("Equal", ["forms/places", "forms/zero"], ["forms/first"], {}),
        ("Cast", ["forms/first"], ["forms/share"], {"to": TensorProto.FLOAT}),
        ("Mul", ["forms/share", "forms/threshold"], ["forms/less"], {}),
        ("Sub", ["forms/starts", "forms/less"], [START], {}),
    ]
    _append(graph, nodes)
    of_rows = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "sequence"]) for n in (START, END))
    replace(graph.output, of_rows)
    return changed


@Contract(requires=[well_formed, gives_logits], ensures=[well_formed, all_used, gives_logits])
def as_choices(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with inputs (B, K, S) in place of (B K, S), and logits (B, K) in place of (B K, 1)."""
    changed = _renamed(model, LOGITS)
    graph = changed.graph
    names = [value.name for value in graph.input]
    read_instead(graph, {name: f"forms/{name}" for name in names})
    _add_constants(graph, {"any": [-1]})
    nodes: _Nodes = [
        ("Shape", [names[0]], ["forms/length"], {"start": 2, "end": 3}),
        ("Concat", ["forms/any", "forms/length"], ["forms/flat"], {"axis": 0}),
        ("Shape", [names[0]], ["forms/rows"], {"start": 0, "end": 2}),
    ]
    first = helper.make_graph([], "", [], [])
    _append(first, [*nodes, *(("Reshape", [name, "forms/flat"], [f"forms/{name}"], {}) for name in names)])
    replace(graph.node, [*first.node, *graph.node])
    _append(graph, [("Reshape", [f"{LOGITS}/both", "forms/rows"], [LOGITS], {})])
    shape = ["batch", "choices", "sequence"]
    replace(graph.input, [helper.make_tensor_value_info(n, TensorProto.INT64, shape) for n in names])
    replace(graph.output, [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, shape[:2])])
    return changed


@Contract(requires=[well_formed], ensures=[well_formed, all_used], keeps=[same_inputs])
def own_states(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with ``last_hidden_state`` (B, S, d) of each row's own tokens in place of (B, P + S, d)."""
    if not prompt_in(model.graph):
        return copied(model)
    changed = _renamed(model, STATES)
    _add_constants(changed.graph, {"end": [np.iinfo(np.int64).max], "axis": [1]})
    _append(changed.graph, [("Slice", [f"{STATES}/both", LENGTH, "forms/end", "forms/axis"], [STATES], {})])
    return changed


def _renamed(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """A copy that gives the value as ``<output>/both``."""
    changed = copied(model)
    set_aside(changed.graph, output, f"{output}/both")
    return changed


def _add_constants(graph: onnx.GraphProto, values: dict[str, Any]) -> None:
    for name, value in values.items():
        graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), f"forms/{name}"))


def _append(graph: onnx.GraphProto, nodes: _Nodes) -> None:
    graph.node.extend(helper.make_node(op, given, out, name=out[0], **more) for op, given, out, more in nodes)
