"""What is said beforehand follows from the plan by arithmetic that is done here by hand."""

import pytest

from edgepeft.bench.planning.duration import expected_s, gemm_rate, in_words


def test_a_step_takes_its_operations_at_half_the_rate_of_matrix_products_and_a_process_five_seconds():
    steps = [("infer", 1e9), ("infer", 3e9), ("finetune", 10e9)]
    # At 10 GFLOP/s: 0.2 and 0.6 s, 2 s; 5 to 30 of them, and 15 s for three processes.
    assert expected_s(steps, (5, 30), rate=10e9, most_s=600.0) == pytest.approx((15 + 4 + 10, 15 + 24 + 60))
    assert expected_s(steps, (5, 30), rate=10e9, most_s=20.0) == pytest.approx((15 + 4 + 10, 15 + 20 + 20))


def test_the_rate_is_that_of_the_fastest_of_three_products():
    now = iter([0.0, 2.0, 2.0, 3.0, 3.0, 7.0])
    assert gemm_rate(lambda: next(now)) == 2 * 1024**3


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((20.0, 61.0), "about 20 to 61 seconds"),
        ((40.0, 40.2), "about 40 seconds"),
        ((60.0, 150.0), "about 1 to 2 minutes"),
        ((130.0, 140.0), "about 2 minutes"),
    ],
)
def test_a_duration_is_told_as_people_do(ends, words):
    assert in_words(ends) == words
