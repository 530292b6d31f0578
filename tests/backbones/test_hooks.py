"""The model that training runs: transformers' own, whatever attention it has."""

import pytest
import torch
from tiny import ragged
from tolerance import exactly

from edgepeft.backbones._bert import LAYOUTS
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone


@pytest.mark.parametrize("model_type", sorted(LAYOUTS))
def test_every_model_type_loads_with_its_fastest_attention_and_equals_the_eager_one(tiny, model_type):
    backbone = open_backbone(str(tiny(model_type)))
    inputs = {
        n: torch.from_numpy(v) for n, v in ragged(5, 9, backbone.config).items() if n in backbone.architecture.inputs
    }
    real = inputs["attention_mask"] != 0
    with torch.no_grad():
        fast, model = load_model(backbone)(**inputs).last_hidden_state[real], load_model(backbone, "eager").double()
        eager = exactly(lambda: {"hidden": model(**inputs).last_hidden_state[real]})["hidden"]
    eager.require(fast.numpy())
    assert eager.value.std() > 0.1 and not any(p.requires_grad for p in load_model(backbone).parameters())
