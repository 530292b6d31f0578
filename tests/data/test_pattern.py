"""Patterns: what is filled in, what is refused, and how."""

from __future__ import annotations

import pytest

from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.data.pattern import UnreadableRow, pattern


def test_fields_are_filled_in_and_all_else_stays():
    reads = pattern("sum {{it}}:  {text} / {text} ({year})")
    assert reads.fields == ("text", "year")
    assert reads.filled({"text": " a {b} ", "year": 2004}, "row 1") == "sum {it}:   a {b}  /  a {b}  (2004)"


def test_a_field_may_be_of_a_column_of_another_name():
    reads = pattern("{{x}} premise: {premise:untagged} {hypothesis}").renamed({"premise": "sentence1"})
    assert reads.text == "{{x}} premise: {sentence1:untagged} {hypothesis}"
    with pytest.raises(UnknownName, match=r"no field of the source is called 'premisse'\. Did you mean 'premise'"):
        pattern("{premise}").renamed({"premisse": "a"})


@pytest.mark.parametrize("text", ["{", "a } b", "{}", "{a!r}", "{a[b}", "{a", "no field", ""])
def test_what_is_no_pattern_is_refused(text: str):
    with pytest.raises(UsageError, match="field"):
        pattern(text)


def test_fields_are_names_and_nothing_is_looked_up_in_them():
    reads = pattern("{a.__class__}{b[0]}")
    assert reads.fields == ("a.__class__", "b[0]")
    assert reads.filled({"a.__class__": "x", "b[0]": "y"}, "row") == "xy"


def test_an_unknown_cleaning_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no cleaning of a field is called 'untaged'\. Did you mean 'untagged'"):
        pattern("{a:untaged}")


def test_a_row_without_a_column_is_refused_with_those_that_are_there():
    with pytest.raises(UnreadableRow, match=r"f:3: no column b, which '\{a\} \{b\}' reads. Found columns: a, c\."):
        pattern("{a} {b}").filled({"a": "x", "c": "y"}, "f:3")
    assert issubclass(UnreadableRow, DataError)


@pytest.mark.parametrize("value", [None, True, ["a"], {"a": 1}])
def test_what_is_neither_text_nor_number_is_refused(value: object):
    with pytest.raises(UnreadableRow, match="f:3: a must be a text or a number; found"):
        pattern("{a}").filled({"a": value}, "f:3")


def test_a_list_is_joined_or_gives_every_choice():
    assert pattern("of {a:joined}").filled({"a": ["x", "y"]}, "row") == "of x, y"
    assert pattern("a {a}").choices({"a": ["x", "y"]}, "row") == ("a x", "a y")
    assert pattern("{a:joined}").choices({"a": ["x", "y"]}, "row") == ("x, y",)
    with pytest.raises(UnreadableRow, match="a, a list of answers, is empty"):
        pattern("{a}").choices({"a": []}, "row")
    with pytest.raises(UnreadableRow, match="no column a"):
        pattern("{a}").choices({}, "row")
