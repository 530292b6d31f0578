"""What people read: mistakes are told in words that no library wrote (where, what is needed, what was found), and what comes
from a bundle or from data decides no more of a terminal than the letters in it.
"""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Annotated, Literal, get_args

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core.core_schema import ErrorType
from rich.text import Text

from edgepeft.bundle.manifest import Manifest, model_card
from edgepeft.cli import _output
from edgepeft.common.messages import _NEEDED, counted, first_of, mistakes_text, printable, reason

ROOT = Path(__file__).parents[2]
# Colours, the title, the clipboard (OSC 52), a C1 introducer, a bell, text that runs backwards, a line end of its own.
HOSTILE = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0=\x07",
    "\x9b2J",
    "\a",
    "\u202egnp.exe",
    "\u2028",
    "\r",
    "\x7f",
]


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
    return mistakes_text(wrong.value, **more)


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
        ({"rows": [{"text": "a", "rows": "secret"}]}, "rows.0.rows is not a key that is known"),
        ({"texts": "secret"}, "texts is not a key that is known"),
        ({"x" * 100: "secret"}, f"{'x' * 80} is not a key that is known"),
        ({"rows": "secret"}, "rows must be a list, found text"),
        ("secret", "the body must be an object, found text"),
    ],
)
def test_to_a_stranger_no_value_is_told_but_its_kind_and_no_key_but_one_that_is_not_known(content, sentence):
    told = said(json.dumps(content), whole="the body", names={"rows", "text"})
    assert told == sentence


def test_the_kinds_of_mistakes_that_have_words_are_pydantics():
    assert set(_NEEDED) <= set(get_args(ErrorType))


def test_nobody_prints_pydantics_words():
    """``msg`` is its sentence, in a table of the library's; whoever reads it leaves the words to pydantic."""
    readers = [path for path in (ROOT / "edgepeft").rglob("*.py") if re.search(r"\[.msg.\]", path.read_text())]
    assert [path.name for path in readers] == ["messages.py"]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_but_letters_reaches_a_terminal(text):
    assert printable(text).isprintable()
    assert printable(text).isascii()  # all of these are escaped, none is dropped
    assert len(printable(text)) > len(text)


def test_what_people_write_stays_as_it_is():
    text = "Größe\u00a0mm,\u3000全角\t🙂\nzwei"
    assert printable(text) == text
    assert printable(text, keep="") == text.replace("\t", "\\t").replace("\n", "\\n")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("width", [8, 120])
def test_tables_and_messages_show_names_without_control_characters(text, width):
    console, shown = _output.table_console(), StringIO()
    console.file, console.width = shown, width
    table = _output.plain_table("label", title=f"of {text}")
    table.add_row(text)
    table.add_row(Text(text))
    console.print(table, f"message {text}", markup=False)
    assert all(line.isprintable() for line in shown.getvalue().split("\n"))
    assert "message" in shown.getvalue()
    if width == 120:  # whole, wherever it stands; rich itself drops a bell and a carriage return
        assert shown.getvalue().count(printable(text)) == (1 if {"\a", "\r"} & {*text} else 4)


def test_styles_are_still_richs(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console, shown = _output.table_console(), StringIO()
    console.file = shown
    console.print(Text("red\x1b[2J", style="red"))
    assert shown.getvalue() == "\x1b[31mred\\x1b[2J\x1b[0m\n"


def test_nothing_of_a_manifest_from_elsewhere_becomes_markup_or_front_matter_of_the_bundles_page(bundle):
    manifest = Manifest.read(bundle)
    hostile = "a/b\nlicense: mit\n<script>|*x*"
    backbone = manifest.backbone.model_copy(update={"source": hostile, "model_type": hostile})
    odd = {"method": hostile, "metrics": {"metric": hostile, "test": 1, "baselines": {hostile: {"test": 0}}}}
    tasks = {name: entry.model_copy(update=odd) for name, entry in manifest.tasks.items()}
    page = model_card(
        manifest.model_copy(update={"backbone": backbone, "tasks": tasks, "versions": {hostile: hostile}})
    )
    assert "\nlicense" not in page
    assert "base_model" not in page
    assert "<script>" not in page.replace("\\<", "")
    rows = [line for line in page.splitlines() if line.startswith(("| mood", "| pair", "| score"))]
    assert [row.replace("\\|", "").count("|") for row in rows] == [8, 8, 8]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("\n one\ntwo"), "one"),
        (ValueError(), "ValueError"),
        (OSError(" \n"), "OSError"),
        (ValueError("x" * 999), "x" * 200),
    ],
)
def test_a_reason_is_one_line_also_of_an_error_that_says_nothing(error, said):
    assert reason(error) == said


def test_noun_and_verb_agree_with_their_number():
    assert [counted(n, "row is") for n in (0, 1, 2)] == ["0 rows are", "1 row is", "2 rows are"]
    assert [counted(n, "text") for n in (1, 12_000)] == ["1 text", "12,000 texts"]


def test_of_many_the_first_are_told_and_the_others_counted():
    assert [first_of(list("abcde")[:n]) for n in (0, 3, 5)] == ["", "a, b, c", "a, b, c and 2 more"]
    assert first_of(["a"] * 1_002, 2, "; ") == "a; a and 1,000 more"
    assert [first_of(["a", "b"], n=n) for n in (2, 5)] == ["a, b", "a, b and 3 more"]  # of so many in all
