"""Pass: logits of packed tokens as rows, [batch, sequence, outputs], 0 where there is no token, for other readers.

Letters: B batch, S padded length, T real tokens, a prompt's P for each row among them, C outputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.graph.contract import Contract
from edgepeft.graph.names import LOGITS
from edgepeft.graph.predicates import all_used, gives_logits, same_inputs, well_formed
from edgepeft.graph.prompt import prompt_in
from edgepeft.graph.protos import copied, replace, set_aside

__all__ = ["logits_as_rows"]

_MASK = "attention_mask"


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
    graph.node.extend(helper.make_node(op, given, [out], name=out, **more) for op, given, out, more in _nodes(packed))
    columns = output.type.tensor_type.shape.dim[-1].dim_value
    of_rows = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", "sequence", columns])
    replace(graph.output, [of_rows])
    return changed


def _nodes(packed: str) -> list[tuple[str, list[str], str, dict[str, Any]]]:
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
