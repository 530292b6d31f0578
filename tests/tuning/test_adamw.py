"""AdamW and clipping against PyTorch's own."""

import numpy as np
import pytest
import torch

from edgepeft.tuning.step import AdamW, clip

SHAPES = {"a": (7, 5), "head/b": (3,), "c": (2, 3, 4)}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_fifty_steps_are_pytorchs(weight_decay):
    source = np.random.default_rng(0)
    ours = {name: source.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    theirs = {name: torch.nn.Parameter(torch.from_numpy(value.copy())) for name, value in ours.items()}
    rates = {"a": 1e-2, "head/b": 3e-2, "c": 1e-2}
    groups = [{"params": [p], "lr": rates[name], "initial_lr": rates[name]} for name, p in theirs.items()]
    reference = torch.optim.AdamW(groups, weight_decay=weight_decay)
    optimizer = AdamW(rates, weight_decay=weight_decay)
    for step in range(50):
        scale = 10.0 ** source.integers(-4, 2)  # some steps are clipped, some are not
        gradients = {n: (scale * source.standard_normal(s)).astype(np.float32) for n, s in SHAPES.items()}
        for name, p in theirs.items():
            p.grad = torch.from_numpy(gradients[name].copy())
        norm = torch.nn.utils.clip_grad_norm_(theirs.values(), 1.0)
        assert clip(gradients, 1.0) == pytest.approx(float(norm), rel=1e-5)
        factor = (50 - step) / 50
        for group in reference.param_groups:
            group["lr"] = group["initial_lr"] * factor
        reference.step()
        optimizer.update(ours, gradients, factor)
        for name, p in theirs.items():
            np.testing.assert_allclose(ours[name], p.detach().numpy(), rtol=0, atol=1e-6)


def test_gradients_below_the_limit_are_left_alone_and_a_norm_that_is_not_finite_is_told():
    gradients = {"a": np.array([0.3, 0.4], np.float32)}
    assert clip(gradients, 1.0) == pytest.approx(0.5)
    np.testing.assert_array_equal(gradients["a"], np.array([0.3, 0.4], np.float32))
    assert np.isnan(clip({"a": np.array([np.nan], np.float32)}, 1.0))
