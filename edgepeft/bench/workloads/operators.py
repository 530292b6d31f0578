"""What ONNX Runtime spends on an operator besides its work: a chain of additions of one number.

A step runs the long chain ``REPEATS`` times when asked for batch 1, the short one for batch 0; the difference over
``MORE`` operators is the overhead, and what a run costs by itself drops out.
"""

from __future__ import annotations

from typing import Any

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["ENGINE", "MORE", "REPEATS", "WORKLOAD", "prepare"]

ENGINE = "onnxruntime"
WORKLOAD = "operators"

_SHORT, MORE = 10, 1000
REPEATS = 20


def prepare(job: Job) -> Prepared:
    """Both sessions."""
    import numpy as np

    short, long = _session(_SHORT), _session(_SHORT + MORE)
    feed = {"v0": np.ones((1, 1), np.float32)}

    def step(batch: int) -> None:
        for _ in range(REPEATS):
            (long if batch else short).run(None, feed)

    return Prepared(step)


def _session(n: int) -> Any:
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    from edgepeft.runtime.session import session_options

    one = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
    nodes = [helper.make_node("Add", [f"v{i}", "one"], [f"v{i + 1}"]) for i in range(n)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in ("v0", f"v{n}")]
    graph = helper.make_graph(nodes, "operators", values[:1], values[1:], [one])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return ort.InferenceSession(model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"])
