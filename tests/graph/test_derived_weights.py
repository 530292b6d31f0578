"""Constants that the loader makes: equal to training's tensors, refused when the recipe cannot be followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from deltas import random_delta
from onnx import numpy_helper

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError
from edgepeft.graph.external_data import RECIPE
from edgepeft.graph.protos import copied
from edgepeft.graph.splice import splice
from edgepeft.training.exporting.delta import export_delta


@pytest.fixture(scope="module", params=["bert", "roberta"])
def trained(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> tuple[Backbone, Delta]:
    backbone = open_backbone(str(tiny(request.param)))
    return backbone, random_delta(backbone, "intrinsic-said", "t", settings={"dimension": 120, "seed": 9})


@pytest.fixture(scope="module")
def exported_once(trained: tuple[Backbone, Delta]) -> onnx.ModelProto:
    backbone, delta = trained
    return export_delta(delta, backbone)


@pytest.fixture
def graph(exported_once: onnx.ModelProto) -> onnx.ModelProto:
    """To be changed at will."""
    return copied(exported_once)


def spliced(backbone: Backbone, graph: onnx.ModelProto) -> onnx.ModelProto:
    checkpoint = backbone.checkpoint
    model = backbone.architecture.graph(checkpoint)
    return splice(model, graph, backbone.architecture.bindings, checkpoint)


def damaged(graph: onnx.ModelProto, **changes: object) -> onnx.ModelProto:
    entry = next(entry for entry in graph.metadata_props if entry.key == RECIPE)
    entry.value = json.dumps(json.loads(entry.value) | changes)
    return graph


def test_the_loaders_tensors_are_trainings(trained: tuple[Backbone, Delta], graph: onnx.ModelProto):
    """Every tensor of the encoder, to 1e-5; issue 3's figure."""
    backbone, delta = trained
    model = spliced(backbone, graph)
    with torch.no_grad():
        expected = delta.own_tensors(load_model(backbone))
    made = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer if "generated:" in i.name}
    assert len(made) == len(expected) >= len(backbone.architecture.tensors)
    for name, tensor in expected.items():
        assert np.abs(tensor.numpy() - backbone.checkpoint.read(name)).max() > 1e-2
        np.testing.assert_allclose(made[f"delta/generated:{name}"], tensor.numpy(), rtol=0, atol=1e-5)


def test_the_delta_carries_the_vector_the_scales_and_the_head_alone(
    trained: tuple[Backbone, Delta], graph: onnx.ModelProto
):
    _, delta = trained
    numbers = sum(int(np.prod(i.dims)) for i in graph.graph.initializer if i.data_type == onnx.TensorProto.FLOAT)
    assert numbers == sum(delta.n_parameters().values()) == 120 + delta.n_parameters()["head"]
    assert len(delta.generator.scales) + len(delta.generator.theta) == 120


def test_the_spliced_model_reads_no_pretrained_tensor(trained: tuple[Backbone, Delta], graph: onnx.ModelProto):
    model = spliced(trained[0], graph)
    assert not [i.name for i in model.graph.initializer if i.data_location == onnx.TensorProto.EXTERNAL]
    assert not [i.name for i in model.graph.initializer if i.name.startswith("delta/generator/")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"generator": "fastfood/2"}, "not a recipe that this version knows: generator"),
        ({"seed": -1}, "not a recipe that this version knows: seed"),
        ({"more": 1}, "not a recipe that this version knows: more"),
        ({"vector": "nothing"}, "no vector generator/nothing"),
        ({"tensors": []}, "does not say how to make generated:"),
        ({"scales": "theta"}, "does not say how to make generated:"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(
    trained: tuple[Backbone, Delta], graph: onnx.ModelProto, changes: dict, said: str
):
    backbone, _ = trained
    with pytest.raises(BundleError, match=said):
        spliced(backbone, damaged(graph, **changes))


def test_a_graph_without_a_recipe_is_refused(trained: tuple[Backbone, Delta], graph: onnx.ModelProto):
    backbone, _ = trained
    kept = [entry for entry in graph.metadata_props if entry.key != RECIPE]
    del graph.metadata_props[:]
    graph.metadata_props.extend(kept)
    with pytest.raises(BundleError, match=r"not a recipe that this version knows: .*not JSON"):
        spliced(backbone, graph)


def test_a_tensor_that_the_backbone_lacks_is_refused(trained: tuple[Backbone, Delta], graph: onnx.ModelProto):
    backbone, _ = trained
    graph.graph.input.append(onnx.helper.make_tensor_value_info("generated:elsewhere", onnx.TensorProto.FLOAT, [3]))
    with pytest.raises(BundleError, match="a tensor 'elsewhere' that this backbone does not have"):
        spliced(backbone, graph)
