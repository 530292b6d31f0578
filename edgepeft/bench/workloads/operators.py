"""What ONNX Runtime spends on an operator besides its work: a chain of additions of one number.

A step runs the long chain ``REPEATS`` times when asked for batch 1, the short one for batch 0; the difference over
``MORE`` operators is the overhead, and what a run costs by itself drops out.
"""

from __future__ import annotations

from typing import Any

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["MORE", "REPEATS", "prepare"]

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
    from onnx import parser

    from edgepeft.runtime.session import plain_session

    chain = "\n".join(f"v{i + 1} = Add (v{i}, one)" for i in range(n))
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> operators (float[1,1] v0) => (float[1,1] v{n})'
        f"<float[1,1] one = {{1}}> {{ {chain} }}"
    )
    return plain_session(model, 1)
