"""LoRA on every linear layer of every family equals transformers' model with the merged weight."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import suite
import torch
from tiny import OWN_LAYERS

from edgepeft.backbones.base import LINEAR_ROLES
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import UsageError
from edgepeft.methods.base import method_named
from edgepeft.methods.lora import LoRA

# Where Hugging Face keeps each role's linear layer: BERT's names, DistilBERT's, MPNet's.
MODULES = {
    "query": ("attention.self.query", "attention.q_lin", "attention.attn.q"),
    "key": ("attention.self.key", "attention.k_lin", "attention.attn.k"),
    "value": ("attention.self.value", "attention.v_lin", "attention.attn.v"),
    "attention_output": ("attention.output.dense", "attention.out_lin", "attention.attn.o"),
    "ffn_up": ("intermediate.dense", "ffn.lin1", "intermediate.dense"),
    "ffn_output": ("output.dense", "ffn.lin2", "output.dense"),
}
OF_T5 = {"ffn_gate", "ffn_gated"}
NAMES = {"distilbert": 1, "mpnet": 2}


def test_every_role_is_tested_below():
    assert set(MODULES) | OF_T5 == set(map(str, LINEAR_ROLES))


def require_merged(case: suite.Case, merged: torch.nn.Module) -> None:
    """The bare head on the model with merged weights answers as the delta does."""
    rows, bare = case.rows(5, 9), copy.deepcopy(case.moved)
    bare.modules_by_site = torch.nn.ModuleDict()
    with torch.no_grad():
        expected = bare.logits(merged, rows).numpy()
    np.testing.assert_allclose(case.logits(case.moved, rows), expected, rtol=0, atol=2 * case.exact(rows).error)


@pytest.mark.parametrize("role", MODULES)
@pytest.mark.parametrize("model_type", OWN_LAYERS)
def test_a_rank_stabilised_update_is_a_merged_weight(tiny: Callable[..., Path], model_type: str, role: str):
    case = suite.Case(LoRA(rank=4, alpha=6, roles=(role,), rank_stabilised=True), open_backbone(str(tiny(model_type))))
    merged = copy.deepcopy(case.model)
    layers = merged.transformer.layer if model_type == "distilbert" else merged.encoder.layer
    for i, layer in enumerate(layers):
        linear = layer.get_submodule(MODULES[role][NAMES.get(model_type, 0)])
        module = case.moved.site_modules[f"layer.{i}.{role}"]
        update = 6 / 4**0.5 * (module.B.detach().numpy().astype(np.float64) @ module.A.detach().numpy())
        linear.weight.data += torch.from_numpy(update).float()
    suite.moves_the_logits(case)
    require_merged(case, merged)


@pytest.mark.parametrize("kind", [{}, {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}])
def test_updates_of_every_linear_layer_of_a_t5_are_merged_weights(tiny: Callable[..., Path], kind: dict[str, Any]):
    method = LoRA(rank=2, alpha=6, roles=tuple(map(str, LINEAR_ROLES)), cross_attention=True)
    case = suite.Case(method, open_backbone(str(tiny("t5", **kind))))
    merged, modules = copy.deepcopy(case.model), case.moved.site_modules
    linear = {name for name, module in merged.named_modules() if isinstance(module, torch.nn.Linear)} - {"lm_head"}
    assert {case.architecture.site(name).reads for name in modules} == linear
    for name, module in modules.items():
        update = 3 * (module.B.detach().numpy().astype(np.float64) @ module.A.detach().numpy())
        merged.get_submodule(case.architecture.site(name).reads).weight.data += torch.from_numpy(update).float()
    require_merged(case, merged)


@pytest.mark.parametrize("method", ["houlsby", "pfeiffer", "compacter", "bottleneck"])
def test_adapters_reach_cross_attention_where_they_are_asked_to(tiny: Callable[..., Path], method: str):
    kind = method_named(method)
    t5 = open_backbone(str(tiny("t5"))).architecture
    plain, across = (kind.from_settings({"cross_attention": asked}).sites(t5) for asked in ("false", "true"))
    more = {site.name for site in across} - {site.name for site in plain}
    assert more == {f"decoder.layer.{i}.cross_attention_output" for i in range(3)} and len(across) == len(plain) + 3
    with pytest.raises(UsageError, match="cross_attention is a decoder's to its encoder; this bert has none"):
        kind.from_settings({"cross_attention": "true"}).sites(open_backbone(str(tiny("bert"))).architecture)


def test_cross_attention_needs_roles_that_it_has():
    with pytest.raises(UsageError, match="cross_attention needs roles of attention; found ffn_up"):
        LoRA(roles=("ffn_up",), cross_attention=True)
