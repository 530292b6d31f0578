"""The mean of LoRA's products, beside NumPy's decomposition of the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest

from edgepeft.common.errors import UsageError
from edgepeft.tuning.federated import average_products


def boards(n, rank, outputs=7, inputs=11, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    shapes = {
        "q/A": (rank, inputs),
        "q/B": (outputs, rank),
        "v/A": (rank, inputs),
        "v/B": (outputs, rank),
        "head": (3,),
    }
    return [{name: draw(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(n)]


@pytest.mark.parametrize(("n", "rank"), [(3, 2), (2, 4), (1, 2), (5, 3)])
def test_the_factors_are_the_best_of_their_rank_and_what_is_lost_is_the_rest(n, rank):
    given, weights = boards(n, rank), [10 * (i + 1) for i in range(n)]
    found = average_products(given, weights)
    assert {*found.tensors} == {"q/A", "q/B", "v/A", "v/B"}
    lost = apart = norm = 0.0
    for site in "qv":
        meant = sum(w * b[f"{site}/B"].astype(float) @ b[f"{site}/A"] for w, b in zip(weights, given, strict=True))
        meant /= sum(weights)
        u, s, vt = np.linalg.svd(meant)
        best = (u[:, :rank] * s[:rank]) @ vt[:rank]
        a, b = found.tensors[f"{site}/A"], found.tensors[f"{site}/B"]
        assert (a.shape, b.shape, a.dtype, b.dtype) == ((rank, 11), (7, rank), np.float32, np.float32)
        np.testing.assert_allclose(b @ a, best, atol=1e-5)
        size = np.mean([np.square(each[f"{site}/A"]).sum() for each in given])
        np.testing.assert_allclose(a @ a.T, np.eye(rank) * size / rank, atol=1e-4)
        mean_a, mean_b = (np.average([x[f"{site}/{n}"] for x in given], axis=0, weights=weights) for n in "AB")
        lost += np.square(meant - best).sum()
        apart += np.square(mean_b @ mean_a - meant).sum()
        norm += np.square(meant).sum()
    assert found.lost == pytest.approx(np.sqrt(lost / norm), abs=1e-6)
    assert found.apart == pytest.approx(np.sqrt(apart / norm), abs=1e-6)


def test_boards_of_one_a_lose_nothing_and_their_means_are_exact():
    given = boards(3, 2)
    for each in given[1:]:
        each |= {name: given[0][name] for name in ("q/A", "v/A")}
    found = average_products(given, [1, 2, 3])
    assert found.lost < 1e-6 and found.apart < 1e-6


def test_where_b_is_zero_as_in_a_fresh_lora_a_is_not_so_that_it_learns():
    given = boards(2, 2)
    for each in given:
        each |= {name: np.zeros_like(each[name]) for name in ("q/B", "v/B")}
    found = average_products(given, [1, 1])
    assert not found.tensors["q/B"].any() and (np.linalg.norm(found.tensors["q/A"], axis=1) > 1).all()
    assert found.lost == found.apart == 0.0


def test_where_nothing_is_a_product_it_is_said():
    with pytest.raises(UsageError, match="no factors A and B to multiply: average them as they are"):
        average_products([{"up": np.ones((2, 3)), "rule/A": np.ones((2, 2, 2)), "q/B": np.ones((3, 2))}], [1])


@pytest.mark.parametrize("weights", [[0, 0], [1, -1], [3, -1], [1, float("nan")], [float("inf"), 1]])
def test_weights_that_make_no_mean_are_refused(weights):
    with pytest.raises(UsageError, match="at least 0, and not all 0"):
        average_products(boards(2, 2), weights)


def test_a_board_of_weight_0_takes_no_part():
    given = boards(3, 2)
    alone, beside = (average_products(each, w).tensors for each, w in ((given[:1], [5]), (given, [5, 0, 0])))
    np.testing.assert_allclose(beside["q/B"] @ beside["q/A"], given[0]["q/B"] @ given[0]["q/A"], atol=1e-5)
    np.testing.assert_allclose(alone["q/B"] @ alone["q/A"], given[0]["q/B"] @ given[0]["q/A"], atol=1e-5)
