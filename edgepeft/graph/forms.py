"""Passes: a task's model in the form that transformers' class for its kind has, for other readers.

Letters: B batch, S padded length, T real tokens, K choices of a row, C outputs, d hidden size; a prompt's P tokens
stand in front of each row, and are among T.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.graph.contract import Contract, all_used, gives_logits, same_inputs, well_formed
from edgepeft.graph.names import END, LOGITS, START, STATES
from edgepeft.graph.prompt import LENGTH, prompt_in
from edgepeft.graph.protos import copied, read_instead, replace, set_aside

__all__ = ["as_choices", "as_starts_and_ends", "logits_as_rows", "own_states"]

_Nodes = Sequence[tuple[str, list[str], list[str], dict[str, Any]]]
_MASK = "attention_mask"


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


@Contract(requires=[well_formed, gives_logits], ensures=[well_formed, all_used, gives_logits], keeps=[same_inputs])
def logits_as_rows(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with logits (B, S, C) in place of (T, C); one whose logits are of rows stays as it is."""
    changed = copied(model)
    graph, output = changed.graph, changed.graph.output[0]
    if output.type.tensor_type.shape.dim[0].dim_param != "tokens":
        return changed
    packed = f"{LOGITS}/packed"
    set_aside(graph, LOGITS, packed)
    prompt = prompt_in(graph)
    for name, values in {"zero": 0, "one": 1, "flat": [-1], "axis": [1], "last": [2], "prompt": [prompt]}.items():
        graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), f"rows/{name}"))
    graph.node.extend(helper.make_node(op, given, [out], name=out, **more) for op, given, out, more in _of_rows(packed))
    columns = output.type.tensor_type.shape.dim[-1].dim_value
    of_rows = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", "sequence", columns])
    replace(graph.output, [of_rows])
    return changed


def _of_rows(packed: str) -> list[tuple[str, list[str], str, dict[str, Any]]]:
    """Each place of a row takes the token that stands there; padding borrows a neighbour's, times 0."""
    return [
        ("Cast", [_MASK], "rows/is_real", {"to": TensorProto.BOOL}),
        ("Cast", ["rows/is_real"], "rows/real", {"to": TensorProto.INT64}),  # (B, S) of 0, 1
        ("Shape", [_MASK], "rows/shape", {}),
        ("Shape", [_MASK], "rows/batch", {"start": 0, "end": 1}),
        ("Squeeze", ["rows/batch"], "rows/n", {}),
        ("Add", ["rows/n", "rows/one"], "rows/n_and_one", {}),
        ("Range", ["rows/one", "rows/n_and_one", "rows/one"], "rows/numbers", {}),  # (B) from 1
        ("Unsqueeze", ["rows/numbers", "rows/axis"], "rows/column", {}),
        ("Mul", ["rows/column", "rows/prompt"], "rows/prompts", {}),  # (B, 1): prompts' tokens up to each row
        ("Reshape", ["rows/real", "rows/flat"], "rows/all", {}),
        ("CumSum", ["rows/all", "rows/zero"], "rows/counted", {}),
        ("Reshape", ["rows/counted", "rows/shape"], "rows/count", {}),
        ("Add", ["rows/count", "rows/prompts"], "rows/next", {}),
        ("Sub", ["rows/next", "rows/one"], "rows/last_real", {}),
        ("Max", ["rows/last_real", "rows/zero"], "rows/place", {}),  # (B, S)
        ("Gather", [packed, "rows/place"], "rows/padded", {}),  # (B, S, C)
        ("Cast", ["rows/real"], "rows/number", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", ["rows/number", "rows/last"], "rows/factor", {}),
        ("Mul", ["rows/padded", "rows/factor"], LOGITS, {}),
    ]
