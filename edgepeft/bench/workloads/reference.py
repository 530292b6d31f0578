"""A profile's reference: a whole encoder of its shapes through ONNX Runtime, batch 1, random weights.

``settings`` of the job are the shapes of :class:`edgepeft.device.profiles.ReferenceEncoder`: ``n_layers``,
``hidden_size`` d, ``intermediate_size``, ``n_heads``, ``n_tokens`` t, and ``patch_values`` p where an image's t - 1
patches come in by a matrix [p, d]. Every layer has weights of its own, as a model's do: shared ones would stay in the
cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepeft.bench.planning.job import Job, Prepared


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
