"""The model that training runs: transformers' own, whatever attention it has."""

import pytest
import torch
from tiny import ragged
from tolerance import exactly

from edgepeft.backbones.bert import LAYOUTS
from edgepeft.backbones.hooks import load_model, tied
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


def test_a_tied_tensor_is_put_wherever_it_is_read_but_where_another_one_is_given_by_name(tiny):
    """transformers 5 ties T5's output layer to the embeddings, and a delta may train both."""
    model = load_model(open_backbone(str(tiny("t5"))))
    words, output = (torch.full_like(model.get_parameter("shared.weight"), value) for value in (1.0, 2.0))
    alone = tied(model, {"shared.weight": words})
    assert {"shared.weight", "lm_head.weight"} <= alone.keys() and all(tensor is words for tensor in alone.values())
    both = tied(model, {"shared.weight": words, "lm_head.weight": output})
    assert both.keys() == alone.keys()
    assert all(tensor is (output if name == "lm_head.weight" else words) for name, tensor in both.items())
