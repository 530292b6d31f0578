"""Which rows train, choose and are reported; what is refused."""

import json
import re
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
from moods import rows

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.columns import Columns
from edgepeft.data.parts import load_data, rows_or_share, task_data
from edgepeft.data.rows import Row


def contents(part):
    return [row.sentence1 for row in part]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


PLAIN = [{"sentence1": f"day {i}", "label": ("bad", "good")[i % 2]} for i in range(20)]


def test_without_other_files_two_tenths_are_held_out_and_the_parts_are_disjoint():
    data = task_data(rows(100))
    lines = [{row.line for row in part} for part in (data.train, data.eval, data.test)]
    assert [len(part) for part in lines] == [80, 10, 10]
    assert set.union(*lines) == set(range(1, 101))


def test_held_out_parts_have_the_labels_in_proportion():
    data = task_data(rows(300))
    for part in (data.eval, data.test):
        assert [row.label for row in part].count("bad") == 10  # a third of 30


def test_a_file_for_one_part_leaves_the_other_held_out():
    other = rows(20, seed=1, file="other.jsonl")
    with_eval, with_test = task_data(rows(100), eval=other), task_data(rows(100), test=other)
    assert (len(with_eval.train), len(with_eval.eval), len(with_eval.test)) == (90, 20, 10)
    assert (len(with_test.train), len(with_test.eval), len(with_test.test)) == (90, 10, 20)
    assert with_test.test == tuple(other)
    assert "test: 20 rows of other.jsonl" in with_test.split


def test_a_share_is_any_number():
    assert [rows_or_share("--test", share) for share in (0.25, np.float32(0.25), "25%")] == [0.25] * 3


def test_a_share_says_how_much_is_held_out_and_the_labels_keep_their_proportion():
    data = task_data(rows(300), 0.2, 0.05)
    assert [len(part) for part in (data.train, data.eval, data.test)] == [225, 60, 15]
    assert [[row.label for row in part].count("bad") for part in (data.eval, data.test)] == [20, 5]  # a third
    assert task_data(rows(300), 0.1, 0.1) == task_data(rows(300))
    assert {row.line for part in (data.train, data.eval, data.test) for row in part} == set(range(1, 301))


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((0.0, None), "--eval 0: a share to hold out lies between 0 and 1"),
        ((None, 1.5), "--test 1.5: a share to hold out"),
        ((None, 1e308), "--test 1e\\+308: a share to hold out"),
        ((0.5, 0.5), "--eval 0.5 of 60 rows is 30, and 28 can be held out: a row of every label stays"),
    ],
)
def test_shares_that_leave_nothing_are_refused(shares, message):
    with pytest.raises(UsageError, match=message):
        task_data(rows(60), *shares)


def test_class_weights_are_those_of_scikit_learn():
    weights = pytest.importorskip("sklearn.utils.class_weight", reason="pip install edgepeft[train]")
    data = task_data([*rows(80), *(Row(f"text {i}", None, "other", "memory.jsonl", 100 + i) for i in range(7))])
    labels = [row.label for row in data.train]
    expected = weights.compute_class_weight("balanced", classes=np.array(data.labels), y=np.array(labels))
    assert list(data.class_weights) == list(data.labels) and len(data.labels) == 3
    np.testing.assert_allclose(list(data.class_weights.values()), expected, rtol=1e-15)


def test_few_shots_are_a_number_in_all_and_differ_by_seed_while_the_scored_rows_do_not():
    parts = [task_data(rows(200), few_shot=30, seed=seed) for seed in (0, 0, 1)]
    assert [len(data.train) for data in parts] == [30, 30, 30]
    assert [row.label for row in parts[0].train].count("bad") == 10
    assert parts[0] == parts[1]
    assert parts[0].train != parts[2].train
    assert (parts[0].eval, parts[0].test) == (parts[2].eval, parts[2].test)


def test_labels_are_sorted_by_name_and_targets_are_their_indices():
    data = task_data(rows(50))
    assert data.labels == ("bad", "good")
    assert data.task_kind.targets(rows(3)).tolist() == [0, 1, 1]


