"""LoHa against its equation in NumPy, in both of its forms."""

import numpy as np
import pytest
import torch
from tolerance import error_of

from edgepeft.methods.loha import HadamardProduct, LoHa


@pytest.mark.parametrize(("rank", "as_rows"), [(2, True), (4, False)])
def test_both_forms_are_the_entrywise_product_of_two_low_rank_matrices(rank, as_rows):
    source, (tokens, inputs, outputs, scale) = np.random.default_rng(rank), (5, 14, 12, 1.5)
    module = HadamardProduct(inputs, outputs, rank, scale)
    assert module.as_rows == as_rows
    shapes = {"w1_a": (outputs, rank), "w1_b": (rank, inputs), "w2_a": (outputs, rank), "w2_b": (rank, inputs)}
    w = {name: source.normal(size=shape) for name, shape in shapes.items()}
    for name, values in w.items():
        getattr(module, name).data = torch.from_numpy(values).float()
    y, x = source.normal(size=(tokens, outputs)), source.normal(size=(tokens, inputs))
    expected = y + scale * x @ ((w["w1_a"] @ w["w1_b"]) * (w["w2_a"] @ w["w2_b"])).T
    given = torch.from_numpy(y).float(), torch.from_numpy(x).float()
    found, error = module(*given).detach().numpy(), error_of(module, *given)
    np.testing.assert_allclose(found, expected, rtol=0, atol=error)


def test_the_count_on_bert_base(named):
    """2 r (m + n) a matrix, table 1 of the paper."""
    assert LoHa(rank=4).n_parameters(named("bert-base-uncased")) == 24 * 2 * 4 * (768 + 768)
