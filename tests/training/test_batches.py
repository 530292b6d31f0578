"""Batches: every row once, in an order that only the seed decides; tokens as the tokenizer gave them."""

import pytest
from moods import SPECIAL, rows

from edgepeft.data.batches import encode, epoch_batches, sorted_batches
from edgepeft.tasks.classification import Classification

LENGTHS = [5 + (7 * i) % 90 for i in range(200)]


def padded(batches):
    return sum(max(LENGTHS[i] for i in batch) * len(batch) for batch in batches)


@pytest.mark.parametrize("batches", [epoch_batches(LENGTHS, 16, 0, 0), sorted_batches(LENGTHS, 16)])
def test_every_row_comes_once_in_batches_of_the_size_asked(batches):
    assert sorted(i for batch in batches for i in batch) == list(range(200))
    assert sorted(map(len, batches)) == [8] + [16] * 12


def test_the_order_is_a_function_of_seed_and_epoch():
    assert epoch_batches(LENGTHS, 16, 3, 1) == epoch_batches(LENGTHS, 16, 3, 1)
    others = [epoch_batches(LENGTHS, 16, 3, 2), epoch_batches(LENGTHS, 16, 4, 1)]
    assert all(other != epoch_batches(LENGTHS, 16, 3, 1) for other in others)


def test_rows_of_similar_length_share_a_batch_but_long_ones_do_not_all_come_first():
    arrival = [list(range(start, min(start + 16, 200))) for start in range(0, 200, 16)]
    batches = epoch_batches(LENGTHS, 16, 0, 0)
    assert padded(batches) < 0.75 * padded(arrival)
    longest = [max(LENGTHS[i] for i in batch) for batch in batches]
    assert longest != sorted(longest, reverse=True)


def test_a_batch_holds_the_tokenizers_ids_padded_to_its_longest_row(backbone):
    some = rows(5)
    encoded = encode(some, Classification(("bad", "good")), backbone.encoder(), 64, 0)
    inputs, targets = encoded.batch([2, 0])
    longest = max(len(some[i].sentence1.split()) + 2 for i in (2, 0))
    assert inputs["input_ids"].shape == (2, longest)
    for line, i in enumerate((2, 0)):
        n = len(some[i].sentence1.split()) + 2
        assert inputs["attention_mask"][line].tolist() == [1] * n + [0] * (longest - n)
        ids = inputs["input_ids"][line].tolist()
        assert (ids[0], ids[n - 1], ids[n:]) == (2, 3, [0] * (longest - n))
        assert all(token >= len(SPECIAL) for token in ids[1 : n - 1])  # every word is in the vocabulary
    assert targets.tolist() == [1, 0]


def test_empty_emoji_and_endless_texts_are_rows_too(backbone):
    odd = [rows(1)[0]._replace(sentence1=text) for text in ("", "\U0001f600", "good " * 20_000, "\ud800")]
    encoded = encode(odd, Classification(("bad", "good")), backbone.encoder(), 16, 0)
    assert encoded.lengths == [2, 3, 16, 3]
    assert encoded.truncated == 1
