from __future__ import annotations

import numpy as np
import pytest

from edgepeft.bench.planning.job import batches_of, random_batch
from edgepeft.common.errors import UsageError
from edgepeft.options.verbs import BenchOptions


def test_batches_keep_the_order_of_arrival_and_drop_the_remainder():
    assert batches_of([5, 3, 9, 1, 7], 2) == ((5, 3), (9, 1))


def test_fewer_texts_than_a_batch_are_one_batch():
    assert batches_of([4, 2], 32) == ((4, 2),)


def test_a_batch_size_of_zero_is_a_usage_error():
    with pytest.raises(UsageError, match="at least 1"):
        BenchOptions(profile="rpi4", batch_size=0)


def test_random_ids_fill_the_mask_and_nothing_else():
    batch = random_batch([3, 5, 1], vocab_size=50, pad_id=1, seed=0)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1] * 5, [1, 0, 0, 0, 0]]
    np.testing.assert_array_equal(batch["input_ids"] != 1, batch["attention_mask"] == 1)
    assert batch["input_ids"].max() < 50
    assert batch["input_ids"].dtype == np.int64


@pytest.mark.parametrize("pad_id", [0, 1, 24, 25, 30, 49])
def test_a_real_token_is_never_the_padding_id(pad_id):
    batch = random_batch([2000], vocab_size=50, pad_id=pad_id, seed=0)
    assert pad_id not in batch["input_ids"]
    assert batch["input_ids"].max() <= 49


def test_the_same_seed_gives_every_worker_the_same_ids():
    one, two = (random_batch([9, 4], vocab_size=999, pad_id=0, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one["input_ids"], two["input_ids"])
