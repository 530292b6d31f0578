"""What is wrong with a document is said in words that no library wrote: where, what is needed, what was found."""

import json
import re
from pathlib import Path
from typing import Annotated, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core.core_schema import ErrorType

from edgepeft.common.validation_messages import _NEEDED, in_words

ROOT = Path(__file__).parents[2]


class Row(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str
    label: str | int | None = None


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid")
    rows: Annotated[list[str | Row], Field(min_length=1)] = ["a"]
    kind: Literal["fp32", "int8"] = "fp32"
    size: Annotated[int, Field(ge=1, lt=10)] = 1
    share: Annotated[int | float, Field(gt=0)] = 1
    name: Annotated[str, Field(pattern="^[a-z]+$")] = "a"
    even: int = 2

    @field_validator("even")
    @classmethod
    def _is_even(cls, value: int) -> int:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value


def said(content, **more):
    with pytest.raises(ValidationError) as wrong:
        Document.model_validate_json(content if isinstance(content, str) else json.dumps(content))
    return in_words(wrong.value, **more)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"rows": []}, "rows must be a list of 1 or more, found a list of 0"),
        ({"rows": "a"}, "rows must be a list, found 'a'"),
        ({"kind": "fp16"}, "kind must be 'fp32' or 'int8', found 'fp16'"),
        ({"size": 0}, "size must be a number of at least 1, found 0"),
        ({"size": 10}, "size must be a number under 10, found 10"),
        ({"size": "x"}, "size must be a whole number, found 'x'"),
        ({"size": 1.5}, "size must be a whole number, found 1.5"),
        ({"share": "x"}, "share must be a number, found 'x'"),
        ({"share": -1}, "share must be a number above 0, found -1"),
        ({"name": "A"}, "name must be text of the form ^[a-z]+$, found 'A'"),
        ({"name": None}, "name must be text, found None"),
        ({"even": 3}, "even: 3 is odd"),
        ({"sizes": 3}, "sizes is not a key that is known"),
        ([], "the document must be an object, found a list of 0"),
        ('{"size": 1,\n', "the document is not JSON (line 2 column 0)"),
    ],
)
def test_a_mistake_is_told_by_its_place_what_is_needed_and_what_is_there(content, sentence):
    assert said(content) == sentence


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"rows": [{"label": "secret"}]}, "rows.0.text is missing"),
        ({"rows": [{"text": ["secret"]}]}, "rows.0.text must be text, found a list of 1"),
        ({"rows": [3]}, "rows.0 must be text or an object, found a number"),
        ({"rows": [{"text": "a", "secret": 1}]}, "rows.0 has a key that is not known"),
        ({"secret": 1}, "the body has a key that is not known"),
        ({"rows": "secret"}, "rows must be a list, found text"),
        ("secret", "the body must be an object, found text"),
    ],
)
def test_to_a_stranger_nothing_is_told_of_what_was_sent_but_its_kind(content, sentence):
    told = said(json.dumps(content), whole="the body", names={"rows", "text"})
    assert told == sentence


def test_the_kinds_of_mistakes_that_have_words_are_pydantics():
    assert set(_NEEDED) <= set(get_args(ErrorType))


def test_nobody_prints_pydantics_words():
    """``msg`` is its sentence, in a table of the library's; whoever reads it leaves the words to pydantic."""
    readers = [path for path in (ROOT / "edgepeft").rglob("*.py") if re.search(r"\[.msg.\]", path.read_text())]
    assert [path.name for path in readers] == ["validation_messages.py"]
