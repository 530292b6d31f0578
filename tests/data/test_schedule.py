"""The learning rate against transformers' own schedule."""

import pytest
import torch
import transformers

from edgepeft.data.training_loop.run import evaluation_interval, rate_factor, warmup_steps


@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (0, 7), (1, 2), (3, 10), (10, 100), (5, 5)])
def test_the_rate_equals_transformers_linear_schedule(warmup, total):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    reference = transformers.get_linear_schedule_with_warmup(optimizer, warmup, total)
    for step in range(total):
        assert rate_factor(step, warmup, total) == pytest.approx(reference.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        reference.step()


def test_a_run_of_few_steps_has_no_warm_up_and_never_a_zero_rate_throughout():
    assert warmup_steps(9, 0.1) == 0
    assert warmup_steps(100, 0.1) == 10
    assert rate_factor(0, warmup_steps(1, 0.1), 1) == 1.0


def test_evaluation_comes_every_epoch_but_at_most_twenty_times():
    assert evaluation_interval(38, 114) == 38
    assert evaluation_interval(13, 1000) == 50
