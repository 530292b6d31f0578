"""DoRA against its equation and the gradients of its section 4.3 in NumPy, and the form that a board runs and tunes."""

import numpy as np
import pytest
import torch
from tolerance import error_of

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.methods.dora import Decomposed, DoRA

TOKENS, IN, OUT, RANK, SCALE = 5, 6, 4, 2, 1.5


@pytest.fixture
def arrays():
    source = np.random.default_rng(0)
    shapes = {"W": (OUT, IN), "b": (OUT,), "m": (OUT,), "A": (RANK, IN), "B": (OUT, RANK), "x": (TOKENS, IN)}
    return {name: source.normal(size=shape) for name, shape in shapes.items()} | {
        "dy": source.normal(size=(TOKENS, OUT))
    }


def module_of(arrays, dtype=torch.float32):
    module = Decomposed(IN, OUT, RANK, SCALE).to(dtype)
    for name, part in {"A": "A", "B": "B", "magnitude": "m"}.items():
        getattr(module, name).data = torch.from_numpy(arrays[part]).to(dtype)
    return module


def given(arrays, dtype=torch.float32):
    """y, x, weight and bias."""
    y = arrays["x"] @ arrays["W"].T + arrays["b"]
    return tuple(torch.from_numpy(value).to(dtype) for value in (y, arrays["x"], arrays["W"], arrays["b"]))


def test_it_is_a_linear_layer_of_rows_of_that_magnitude_and_the_old_bias(arrays):
    w = arrays["W"] + SCALE * arrays["B"] @ arrays["A"]
    w = arrays["m"][:, None] * w / np.sqrt((w**2).sum(1, keepdims=True))
    module = module_of(arrays)
    found, error = module(*given(arrays)), error_of(module, *given(arrays))
    np.testing.assert_allclose(found.detach().numpy(), arrays["x"] @ w.T + arrays["b"], rtol=0, atol=error)


def test_the_norm_is_a_constant_in_gradients_and_boards_have_the_same_ones_of_both_factors(arrays):
    w = arrays["W"] + SCALE * arrays["B"] @ arrays["A"]
    norm = np.sqrt((w**2).sum(1))
    scaled = arrays["dy"] * (arrays["m"] / norm)  # (tokens, out)
    wanted = {
        "B": SCALE * scaled.T @ (arrays["x"] @ arrays["A"].T),
        "A": SCALE * (scaled @ arrays["B"]).T @ arrays["x"],
        "magnitude": (arrays["dy"] * (arrays["x"] @ w.T)).sum(0) / norm,
    }
    y, x, weight, bias = given(arrays, torch.float64)
    module = module_of(arrays, torch.float64)
    module(y, x, weight, bias).backward(torch.from_numpy(arrays["dy"]))
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), wanted[name], rtol=1e-10)
    folded = module.folded(lambda: weight)
    folded.zero_grad()
    result = folded(y, x, bias)
    torch.testing.assert_close(result, module(y, x, weight, bias), rtol=1e-12, atol=0)
    result.backward(torch.from_numpy(arrays["dy"]))
    wanted["factor"] = wanted.pop("magnitude") * norm
    for name, parameter in folded.named_parameters():
        np.testing.assert_allclose(parameter.grad.numpy(), wanted[name], rtol=1e-10)


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_a_fresh_magnitude_is_the_norm_of_the_layers_own_row(tiny, model_type):
    backbone = open_backbone(str(tiny(model_type)))

    found = new_delta(backbone, DoRA(rank=2), "task", ("a", "b")).tensors()["layer.1.value/magnitude"]
    name = {"bert": "encoder.layer.1.attention.self.value.weight", "modernbert": "layers.1.attn.Wqkv.weight"}[
        model_type
    ]
    stored = backbone.checkpoint.read(name).astype(np.float64)[-32:]
    np.testing.assert_allclose(found.detach().numpy(), np.sqrt((stored**2).sum(1)), rtol=1e-6)
