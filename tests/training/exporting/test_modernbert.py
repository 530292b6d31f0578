"""A bundle of ModernBERT, in float32 and in 8 bits: what its tasks answer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from deltas import TEXTS, bundled, random_delta
from tiny import REFERENCES
from tolerance import exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle
from edgepeft.runtime.runtime import Runtime

# A method for each way to join a backbone: parts of a product, prompts, matrices.
KINDS = {
    "lora": {"roles": ("query", "value", "ffn_gate")},
    "prompt-t": {"length": 5},
    "full": {},
}
LONG = [Text(" ".join(f"w{5 + (i * 11 + j) % 50}" for j in range(140 + 23 * i))) for i in range(3)]  # several blocks


@pytest.fixture(scope="module")
def backbone(tiny):
    return open_backbone(
        str(tiny("modernbert", vocab_size=1152, max_position_embeddings=512, classifier_pooling="mean"))
    )


@pytest.fixture(scope="module")
def deltas(backbone):
    return {name: random_delta(backbone, name, name, None, settings=settings) for name, settings in KINDS.items()}


@pytest.fixture(scope="module", params=["fp32", "int8"])
def exported(request, backbone, deltas, tmp_path_factory):
    return request.param, bundled(deltas, backbone, tmp_path_factory.mktemp(request.param), request.param)


def rows(backbone, texts, length):
    return backbone.encoder().encode(texts, length).inputs


def test_every_kind_of_task_answers_as_pytorch_does(exported, backbone, deltas):
    dtype, bundle = exported
    model, runtime = load_model(backbone, REFERENCES["modernbert"]), Runtime(bundle, threads=1)
    for name, delta in deltas.items():
        for texts, length in ((TEXTS[:20], 40), (LONG, 400)):
            inputs = rows(backbone, texts, length)
            found, exact = runtime.logits(name, inputs), exact_logits(delta, model, inputs)
            if dtype == "fp32" or name == "full":  # its own matrices are multiplied in float32
                exact.require(found, name)
            else:
                noise, signal = np.abs(found - exact.value).max(), np.ptp(exact.value)
                assert noise < 0.15 and signal > 3 * noise, (name, noise, signal)


def test_both_fused_products_are_in_8_bits(exported):
    dtype, bundle = exported
    nodes = Bundle(bundle).graph("lora").graph.node
    products = {"fp32": "Gemm", "int8": "MatMulInteger"}
    assert sum(node.op_type == products[dtype] and "layers." in node.input[1] for node in nodes) == 3 * 4
    if dtype == "int8":
        stored = onnx.load(bundle / "backbone.onnx", load_external_data=False).graph.initializer
        assert any(tensor.name == "layers.1.attn.Wqkv.weight:int8:transposed" for tensor in stored)
