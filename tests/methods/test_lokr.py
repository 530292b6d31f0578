"""LoKr against its equation in NumPy, and its counts against PEFT's."""

import numpy as np
import pytest
import torch
from tolerance import error_of

from edgepeft.backbones.base import Role, Site
from edgepeft.common.errors import UsageError
from edgepeft.methods.lokr import LoKr


def module_of(inputs, outputs, **settings):
    site = Site("layer.0.query", Role.QUERY, 0, inputs, outputs)
    (module,) = LoKr(**settings).build([site]).values()
    return module


@pytest.mark.parametrize(
    ("settings", "shapes"),
    # 14 = 2 x 7 and 12 = 3 x 4 next to their roots; 6 divides 12 alone, and below it 2 is what divides 14.
    [
        ({"rank": 2}, {"w1": (3, 2), "w2_a": (4, 2), "w2_b": (2, 7)}),
        ({"rank": 4}, {"w1": (3, 2), "w2": (4, 7)}),
        ({"rank": 2, "both": True, "factor": 6}, {"w1_a": (6, 2), "w1_b": (2, 2), "w2_a": (2, 2), "w2_b": (2, 7)}),
    ],
)
def test_it_is_the_kronecker_product_of_its_matrices(settings, shapes):
    source, (tokens, inputs, outputs) = np.random.default_rng(len(shapes)), (5, 14, 12)
    module = module_of(inputs, outputs, alpha=3.0, **settings)
    assert {name: tuple(parameter.shape) for name, parameter in module.named_parameters()} == shapes
    w = {name: source.normal(size=shape) for name, shape in shapes.items()}
    for name, values in w.items():
        getattr(module, name).data = torch.from_numpy(values).float()
    w1, w2 = (w[name] if name in w else w[f"{name}_a"] @ w[f"{name}_b"] for name in ("w1", "w2"))
    y, x = source.normal(size=(tokens, outputs)), source.normal(size=(tokens, inputs))
    expected = y + 3.0 / settings["rank"] * x @ np.kron(w1, w2).T
    given = torch.from_numpy(y).float(), torch.from_numpy(x).float()
    np.testing.assert_allclose(module(*given).detach().numpy(), expected, rtol=0, atol=error_of(module, *given))


@pytest.mark.parametrize(
    ("width", "factor", "sides"),  # the examples of PEFT's ``factorization``
    [(256, -1, (16, 16)), (128, -1, (8, 16)), (127, -1, (1, 127)), (128, 4, (4, 32)), (128, 5, (4, 32))],
)
def test_widths_are_parted_as_peft_parts_them(width, factor, sides):
    w1, w2 = module_of(width, width, rank=width, factor=factor).parameters()
    assert (w1.shape, w2.shape) == ((sides[0],) * 2, (sides[1],) * 2)


def test_the_count_on_bert_base(named):
    """768 = 24 x 32, 3072 = 48 x 64; PEFT 0.21.2 has as many (print_trainable_parameters, the head apart)."""
    bert = named("bert-base-uncased")
    assert LoKr().n_parameters(bert) == 24 * (24 * 24 + 8 * (32 + 32)) == 26_112
    both = LoKr(both=True, rank=4, roles=("ffn_up", "ffn_output"))
    assert both.n_parameters(bert) == 24 * 4 * (24 + 48 + 32 + 64) == 16_128


@pytest.mark.parametrize("factor", [0, -2])
def test_a_factor_that_parts_nothing_is_refused(factor):
    with pytest.raises(
        UsageError, match=f"lokr's factor must be at least 1, or -1 for what is near the roots; found {factor}"
    ):
        LoKr(factor=factor)
