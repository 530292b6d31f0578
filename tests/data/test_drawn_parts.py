"""Stratified parts: proportions worked out by hand, and what must never change between machines."""

import hashlib
import random

from edgepeft.data.parts import quotas, split_rows
from edgepeft.data.rows import Row


def labels_of(rows):
    return [row.label for row in rows]


def row(text, label, line=1):
    return Row(text, None, label, "f.jsonl", line)


def test_quotas_are_in_proportion_and_add_up():
    assert quotas({"a": 600, "b": 300, "c": 100}, 10) == {"a": 6, "b": 3, "c": 1}
    assert sum(quotas({"a": 7, "b": 7, "c": 7}, 10).values()) == 10


def test_a_rare_label_is_not_forgotten_when_each_must_give_one():
    assert quotas({"a": 980, "b": 20}, 10) == {"a": 10, "b": 0}
    assert quotas({"a": 980, "b": 20}, 10, least=1) == {"a": 9, "b": 1}


def test_a_label_keeps_what_it_must_spare():
    assert quotas({"a": 1, "b": 5}, 6, spare=1) == {"a": 0, "b": 4}


def test_the_order_is_that_of_sha256_and_no_generator():
    rows = [row(f"text {i}", "x", i) for i in range(20)]
    expected = sorted(rows, key=lambda r: hashlib.sha256(f"salt\0{r.sentence1}\0\0x".encode()).digest())[:5]
    assert set(split_rows(rows, 5, "salt", strata=labels_of(rows))[0]) == set(expected)


def test_taken_and_left_make_up_the_whole_in_the_order_of_the_file():
    rows = [row(f"text {i}", "ab"[i % 2], i) for i in range(30)]
    taken, left = split_rows(rows, 11, "s", strata=labels_of(rows))
    assert len(taken) == 11
    assert sorted([*taken, *left], key=lambda r: r.line) == rows
    assert list(taken) == sorted(taken, key=lambda r: r.line)


def test_another_order_of_the_file_takes_the_same_rows():
    rows = [row(f"text {i}", "ab"[i % 2], i) for i in range(30)]
    assert set(split_rows(rows, 8, "s", strata=labels_of(rows))[0]) == set(
        split_rows(rows[::-1], 8, "s", strata=labels_of(rows[::-1]))[0]
    )


def test_copies_of_a_row_stay_together_but_for_the_boundary():
    rows = [row(f"text {i // 5}", "x", i) for i in range(100)]  # 20 texts, 5 times each
    taken, left = split_rows(rows, 50, "s", strata=labels_of(rows))
    assert len({r.sentence1 for r in taken} & {r.sentence1 for r in left}) <= 1


def test_without_strata_labels_do_not_matter():
    rows = [row(f"text {i}", str(i / 7), i) for i in range(40)]
    assert len(split_rows(rows, 13, "s", strata=[""] * 40)[0]) == 13


def test_quotas_go_one_by_one_to_whom_most_is_due_and_of_equals_to_the_first_by_name():
    """As the loop over all labels that was there before the heap, which took minutes for ten thousand of them."""
    chance = random.Random(0)
    for _ in range(300):
        sizes = {f"l{i}": chance.randint(1, 12) for i in range(chance.randint(1, 9))}
        n, least, spare = chance.randint(0, 60), chance.randint(0, 2), chance.randint(0, 2)
        total, room = sum(sizes.values()), {label: max(0, size - spare) for label, size in sizes.items()}
        given = {label: min(least, room[label]) for label in sizes}
        while sum(given.values()) < min(n, sum(room.values())):
            left = sorted(label for label in sizes if given[label] < room[label])
            given[max(left, key=lambda label: sizes[label] * n / total - given[label])] += 1
        assert quotas(sizes, n, least=least, spare=spare) == given
