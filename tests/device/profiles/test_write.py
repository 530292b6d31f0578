"""What is written as TOML is read back by the standard library as it was."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepeft.device.profiles.loader import toml_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALAR = st.one_of(TEXT, st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False))
VALUE = st.one_of(SCALAR, st.lists(SCALAR, max_size=3))
TABLE = st.dictionaries(TEXT, VALUE, max_size=4)
ROWS = st.lists(TABLE.filter(bool), min_size=1, max_size=3)


@given(st.dictionaries(TEXT, st.one_of(VALUE, TABLE.filter(bool), ROWS), max_size=5))
def test_any_document_comes_back_as_it_was(document):
    assert tomllib.loads(toml_of(document, "a comment\nof two lines")) == document


def test_tables_in_tables_and_their_own_keys_stay_where_they_belong():
    document = {"a": 1, "figures": {"x": {"value": 1.5}, "y": {"value": 2}}, "rows": [{"n": 1}, {"n": 2}], "z": "end"}
    assert tomllib.loads(toml_of(document)) == document


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_not_written(bad):
    with pytest.raises(ValueError):
        toml_of({"x": bad})
