from __future__ import annotations

import pytest

from edgepeft.bench.planning.scenario import LENGTHS, Lengths, full_length, load_lengths, shipped
from edgepeft.common.errors import DataError, UnknownName


@pytest.mark.parametrize(("name", "rows", "longest"), [("sst2", 872, 55), ("mrpc", 408, 86), ("rte", 277, 253)])
def test_shipped_lengths_are_whole_validation_sets_in_arrival_order(name, rows, longest):
    found = load_lengths(name)
    assert len(found.values) == rows  # GLUE's published validation sizes
    assert max(found.values) == longest
    assert list(found.values) != sorted(found.values)
    assert "MiniLM" in found.described


def test_every_shipped_list_can_be_named():
    assert [*shipped(LENGTHS)] == ["cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"]  # GLUE's nine


def test_a_list_file_is_read_in_its_order(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("12\n7\n\n30\n")
    assert load_lengths(str(file)).values == (12, 7, 30)


def test_a_histogram_gives_every_length_as_often_as_it_says(tmp_path):
    file = tmp_path / "h.toml"
    file.write_text("[histogram]\n8 = 3\n16 = 2\n")
    found = load_lengths(str(file), seed=1).values
    assert sorted(found) == [8, 8, 8, 16, 16]
    assert found == load_lengths(str(file), seed=1).values


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"12\nseven\n"),
        ("a.txt", b"12\n-3\n"),
        ("a.txt", b"0\n"),
        ("a.txt", b"\n"),
        ("a.txt", b"1.5\n"),
        ("a.txt", b"\xff\xfe\x00"),
        ("a.toml", b"lengths = 3"),
        ("a.toml", b"lengths = [1, 'x']"),
        ("a.toml", b"not toml"),
        ("a.toml", b"other = 1"),
        ("a.toml", b"histogram = 3"),
        ("a.toml", b"[histogram]\n8 = 0\n"),
        ("a.toml", b"[histogram]\n8 = 100000000000\n"),
    ],
)
def test_a_file_without_usable_lengths_is_refused_by_name(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DataError, match=name):
        load_lengths(str(file))


def test_an_unknown_list_names_the_shipped_ones():
    with pytest.raises(UnknownName, match="Did you mean 'sst2'"):
        load_lengths("sst-2")


def test_full_rows_have_no_padding():
    lengths = full_length(128, 4)
    assert lengths.values == (128,) * 4
    assert lengths.uniform


def test_longer_texts_are_cut_to_what_the_model_takes():
    assert Lengths((600, 20), "x", "x").clamped(512).values == (512, 20)
