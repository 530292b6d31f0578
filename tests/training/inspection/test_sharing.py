"""The lowest thing that a delta changes, against where transformers' hidden states begin to differ."""

from __future__ import annotations

import pytest
import torch
from deltas import TEXTS, random_delta
from looked import delta_of
from method_examples import examples

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.methods.base import methods
from edgepeft.training.inspection.base import untouched_stages

CASES = [
    (name, i, skip)
    for name, method in sorted(methods().items())
    for i, example in enumerate(examples(method))
    for skip in ((0, 2) if "skip_layers" in example.settings() else (None,))
]


def states(model, forward):
    """The outputs of the embeddings and of each layer while ``forward`` runs."""
    seen = []
    modules = (model.embeddings, *model.encoder.layer)

    def keep(_, __, output):
        seen.append(output[0] if isinstance(output, tuple) else output)

    handles = [module.register_forward_hook(keep) for module in modules]
    with torch.inference_mode():
        forward()
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize(("name", "example", "skip"), CASES)
def test_what_is_said_to_be_untouched_is_equal_to_the_bit_and_what_follows_is_not(tiny, name, example, skip):
    backbone = open_backbone(str(tiny("bert", num_hidden_layers=3)))
    method = examples(methods()[name])[example]
    settings = method.settings() | ({} if skip is None else {"skip_layers": skip})
    delta = random_delta(backbone, name, "t", settings=settings)
    model = load_model(backbone)
    tokens = backbone.encoder().encode(TEXTS[:4], 40).inputs
    inputs = {key: torch.from_numpy(value) for key, value in tokens.items()}
    own = states(model, lambda: delta.logits(model, inputs))
    bare = states(model, lambda: model(**inputs))
    same = [a.shape == b.shape and torch.equal(a, b) for a, b in zip(own, bare, strict=True)]
    found = untouched_stages(delta)
    n_same = same.index(False) if False in same else len(same)
    assert (found.embeddings, found.layers) == (n_same > 0, max(n_same - 1, 0))


def test_it_is_said_in_words_what_can_be_shared(tiny):
    backbone = open_backbone(str(tiny("bert", num_hidden_layers=3)))
    trained = untouched_stages(delta_of(backbone, "houlsby"))
    assert trained.sentence(3).endswith("the delta has its own embeddings.LayerNorm.bias")
    frozen = untouched_stages(delta_of(backbone, "houlsby", norms="false", skip_layers=2))
    assert frozen.sentence(3) == (
        "the embeddings and 2 of 3 layers can be computed once for all tasks: "
        "its first change is layer.2.attention_output"
    )
