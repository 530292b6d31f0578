"""LoRA on every linear layer of every family equals transformers' model with the merged weight."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import suite
import torch
from tiny import MODEL_TYPES

from edgepeft.backbones.source import open_backbone
from edgepeft.methods.lora import ROLES, LoRA

# Where Hugging Face keeps each role's linear layer: BERT's names, DistilBERT's.
MODULES = {
    "query": ("attention.self.query", "attention.q_lin"),
    "key": ("attention.self.key", "attention.k_lin"),
    "value": ("attention.self.value", "attention.v_lin"),
    "attention_output": ("attention.output.dense", "attention.out_lin"),
    "ffn_up": ("intermediate.dense", "ffn.lin1"),
    "ffn_output": ("output.dense", "ffn.lin2"),
}


def test_every_role_is_tested_below():
    assert set(MODULES) == set(map(str, ROLES))


@pytest.mark.parametrize("role", MODULES)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_rank_stabilised_update_is_a_merged_weight(tiny: Callable[..., Path], model_type: str, role: str):
    case = suite.Case(LoRA(rank=4, alpha=6, roles=(role,), rank_stabilised=True), open_backbone(str(tiny(model_type))))
    merged = copy.deepcopy(case.model)
    layers = merged.transformer.layer if model_type == "distilbert" else merged.encoder.layer
    for i, layer in enumerate(layers):
        linear = layer.get_submodule(MODULES[role][model_type == "distilbert"])
        module = case.moved.site_modules[f"layer.{i}.{role}"]
        update = 6 / 4**0.5 * (module.B.detach().numpy().astype(np.float64) @ module.A.detach().numpy())
        linear.weight.data += torch.from_numpy(update).float()
    rows, bare = case.rows(5, 9), copy.deepcopy(case.moved)
    bare.modules_by_site = torch.nn.ModuleDict()
    with torch.no_grad():
        expected = bare.logits(merged, rows).numpy()
    suite.moves_the_logits(case)
    np.testing.assert_allclose(case.logits(case.moved, rows), expected, rtol=0, atol=2 * case.exact(rows).error)
