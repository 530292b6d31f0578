"""A bundle of ALBERT, in float32 and in 8 bits: layers that are one set of tensors, told apart where tasks attach."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from deltas import TEXTS, bundled, random_delta
from onnx import TensorProto
from safetensors.torch import save_file
from tolerance import exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import methods
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

# Modules in one layer of the two that share a place; the tensors themselves.
KINDS = {"pfeiffer": {"leave_out": (0,)}, "full": {}}
FFN = "encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"


@pytest.fixture(scope="module")
def backbone(tiny):
    return open_backbone(str(tiny("albert", vocab_size=1152)))


@pytest.fixture(scope="module")
def deltas(backbone):
    return {
        name: random_delta(backbone, name, name, None, seed=7, settings=settings) for name, settings in KINDS.items()
    }


@pytest.fixture(scope="module", params=["fp32", "int8"])
def exported(request, backbone, deltas, tmp_path_factory):
    return request.param, bundled(deltas, backbone, tmp_path_factory.mktemp(request.param), request.param)


def test_every_kind_of_task_answers_as_pytorch_does(exported, backbone, deltas):
    dtype, bundle = exported
    model, runtime = load_model(backbone, "eager"), Runtime(bundle, threads=1)
    inputs = backbone.encoder().encode(TEXTS[:20], 40).inputs
    for name, delta in deltas.items():
        found, exact = runtime.logits(name, inputs), exact_logits(delta, model, inputs)
        if dtype == "fp32" or name == "full":  # its own matrices are multiplied in float32
            exact.require(found, name)
        else:
            noise, signal = np.abs(found - exact.value).max(), np.ptp(exact.value)
            assert noise < 0.1 * signal, (name, noise, signal)


def test_a_shared_tensor_is_stored_once_and_read_by_each_of_its_layers(exported):
    dtype, bundle = exported
    graph = Bundle(bundle).graph("pfeiffer").graph
    stored = Counter(i.name for i in graph.initializer if i.data_location == TensorProto.EXTERNAL)
    weight = FFN if dtype == "fp32" else f"{FFN}:int8:transposed"
    assert set(stored.values()) == {1} and weight in stored
    assert sum(weight in node.input for node in graph.node) == 2  # of the tiny model's layers 0 and 1


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("full", {}, lambda n: sum(n.values())),
        ("bitfit", {}, lambda n: sum(size for name, size in n.items() if name.endswith("bias"))),
        ("layernorm", {}, lambda n: sum(size for name, size in n.items() if "norm" in name.lower())),
        ("top-k", {"layers": 1}, lambda n: sum(size for name, size in n.items() if "groups.1" in name)),
        ("top-k", {"layers": 2}, lambda n: sum(size for name, size in n.items() if "groups" in name)),
    ],
)
def test_a_tensor_that_is_trained_is_one_for_all_layers_as_in_transformers(backbone, method, settings, expected):
    """The counts are those of the parameters of transformers' model, which names a shared one once."""
    sizes = {n: p.numel() for n, p in load_model(backbone).named_parameters() if not n.startswith("pooler")}
    made = methods()[method].from_settings(settings)
    assert made.n_parameters(backbone.architecture) == expected(sizes)
    pooler = {"bitfit": 32, "layernorm": 0}.get(method, 32 * 33)  # which the head reads
    assert new_delta(backbone, made, "task", None).n_parameters()["delta"] == expected(sizes) + pooler


def test_deltas_of_other_libraries_are_refused_for_these_adapt_all_layers_at_once(backbone, tmp_path):
    with pytest.raises(UsageError, match=r"albert share their modules \(encoder.albert_layer_groups.0.*Train the task"):
        Peft().write(random_delta(backbone, "lora", "mood"), backbone, tmp_path / "out")
    theirs = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 4, "lora_alpha": 8, "target_modules": ["query"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(theirs))
    save_file({}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UsageError, match=r"share their modules"):
        importer_of(tmp_path).read(tmp_path, backbone, ImportRequest("task"))