def test_a_regression_has_numbers_and_no_labels():
    numbers = [row._replace(label=str(i / 10)) for i, row in enumerate(rows(50))]
    data = task_data(numbers, kind="regression")
    assert data.labels is None
    assert data.task_kind.targets(numbers[:3]).tolist() == pytest.approx([0.0, 0.1, 0.2])


def test_a_label_unseen_in_training_is_named_with_its_file_and_line():
    odd = Row("text", None, "goood", "dev.csv", 7)
    with pytest.raises(
        DataError, match=r"dev\.csv:7: label 'goood' was not seen in memory\.jsonl, which has bad, good"
    ):
        task_data(rows(50), eval=[*rows(3, seed=1), odd])


def test_whole_numbers_are_one_label_with_and_without_a_point_as_the_training_rows_have_them():
    ints, floats = ([row._replace(label=f"{i % 2}{point}") for i, row in enumerate(rows(50))] for point in ("", ".0"))
    for train, other, names in ((ints, floats, ("0", "1")), (floats, ints, ("0.0", "1.0"))):
        data = task_data(train, eval=other[:4], test=other[4:9])
        assert data.labels == names
        assert [row.label for row in data.eval] == [names[i % 2] for i in range(4)]
        assert {row.label for row in task_data(other, labels=names).train} == {*names}  # a head's
    both = [*ints, Row("more", None, "1.0", "memory.jsonl", 51), Row("more still", None, "1.0", "memory.jsonl", 52)]
    assert task_data(both, eval=floats[:2]).eval[1].label == "1.0"  # a label of its own, which is said
    with pytest.raises(DataError, match=r"label '1\.5' was not seen"):
        task_data(ints, eval=[ints[0]._replace(label="1.5")])


def test_nan_in_a_regression_label_of_any_part_is_named_with_its_line():
    numbers = [row._replace(label=f"{i}.5") for i, row in enumerate(rows(50))]
    with pytest.raises(DataError, match=r"test\.tsv:3: the label of a regression is a finite number; found 'nan'"):
        task_data(numbers, test=[Row("t", None, "nan", "test.tsv", 3)], kind="regression")


def test_pairs_and_single_texts_are_not_mixed_between_files():
    with pytest.raises(DataError, match=r"pairs\.csv:2 is a pair, but memory\.jsonl:1 is a single text"):
        task_data(rows(50), test=[Row("a", "b", "good", "pairs.csv", 2)])


def test_the_rows_that_choose_are_never_the_rows_reported(tmp_path, data_file):
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(data_file.read_bytes())
    with pytest.raises(UsageError, match=r"every row of --data .*moods\.jsonl is in --test .*copy\.jsonl too"):
        load_data(data_file, test=copy)
    other = write(tmp_path / "other.jsonl", [{"sentence1": "cold soup", "label": "bad"}])
    with pytest.raises(UsageError, match=r"every row of --eval .* is in --test .* too.* Leave --test out"):
        load_data(data_file, eval=other, test=other)


def test_no_order_and_no_further_row_hides_that_a_part_lies_in_another(tmp_path, data_file):
    lines = data_file.read_text().splitlines(keepends=True)
    shuffled, within, around = (tmp_path / f"{name}.jsonl" for name in ("shuffled", "within", "around"))
    shuffled.write_text("".join(reversed(lines)))
    within.write_text("".join(lines[5:9]))
    around.write_text('{"sentence1": "cold film", "label": "bad"}\n' + "".join(lines))
    for test in (shuffled, around):
        with pytest.raises(UsageError, match=f"every row of --data .* is in --test .*{test.name} too"):
            load_data(data_file, test=test)
    with pytest.raises(UsageError, match=r"every row of --test .*within\.jsonl is in --eval .*around\.jsonl too"):
        load_data(write(tmp_path / "train.jsonl", PLAIN), eval=around, test=within)


