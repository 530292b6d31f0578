"""Rows of tagged texts: a tag for each word, or spans of characters, checked against the text.

A row's ``label`` is canonical JSON: ``{"tags": [tag, ...]}``, or ``{"spans": [[start, end, type], ...]}``, sorted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from edgepeft.common.errors import DataError
from edgepeft.data.labels import label_text, shown
from edgepeft.data.rows import Row
from edgepeft.data.words import Words, words_of
from edgepeft.tasks._tags import OUTSIDE, Entity, entities, with_tags

__all__ = ["Tagged", "tagged_label", "tagged_row"]

_FORMS = (
    'words and tags ({"words": ["Ada", "came"], "tags": ["B-PER", "O"]}), or a text and spans '
    '({"text": "Ada came", "spans": [{"start": 0, "end": 3, "label": "PER"}]})'
)


class Tagged(NamedTuple):
    """A row's entities, and its tags where these were given; ``widened`` is a span that ends within a word."""

    n_words: int
    found: tuple[Entity, ...]
    given: tuple[str, ...] | None
    widened: str | None = None

    def tags(self, known: Sequence[str] | None) -> list[str]:
        """Of each word: as they are, or of spans in the scheme of the ``known`` ones."""
        return with_tags(self.found, self.n_words, known) if self.given is None else list(self.given)


def tagged_label(value: Any, where: str) -> str:
    """The canonical text of what a row says of its words.

    Raises:
        DataError: it is neither tags nor spans; a span is empty or reversed, or two overlap.
    """
    if isinstance(value, Mapping) and len(value) == 1 and {*value} <= {"tags", "spans"}:
        name, value = next(iter(value.items()))
    else:
        name = "tags" if isinstance(value, list | tuple) and value and isinstance(value[0], str) else "spans"
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: {name} are a list; found {shown(value)}. A row has {_FORMS}.")
    read = _tags(value, where) if name == "tags" else _spans(value, where)
    return json.dumps({name: read}, ensure_ascii=False, separators=(",", ":"))


def _tags(values: Sequence[Any], where: str) -> list[str]:
    return [label_text(value, where, f"tag of word {i}") for i, value in enumerate(values, start=1)]


def _spans(values: Sequence[Any], where: str) -> list[tuple[int, int, str]]:
    spans = sorted(_span(value, where) for value in values)
    for one, other in pairwise(spans):
        if other[0] < one[1]:
            raise DataError(
                f"{where}: the spans {_said(one)} and {_said(other)} overlap; a word has one tag. Keep one of them."
            )
    return spans


def _span(value: Any, where: str) -> tuple[int, int, str]:
    parts = [value.get(key) for key in ("start", "end", "label")] if isinstance(value, Mapping) else value
    if not isinstance(parts, list | tuple) or len(parts) != 3 or any(type(each) is not int for each in parts[:2]):
        raise DataError(
            f"{where}: a span is {{start, end, label}} of two whole numbers and a type; found {shown(value)}."
        )
    start, end, label = int(parts[0]), int(parts[1]), label_text(parts[2], where, "label of a span")
    if label == OUTSIDE:
        raise DataError(f"{where}: {OUTSIDE} says that a word is outside of all spans; leave that span out.")
    if not 0 <= start < end:
        wrong = "has no character" if start == end else "ends before it starts" if start > end else "starts before 0"
        raise DataError(
            f"{where}: the span {start} to {end} ({label}) {wrong}; start is its first character, end past it."
        )
    return start, end, label


def tagged_row(row: Row) -> Tagged:
    """What a row says, checked against its text.

    Raises:
        DataError: a pair; no words; tags that are not as many; a span past the text, of no word, or of another's word.
    """
    if row.sentence2 is not None:
        raise DataError(f"{row.where}: tags are of one text, and this row is a pair; leave the second one out.")
    text, words, read = row.sentence1, words_of(row.sentence1), json.loads(row.label or "null")
    if not words:
        raise DataError(f"{row.where}: the text has no word to tag: {shown(text)}; leave the row out.")
    if "tags" in read:
        if len(read["tags"]) != len(words):
            more = "" if isinstance(text, Words) else "; give the row's words too, as a list called words"
            raise DataError(f"{row.where}: {len(read['tags'])} tags for {len(words)} words; each has one{more}.")
        return Tagged(len(words), tuple(entities(read["tags"])), tuple(read["tags"]))
    found, widened = list[Entity](), None
    for start, end, label in read["spans"]:
        if end > len(text):
            raise DataError(
                f"{row.where}: the span {start} to {end} ({label}) ends beyond the text, which has {len(text)} "
                "characters (of Python: an emoji is one)."
            )
        within = [i for i, (first, last) in enumerate(words) if last > start and first < end]
        if not within:
            raise DataError(f"{row.where}: the span {start} to {end} ({label}) has no word: {shown(text[start:end])}.")
        if found and found[-1].last >= within[0]:
            raise DataError(
                f"{row.where}: two spans share the word {text[slice(*words[within[0]])]!r}, of which the second is "
                f"{start} to {end} ({label}); a word has one tag. Keep one of them."
            )
        if text[words[within[0]][0] : start].strip() or text[end : words[within[-1]][1]].strip():
            widened = f"{row.where}: {text[start:end]!r} of {text[words[within[0]][0] : words[within[-1]][1]]!r}"
        found.append(Entity(label, within[0], within[-1]))
    return Tagged(len(words), tuple(found), None, widened)


def _said(span: tuple[int, int, str]) -> str:
    return f"{span[0]} to {span[1]} ({span[2]})"
