"""(IA)^3 against a model whose weights are scaled instead, at every model type, and what a bundle without its site says."""

import copy

import pytest
import torch
from deltas import random_delta
from tiny import OWN_LAYERS, ragged

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError
from edgepeft.graph.splice import splice
from edgepeft.training.exporting.delta import export_delta

# Model type -> layer, key, value and the feed-forward's second product, as transformers names them.
PLACES = dict.fromkeys(OWN_LAYERS, ("encoder.layer", "attention.self.key", "attention.self.value", "output.dense"))
PLACES["mpnet"] = ("encoder.layer", "attention.attn.k", "attention.attn.v", "output.dense")
PLACES["distilbert"] = ("transformer.layer", "attention.k_lin", "attention.v_lin", "ffn.lin2")


@pytest.mark.parametrize("model_type", OWN_LAYERS)
def test_scales_are_those_of_the_weights_rows_and_of_the_second_products_columns(tiny, model_type):
    """l * (W x + b) = (diag(l) W) x + l * b for keys and values; W2 (l * a) = (W2 diag(l)) a."""
    backbone = open_backbone(str(tiny(model_type)))
    delta = random_delta(backbone, "ia3", "task", ("a", "b", "c"))
    model = load_model(backbone, "eager")
    scaled, scales = copy.deepcopy(model), delta.tensors()
    layer, *attention, down = PLACES[model_type]
    with torch.no_grad():
        for i in range(backbone.architecture.n_layers):
            for role, path in zip(("key", "value"), attention, strict=True):
                linear, scale = scaled.get_submodule(f"{layer}.{i}.{path}"), scales[f"layer.{i}.{role}/scale"]
                linear.weight.mul_(scale.unsqueeze(1))
                linear.bias.mul_(scale)
            scaled.get_submodule(f"{layer}.{i}.{down}").weight.mul_(scales[f"layer.{i}.ffn_activation/scale"])
        rows = ragged(6, 9, {"vocab_size": 60, "pad_token_id": backbone.architecture.pad_token_id})
        inputs = {name: torch.from_numpy(rows[name]) for name in backbone.architecture.inputs}
        ours = delta.logits(model, inputs)
        bare = random_delta(backbone, "ia3", "task", ("a", "b", "c"))
        for module in bare.site_modules.values():
            module.scale.fill_(1.0)
        wanted, unscaled = bare.logits(scaled, inputs), bare.logits(model, inputs)
    assert (ours - unscaled).abs().max() > 0.1
    torch.testing.assert_close(ours, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=1e-5)


def test_a_bundle_from_before_the_site_refuses_the_delta_by_its_name(tiny):
    backbone = open_backbone(str(tiny("bert")))
    graph = export_delta(random_delta(backbone, "ia3", "task"), backbone)
    bindings = {name: value for name, value in backbone.architecture.bindings.items() if "ffn_activation" not in name}
    whole = backbone.architecture.graph(backbone.checkpoint)
    with pytest.raises(BundleError, match=r"'layer\.0\.ffn_activation' .* must be exported again"):
        splice(whole, graph, bindings, backbone.checkpoint)
