"""A text with fields that a row's columns fill in: ``mrpc sentence1: {sentence1} sentence2: {sentence2}``.

``{paragraph:untagged}`` passes the column through one of ``CLEANINGS``, as T5 (Raffel et al., 2020) and Compacter
prepare their data; ``{entities:joined}`` takes a list, with commas between.  ``{{`` and ``}}`` are braces.  All else
stays as it is, blanks too.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from edgepeft.common.errors import DataError, UnknownName, UsageError, look_up

_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")


def spaced(text: str) -> str:
    """Put blanks around ASCII's punctuation, and single ones everywhere: T5's SQuAD."""
    return _single(_PUNCTUATION.sub(r" \1 ", text))


def spaced_apart(text: str) -> str:
    """Put blanks around all but letters, numbers, accents and underscores: Compacter's SQuAD."""
    return _single("".join(c if c == "_" or unicodedata.category(c)[0] in "LNM" else f" {c} " for c in text))


def untagged(text: str) -> str:
    """Make ``<br>`` a blank, ``<b>`` and ``</b>`` nothing: MultiRC."""
    return re.sub("</?b>", "", text.replace("<br>", " "))


def in_sentences(text: str) -> str:
    """Go on with lines after ``@highlight`` as sentences: ReCoRD's passages."""
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text)
    return text.replace("\n@highlight\n", ". ")


def nearest(label: str, step: float, where: str) -> str:
    """Return the multiple of ``step`` that is nearest to a number, with one decimal: STS-B's targets."""
    try:
        return f"{round(float(label) / step) * step:.1f}"
    except (ValueError, OverflowError):
        raise DataError(f"{where}: the label must be a finite number; found {label!r}.") from None


def _single(text: str) -> str:
    return " ".join(text.split())


CLEANINGS: dict[str, Callable[[str], str]] = {
    "spaced": spaced,
    "spaced-apart": spaced_apart,
    "untagged": untagged,
    "in-sentences": in_sentences,
}
"""By the name that follows a field: ``{paragraph:untagged}``."""

JOINED = "joined"


def cell_at(record: Mapping[str, Any], name: str) -> Any:
    """Return the cell of a column, or of one within columns: ``review.text``; raise KeyError if there is none."""
    if name in record:
        return record[name]
    cell: Any = record
    for part in name.split("."):
        if not isinstance(cell, Mapping):
            raise KeyError(name)
        cell = cell[part]
    return cell


class UnreadableRow(DataError):
    """A row lacks a column that a pattern reads, or has something else than a text there."""


class _Piece(NamedTuple):
    """A text and the field after it; the last one may have none."""

    literal: str
    field: str | None
    cleaning: str


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern; equal texts are equal patterns."""

    text: str
    parts: tuple[_Piece, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that it reads, each once, in order."""
        return tuple(dict.fromkeys(part.field for part in self.parts if part.field is not None))

    def filled(self, row: Mapping[str, Any], where: str) -> str:
        """Fill in a row; ``where`` is what an error calls it."""
        return "".join(part.literal + self._value(part, row, where) for part in self.parts)

    def choices(self, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """Return every text that it may be: one for each answer of a list, or of SQuAD's ``{"text": list}``."""
        field = self.fields[0]
        value = row.get(field)
        value = value.get("text", value) if isinstance(value, Mapping) else value
        joins = any(part.cleaning == JOINED for part in self.parts)
        if len(self.fields) > 1 or not isinstance(value, list | tuple) or joins:
            return (self.filled(row, where),)
        if not value:
            raise UnreadableRow(f"{where}: {field}, a list of answers, is empty; each row needs one.")
        return tuple(self.filled({field: each}, where) for each in value)

    def renamed(self, columns: Mapping[str, str]) -> Pattern:
        """Return the pattern with columns of other names."""
        for field in columns:
            if field not in self.fields:
                raise UnknownName("field of the source", field, self.fields)
        text = ""
        for literal, name, cleaning in self.parts:
            text += literal.replace("{", "{{").replace("}", "}}")
            text += "" if name is None else f"{{{columns.get(name, name)}{cleaning and f':{cleaning}'}}}"
        return pattern(text)

    def _value(self, part: _Piece, row: Mapping[str, Any], where: str) -> str:
        if part.field is None:
            return ""
        try:
            value = cell_at(row, part.field)
        except KeyError:
            found = ", ".join(map(str, row)) or "none"
            told = f"no column {part.field}, which {self.text!r} reads. Found columns: {found}."
            raise UnreadableRow(f"{where}: {told}") from None
        if part.cleaning == JOINED and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
            return ", ".join(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UnreadableRow(f"{where}: {part.field} must be a text or a number; found {value!r:.60}.")
        return CLEANINGS[part.cleaning](str(value)) if part.cleaning in CLEANINGS else str(value)


@cache
def pattern(text: str) -> Pattern:
    """Parse a pattern."""
    try:
        found = list(string.Formatter().parse(text))
    except ValueError as error:
        raise UsageError(
            f"{text!r} has no readable fields ({error}); a field is {{column}}, a brace is {{{{."
        ) from None
    parts = tuple(_Piece(literal, field, cleaning or "") for literal, field, cleaning, _ in found)
    if any(field == "" or conversion for _, field, _, conversion in found):
        raise UsageError(f"{text!r} has a field without a name, or one with a !; a field is {{column}}.")
    for part in parts:
        if part.cleaning and part.cleaning != JOINED:
            look_up("cleaning of a field", part.cleaning, CLEANINGS)
    if not any(part.field for part in parts):
        raise UsageError(f"{text!r} has no field, so all rows would read alike; a field is {{column}}.")
    return Pattern(text, parts)
