"""Yardsticks of a host's speed: products, memory copies, operators without work, and a profile's whole encoder.

A product is C = A B with A [1024, 768] and B [768, 3072], the FFN's first of a base-size encoder on 1024 tokens.  Bytes
copied are counted once, not read plus written.

The encoder is a profile's reference, batch 1, random weights.  ``settings`` of its job are the shapes of
:class:`edgepeft.device.profiles.ReferenceEncoder`: ``n_layers``, ``hidden_size`` d, ``intermediate_size``, ``n_heads``,
``n_tokens`` t, and ``patch_values`` p where an image's t - 1 patches come in by a matrix [p, d].  Every layer has
weights of its own, as a model's do: shared ones would stay in the cache.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

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
    short, long = _session(_SHORT), _session(_SHORT + MORE_OPERATORS)
    feed = {"v0": np.ones((1, 1), np.float32)}

    def step(batch: int) -> None:
        for _ in range(CHAINS):
            (long if batch else short).run(None, feed)

    return Prepared(step)


def _session(n: int) -> Any:
    from edgepeft.runtime.session import plain_session

    chain = "\n".join(f"v{i + 1} = Add (v{i}, one)" for i in range(n))
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> operators (float[1,1] v0) => (float[1,1] v{n})'
        f"<float[1,1] one = {{1}}> {{ {chain} }}"
    )
    return plain_session(model, 1)


def reference(job: Job) -> Prepared:
    """The session, and a step that is one pass."""
    from edgepeft.runtime.session import plain_session

    model, shape = reference_encoder(**job.settings)
    session = plain_session(model, job.threads)
    feed = {"x": np.random.default_rng(1).standard_normal(shape, np.float32)}
    del model

    def step(batch: int) -> None:
        session.run(None, feed)

    return Prepared(step)


class _Graph:
    """Nodes and random weights; every method returns the name of what it made."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self._source = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, values: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def linear(self, x: str, n_in: int, n_out: int) -> str:
        """x W + b, [t, n_in] -> [t, n_out]."""
        weight = self._source.standard_normal((n_in, n_out), np.float32) / np.float32(n_in) ** 0.5
        return self.op("Gemm", x, self.constant(weight), self.constant(np.zeros(n_out, np.float32)))

    def norm(self, x: str, size: int) -> str:
        one, zero = self.constant(np.ones(size, np.float32)), self.constant(np.zeros(size, np.float32))
        return self.op("LayerNormalization", x, one, zero, axis=-1, epsilon=1e-12)

    def heads(self, x: str, shape: str, *order: int) -> str:
        """[t, d] -> [heads, t, d / heads], or as ``order`` says."""
        return self.op("Transpose", self.op("Reshape", x, shape), perm=list(order))


def reference_encoder(
    *, n_layers: int, hidden_size: int, intermediate_size: int, n_heads: int, n_tokens: int, patch_values: int = 0
) -> tuple[onnx.ModelProto, tuple[int, int]]:
    """The model, and the shape of its input ``x``: [t, d], or [t - 1, p] where patches come in."""
    graph, d = _Graph(), hidden_size
    shape = (n_tokens - 1, patch_values) if patch_values else (n_tokens, d)
    x = "x"
    if patch_values:
        first = graph.constant(np.zeros((1, d), np.float32))
        x = graph.op("Concat", first, graph.linear("x", patch_values, d), axis=0)
    split = graph.constant(np.array([n_tokens, n_heads, d // n_heads], np.int64))
    joined = graph.constant(np.array([n_tokens, d], np.int64))
    scale = graph.constant(np.float32((d // n_heads) ** -0.5))
    for _ in range(n_layers):
        query, value = (graph.heads(graph.linear(x, d, d), split, 1, 0, 2) for _ in range(2))
        key = graph.heads(graph.linear(x, d, d), split, 1, 2, 0)
        scores = graph.op("Softmax", graph.op("MatMul", graph.op("Mul", query, scale), key), axis=-1)
        mixed = graph.op("Transpose", graph.op("MatMul", scores, value), perm=[1, 0, 2])
        attended = graph.linear(graph.op("Reshape", mixed, joined), d, d)
        x = graph.norm(graph.op("Add", x, attended), d)
        inner = graph.op("Gelu", graph.linear(x, d, intermediate_size))
        x = graph.norm(graph.op("Add", x, graph.linear(inner, intermediate_size, d)), d)
    made = helper.make_graph(
        graph.nodes,
        "reference",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [n_tokens, d])],
        graph.weights,
    )
    return helper.make_model(made, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), shape