def test_rows_that_choose_may_be_some_of_those_that_train_but_not_all(tmp_path, data_file):
    some = tmp_path / "some.jsonl"
    some.write_text("".join(data_file.read_text().splitlines(keepends=True)[:4]))
    assert "rows in both: 3 of eval in train, 1 of test in eval" in load_data(data_file, some).split  # one is held out
    with pytest.raises(UsageError, match=r"every row of --data .* is in --eval"):
        load_data(data_file, data_file)


def test_rows_that_two_parts_share_are_counted_in_what_is_recorded(tmp_path):
    train, more = write(tmp_path / "train.jsonl", PLAIN), [{"sentence1": "warm day", "label": "good"}]
    dev = write(tmp_path / "dev.jsonl", [*more, PLAIN[0]])
    test = write(tmp_path / "test.jsonl", [PLAIN[0], PLAIN[0], PLAIN[3], {"sentence1": "grim day", "label": "bad"}])
    split = load_data(train, dev, test).split
    assert split.endswith("; rows in both: 1 of eval in train, 3 of test in train, 2 of test in eval")
    assert "both" not in load_data(train, write(tmp_path / "new.jsonl", more)).split


@pytest.mark.parametrize(
    ("n", "options", "message"),
    [
        (60, {"few_shot": 1}, "--few-shot 1 is fewer than 2; give"),
        (60, {"few_shot": -3}, "--few-shot -3 is fewer"),
        (60, {"few_shot": 49}, "--few-shot 49 is more than the 48 rows"),
        (2, {}, "no label has a row more"),
        (1, {}, "every label is 'bad'"),
    ],
)
def test_what_cannot_be_parted_is_refused(n, options, message):
    with pytest.raises((UsageError, DataError)) as raised:
        task_data(rows(n), **options)
    assert message in str(raised.value)


def test_numbers_that_are_all_equal_are_refused_as_a_single_label_is():
    with pytest.raises(DataError, match=r"wide\.csv: every label is 2\.5; a regression needs numbers that differ"):
        task_data(labelled(["2.5", "2.50"] * 10), kind="regression")
    assert task_data(labelled(["2.5"] * 10), kind="regression", partial=True).train  # others may have other numbers


def test_every_label_stays_in_training():
    single = Row("rare", None, "rare", "memory.jsonl", 99)
    assert "rare" in {row.label for row in task_data([*rows(60), single]).train}


def test_the_digest_tells_contents_apart_and_not_places(tmp_path, data_file):
    moved = tmp_path / "moved.jsonl"
    moved.write_text("\n" + data_file.read_text())
    changed = tmp_path / "changed.jsonl"
    changed.write_text(data_file.read_text().replace("soup", "film"))
    assert load_data(data_file).sha256 == load_data(moved).sha256 != load_data(changed).sha256


def labelled(labels):
    return [Row(f"text {i}", None, label, "wide.csv", i + 2) for i, label in enumerate(labels)]


def test_labels_that_differ_in_case_blanks_or_unicode_form_only_are_said_with_their_rows_and_stay_apart():
    composed, apart = (unicodedata.normalize(form, "caf\xe9") for form in ("NFC", "NFD"))
    odd = labelled(["good", "Good", "very bad", "very  bad", "VERY BAD", "fine", composed, apart] * 10)
    with pytest.warns(
        UserWarning, match=r"wide\.csv: labels that differ in case, blanks, Unicode form or .0 only are different ones"
    ) as said:
        data = task_data(odd)
    (text,) = (str(each.message) for each in said)
    rows = "10 rows: wide.csv:{}, wide.csv:{}, wide.csv:{}, ...".format
    assert f"'Good' ({rows(3, 11, 19)}) and 'good' ({rows(2, 10, 18)})" in text and "fine" not in text
    assert [*re.findall(r"'(\S+)' \(10 rows: wide.csv:(?:8|9),", text)] == ["cafe\\u0301", composed]
    assert "'VERY BAD' (" in text and "'very  bad' (" in text and "'very bad' (" in text
    assert len(data.labels) == 8


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("good\u200b", "good", "bad"), r"Unicode form .*'good' \(10 rows: .*\) and 'good\\u200b' \(10 rows"),
        (("['a' 'b']", "['a']", "c"), r"labels in brackets are names too, .*\[' ?a' ?'b'\].*; \"\['a'\]\""),
        (("{'a', 'b'}", "('a',)", "c"), r"labels in brackets .*\('a',\)"),
    ],
)
def test_labels_that_hide_a_character_or_a_list_are_said(names, said):
    """A blank without a width, and lists as NumPy and sets print themselves: pandas writes both into tables."""
    with pytest.warns(UserWarning, match=said):
        task_data(labelled([*names] * 10))


