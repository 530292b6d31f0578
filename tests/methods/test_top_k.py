"""Top-k: which layers are trained, how much that is, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import ragged

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.common.errors import UsageError
from edgepeft.methods.top_k import TopK

LAYER = 7_087_872  # of BERT-base: transformers' BertLayer; twelve are the 85 M that are not embeddings


@pytest.mark.parametrize(("layers", "count"), [(1, LAYER), (3, 3 * LAYER), (12, 85_054_464)])
@pytest.mark.parametrize("backbone", ["roberta-base", "bert-base-uncased"])
def test_the_count_is_that_many_of_transformers_layers(named, backbone: str, layers: int, count: int):
    assert TopK(layers=layers).n_parameters(named(backbone)) == count


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "electra"])
def test_the_trained_tensors_are_those_of_the_highest_layers_in_transformers(
    tiny: Callable[..., Path], model_type: str
):
    """Of eleven layers, so that layer 1 is not taken for layer 10."""
    sizes = {"distilbert": {"n_layers": 11}}.get(model_type, {"num_hidden_layers": 11})
    backbone = open_backbone(str(tiny(model_type, **sizes)))
    layers = dict(load_model(backbone, "eager").named_modules())[
        "transformer" if model_type == "distilbert" else "encoder"
    ]
    root = "transformer.layer" if model_type == "distilbert" else "encoder.layer"
    expected = {f"{root}.{i}.{name}" for i in (9, 10) for name, _ in layers.layer[i].named_parameters()}
    architecture = backbone.architecture
    assert set(TopK(layers=2).overrides(architecture)) - set(architecture.pooler) == expected
    tensors = new_delta(backbone, TopK(layers=2), "t", ("a", "b")).tensors()
    assert ("override/pooler.dense.weight" in tensors) == (model_type == "bert")  # its head reads the pooler


def test_backward_does_not_run_through_the_frozen_layers(tiny: Callable[..., Path]):
    backbone = open_backbone(str(tiny("bert")))
    delta, model = new_delta(backbone, TopK(layers=1), "t", ("a", "b")), load_model(backbone)
    needed: dict[int, bool] = {}
    for i in (0, 1):
        layer = model.get_submodule(f"encoder.layer.{i}.output")
        layer.register_forward_hook(lambda _, __, output, i=i: needed.update({i: output.requires_grad}))
    rows = ragged(3, 5, {"vocab_size": 60, "pad_token_id": 0, "type_vocab_size": 2})
    delta.logits(model, {name: torch.from_numpy(values) for name, values in rows.items()})
    assert needed == {0: False, 1: True}


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (0, "top-k's layers must be at least 1; found 0"),
        (-1, "top-k's layers must be at least 1; found -1"),
        (13, "at most 12, the layers that this backbone has; found 13"),
    ],
)
def test_a_number_of_layers_that_the_backbone_lacks_is_refused(named, layers: int, said: str):
    with pytest.raises(UsageError, match=said):
        TopK.from_settings({"layers": str(layers)}).n_parameters(named("roberta-base"))
    with pytest.raises(UsageError, match=said):
        TopK.from_settings({"layers": str(layers)}).overrides(named("roberta-base"))


def test_an_encoder_decoder_is_refused(named):
    with pytest.raises(UsageError, match="defined on encoders; t5 has a decoder"):
        TopK().n_parameters(named("t5-base"))
