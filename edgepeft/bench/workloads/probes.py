"""Yardsticks of a host's speed: products, memory copies, operators without work, and a profile's whole encoder.

A product is C = A B with A [1024, 768] and B [768, 3072], the FFN's first of a base-size encoder on 1024 tokens.  Bytes
copied are counted once, not read plus written.

The encoder is a profile's reference, batch 1, random weights.  ``settings`` of its job are the shapes of
:class:`edgepeft.device.profiles.ReferenceEncoder`: ``n_layers``, ``hidden_size`` d, ``intermediate_size``, ``n_heads``,
``n_tokens`` t, and ``patch_values`` p where an image's t - 1 patches come in by a matrix [p, d].  Every layer has
weights of its own, as a model's do: shared ones would stay in the cache.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

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
    feed = {model.graph.input[0].name: np.random.default_rng(1).standard_normal(shape, np.float32)}
    del model

    def step(batch: int) -> None:
        session.run(None, feed)

    return Prepared(step)


# A layer of the encoder, post-norm; n is its number, x{n} its input [t, d].
_LAYER = """
q{n}_ = Gemm (x{n}, q{n}_w, q{n}_b)  q{n}s = Reshape (q{n}_, split)  q{n} = Transpose <perm = [1, 0, 2]> (q{n}s)
v{n}_ = Gemm (x{n}, v{n}_w, v{n}_b)  v{n}s = Reshape (v{n}_, split)  v{n} = Transpose <perm = [1, 0, 2]> (v{n}s)
k{n}_ = Gemm (x{n}, k{n}_w, k{n}_b)  k{n}s = Reshape (k{n}_, split)  k{n} = Transpose <perm = [1, 2, 0]> (k{n}s)
scaled{n} = Mul (q{n}, scale)  scores{n} = MatMul (scaled{n}, k{n})  shares{n} = Softmax <axis = -1> (scores{n})
heads{n} = MatMul (shares{n}, v{n})  mixed{n} = Transpose <perm = [1, 0, 2]> (heads{n})
joined{n} = Reshape (mixed{n}, whole)  o{n} = Gemm (joined{n}, o{n}_w, o{n}_b)  first{n} = Add (x{n}, o{n})
middle{n} = LayerNormalization <axis = -1, epsilon = 0.000000000001> (first{n}, norm{n}_w, norm{n}_b)
inner{n} = Gemm (middle{n}, i{n}_w, i{n}_b)  active{n} = Gelu (inner{n})
f{n} = Gemm (active{n}, f{n}_w, f{n}_b)  second{n} = Add (middle{n}, f{n})
x{next} = LayerNormalization <axis = -1, epsilon = 0.000000000001> (second{n}, last{n}_w, last{n}_b)"""


def reference_encoder(
    *, n_layers: int, hidden_size: int, intermediate_size: int, n_heads: int, n_tokens: int, patch_values: int = 0
) -> tuple[onnx.ModelProto, tuple[int, int]]:
    """The model, and the shape of its input: [t, d], or [t - 1, p] where patches come in."""
    source, d, f = np.random.default_rng(0), hidden_size, intermediate_size
    weights: dict[str, Any] = {
        "split": np.array([n_tokens, n_heads, d // n_heads]),
        "whole": np.array([n_tokens, d]),
        "scale": np.float32((d // n_heads) ** -0.5),
    }

    def linear(name: str, n_in: int, n_out: int) -> None:
        weights[f"{name}_w"] = source.standard_normal((n_in, n_out), np.float32) / np.float32(n_in) ** 0.5
        weights[f"{name}_b"] = np.zeros(n_out, np.float32)

    shape, x, begin = (n_tokens, d), "x0", ""
    if patch_values:
        shape, x = (n_tokens - 1, patch_values), "patches"
        begin = "p = Gemm (patches, p_w, p_b)  x0 = Concat <axis = 0> (first, p)"
        weights["first"] = np.zeros((1, d), np.float32)
        linear("p", patch_values, d)
    for n in range(n_layers):
        for name, n_in, n_out in (("q", d, d), ("v", d, d), ("k", d, d), ("o", d, d), ("i", d, f), ("f", f, d)):
            linear(f"{name}{n}", n_in, n_out)
        for name in (f"norm{n}", f"last{n}"):
            weights |= {f"{name}_w": np.ones(d, np.float32), f"{name}_b": np.zeros(d, np.float32)}
    layers = "".join(_LAYER.format(n=n, next=n + 1) for n in range(n_layers))
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> reference (float[{shape[0]}, {shape[1]}] {x}) => '
        f"(float[{n_tokens}, {d}] x{n_layers}) {{ {begin} {layers} }}"
    )
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items())
    return model, shape