@pytest.mark.parametrize(
    ("names", "mark"),
    [
        (("sport; tech", "tech", "news; sport", "news", "news; sport; tech"), ";"),
        (("a|b", "b|c", "a|c", "b|a"), "|"),
        (("a,b", "b", "a", "b,a"), ","),
        (("Books, Music", "Films, Games", "Toys"), None),
        (("Austin, TX", "Dallas, TX", "Waco, TX"), None),
        (("good", "bad;", "fine"), None),
    ],
)
def test_labels_that_look_like_several_names_are_said_with_the_option_that_reads_them(names, mark, recwarn):
    task_data(labelled([*names] * 10))
    said = [str(each.message) for each in recwarn if "look like several" in str(each.message)]
    assert len(said) == (mark is not None) and all(f"--kind labels --label-separator {mark!r}" in each for each in said)


def test_a_separator_of_labels_is_refused_where_a_row_has_one(tmp_path):
    (path := tmp_path / "rows.csv").write_text("text,label\n" + "hi,a; b\nho,a\n" * 20)
    with pytest.raises(UsageError, match="give --kind labels too, or leave it out"):
        load_data(path, columns=Columns(separator=";"))
    assert load_data(path, columns=Columns(separator=";"), kind="labels").labels == ("a", "b")


def test_rows_without_a_text_as_pandas_writes_them_are_said():
    rows = labelled(["a", "b"] * 10)
    rows[3:5] = [rows[3]._replace(sentence1=" "), rows[4]._replace(sentence1="", sentence2=None)]
    with pytest.warns(UserWarning, match=r"2 of 20 rows have no text: wide\.csv:5; wide\.csv:6\."):
        task_data(rows)


def test_ten_thousand_labels_are_refused_where_most_rows_have_their_own_and_else_mentioned():
    with pytest.raises(DataError, match=r"10,000 different labels in 15,000 rows, .*-column.*train --regression"):
        task_data(labelled([f"item {i % 10_000}" for i in range(15_000)]))
    with pytest.warns(UserWarning, match=r"wide\.csv has 10,000 labels; .*--label-column.*train --regression"):
        data = task_data(labelled([f"item {i % 10_000}" for i in range(40_000)]))
    assert (len(data.labels), len(data.train), len(data.eval)) == (10_000, 32_000, 4_000)


def test_a_hundred_labels_of_one_row_each_are_taken_without_a_word(recwarn):
    parts = [Row("some text", None, "item 3", "eval.csv", 2)], [Row("another text", None, "item 4", "test.csv", 2)]
    data = task_data(labelled([f"item {i}" for i in range(100)]), *parts)
    assert len(data.labels) == 100 and not [w for w in recwarn if issubclass(w.category, UserWarning)]


def test_standard_input_trains_as_a_file_does(monkeypatch, tmp_path):
    (given := tmp_path / "given.csv").write_text("sentence1,label\n" + "".join(f"row {n},{n % 2}\n" for n in range(30)))
    with given.open() as opened:
        monkeypatch.setattr("sys.stdin", opened)
        assert load_data(Path("-")).sha256 == load_data(given).sha256


