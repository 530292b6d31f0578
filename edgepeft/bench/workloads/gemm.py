"""The host's GEMM rate through ONNX Runtime: the yardstick that moves with the host's other load.

C = A B with A [1024, 768] and B [768, 3072] constant (prepacked, as weights are): the FFN's first
product of a base-size encoder on 1024 tokens.  One step is ``REPEATS`` of them.
"""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["FLOPS_PER_STEP", "REPEATS", "SHAPE", "prepare"]

SHAPE = _M, _K, _N = 1024, 768, 3072
REPEATS = 8  # 39 GFLOP: a tenth of a second on the host of the design's figures, above timer noise
FLOPS_PER_STEP = 2 * _M * _K * _N * REPEATS
_MODEL = f"""<ir_version: 10, opset_import: ["" : 20]>
gemm (float[{_M},{_K}] a) => (float[{_M},{_N}] c) {{ c = MatMul (a, b) }}"""


def prepare(job: Job) -> Prepared:
    """A session with one MatMul, and the step that runs it ``REPEATS`` times."""
    import numpy as np
    from onnx import numpy_helper, parser

    from edgepeft.runtime.session import plain_session

    source = np.random.default_rng(0)
    model = parser.parse_model(_MODEL)
    model.graph.initializer.append(numpy_helper.from_array(source.standard_normal((_K, _N), np.float32), "b"))
    session = plain_session(model, job.threads)
    feed = {"a": source.standard_normal((_M, _K), np.float32)}

    def step(batch: int) -> None:
        for _ in range(REPEATS):
            session.run(None, feed)

    return Prepared(step)
