"""The host's own speed, the yardsticks that move with its other load: products, memory copies, operators without work.

A product is C = A B with A [1024, 768] and B [768, 3072], the FFN's first of a base-size encoder on 1024 tokens.  Bytes
copied are counted once, not read plus written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from edgepeft.bench.planning.job import Job, Prepared

_M, _K, _N = 1024, 768, 3072
_PRODUCTS = 8  # 39 GFLOP: a tenth of a second on the host of the design's figures, above timer noise
GEMM_FLOPS = 2 * _M * _K * _N * _PRODUCTS
_MODEL = f"""<ir_version: 10, opset_import: ["" : 20]>
gemm (float[{_M},{_K}] a) => (float[{_M},{_N}] c) {{ c = MatMul (a, b) }}"""
_BLOCK = 64 << 20  # bytes; two of them fit a board of 512 MB
_COPIES = 4
COPIED_BYTES = _BLOCK * _COPIES
_SHORT, MORE_OPERATORS = 10, 1000
CHAINS = 20


def gemm(job: Job) -> Prepared:
    """Multiply through ONNX Runtime, B constant and prepacked as weights are."""
    import numpy as np
    from onnx import numpy_helper, parser

    from edgepeft.runtime.session import plain_session

    source = np.random.default_rng(0)
    model = parser.parse_model(_MODEL)
    model.graph.initializer.append(numpy_helper.from_array(source.standard_normal((_K, _N), np.float32), "b"))
    session = plain_session(model, job.threads)
    feed = {"a": source.standard_normal((_M, _K), np.float32)}

    def step(batch: int) -> None:
        for _ in range(_PRODUCTS):
            session.run(None, feed)

    return Prepared(step)


def gemm_pytorch(job: Job) -> Prepared:
    """The same products through PyTorch, whose library is not equally good everywhere (MKL on AMD)."""
    import torch

    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    a, b = torch.randn(_M, _K), torch.randn(_K, _N)

    def step(batch: int) -> None:
        with torch.inference_mode():
            for _ in range(_PRODUCTS):
                torch.mm(a, b)

    return Prepared(step)


def copy(job: Job) -> Prepared:
    """As tinymembench's "standard memcpy": blocks far beyond any cache, each of the job's threads its own."""
    import numpy as np

    n = _BLOCK // 8 // job.threads
    blocks = [(np.ones(n), np.zeros(n)) for _ in range(job.threads)]
    pool = ThreadPoolExecutor(job.threads)

    def copies(number: int) -> None:
        source, target = blocks[number]
        for _ in range(_COPIES):
            np.copyto(target, source)  # releases the interpreter's lock

    def step(batch: int) -> None:
        if job.threads == 1:
            copies(0)
        else:
            list(pool.map(copies, range(job.threads)))

    step(0)  # every page is there from now on
    return Prepared(step)


def operators(job: Job) -> Prepared:
    """Add one number in a chain: batch 1 is the long one, batch 0 the short one, so that a run's own cost drops out."""
    import numpy as np

    short, long = _session(_SHORT), _session(_SHORT + MORE_OPERATORS)
    feed = {"v0": np.ones((1, 1), np.float32)}

    def step(batch: int) -> None:
        for _ in range(CHAINS):
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