def test_texts_with_different_labels_are_said_where_a_row_has_one_label(tmp_path):
    rows = [{"sentence1": f"t{i}", "label": label} for i in range(20) for label in "ab"] + [
        {"sentence1": f"u{i}", "label": "a"} for i in range(20)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = r"20 texts stand with different labels: .*rows\.jsonl:1 has 'a', .*:2 'b'; .*:3 has .*; .*; and 17 more\.$"
    with pytest.warns(UserWarning, match=told):
        load_data(tmp_path / "rows.jsonl")
    (tmp_path / "one.jsonl").write_text("\n".join(map(json.dumps, rows[1:40:2] + rows[-20:])))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_data(tmp_path / "one.jsonl")


def test_all_rows_that_cannot_be_used_are_named_at_once_or_left_out_and_said(tmp_path):
    lines = [json.dumps({"sentence1": f"text {i}", "label": "xy"[i % 2]}) for i in range(30)]
    lines[3] = '{"sentence1": "a", "label": null}'
    lines[7] = "broken"
    lines[9] = '{"sentence1": "b", "label": null}'
    lines[12] = '{"sentence1": 5, "label": "x"}'
    lines[20] = '{"sentence1": "a", "sentence2": "b", "label": "x"}'
    (path := tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError) as raised:
        load_data(path)
    said = str(raised.value)
    assert said.startswith(
        f"{path}: 5 rows cannot be used; --skip-bad leaves them out. lines 4, 10: the label must be a"
    )
    assert "line 8: not JSON" in said and "line 13: sentence1 must be a text; found 5." in said
    assert "line 21: rows before have no sentence2" in said
    with pytest.warns(UserWarning, match="5 rows are left out"):
        data = load_data(path, skip_bad=True)
    assert len(data.train) + len(data.eval) + len(data.test) == 25
    assert data.split.endswith("; left out of rows.jsonl: 5 that cannot be used")


def test_what_is_said_of_a_single_row_is_in_the_singular(tmp_path):
    rows = "".join(f"text {i},{'xy'[i % 2]}\n" for i in range(9))
    (path := tmp_path / "rows.csv").write_text(f"text,label\n{rows},x\nhi,\n")
    with (
        pytest.warns(UserWarning, match="rows.csv: 1 row is left out"),
        pytest.warns(UserWarning, match="1 of 10 rows has no text"),
    ):
        split = load_data(path, skip_bad=True).split
    assert "eval: 1 row held out of rows.csv" in split


def test_many_problems_are_counted_and_a_file_of_nothing_else_is_refused_all_the_same(tmp_path):
    good = [json.dumps({"sentence1": f"text {i}", "label": "xy"[i % 2]}) for i in range(30)]
    (path := tmp_path / "rows.jsonl").write_text("\n".join([*good, *['{"sentence1": "a", "label": null}'] * 50]))
    with pytest.raises(DataError, match=r"50 rows cannot be used.* lines 31, 32, .*, 50 and 30 more: the label"):
        load_data(path)
    path.write_text("\n".join(['{"sentence1": "a", "label": null}'] * 50))
    with pytest.raises(DataError, match=r"rows\.jsonl:1: the label must be a text"):
        load_data(path, skip_bad=True)
    path.write_text("\n".join(['{"sentence1": "a", "label": null}', "broken"] * 25))
    with pytest.raises(DataError, match=r"50 rows cannot be used\. lines 1, 3"):
        load_data(path, skip_bad=True)


def test_a_text_that_stands_with_another_label_in_another_part_is_counted(tmp_path):
    train = [{"sentence1": f"text {i}", "label": "xy"[i % 2]} for i in range(20)]
    test = [*train[:2], {"sentence1": "text 4", "label": "y"}, {"sentence1": "new", "label": "x"}]
    parts = {
        "train": train,
        "eval": [{"sentence1": f"other {i}", "label": "xy"[i % 2]} for i in range(4)],
        "test": test,
    }
    for name, rows_of_part in parts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of_part))
    copies = (
        r"2 rows of test stand in train too: test\.jsonl:1 is train\.jsonl:1 of train; test\.jsonl:2 is .*:2 of train\."
    )
    with pytest.warns(UserWarning, match="with different labels"), pytest.warns(UserWarning, match=copies):
        data = load_data(*(tmp_path / f"{name}.jsonl" for name in parts))
    said = "; rows in both: 2 of test in train; texts in both with other labels: 1 of test in train"
    assert data.split.endswith(said)
