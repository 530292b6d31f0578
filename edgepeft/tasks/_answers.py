"""Answers in passages as rows state them, checked against the passage; and SQuAD's scores of texts.

A row's ``label`` is canonical JSON: a list of [start, text], empty where the passage has no answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgepeft.common.errors import DataError
from edgepeft.data.labels import shown
from edgepeft.data.rows import Row
from edgepeft.data.text_metrics import exact_match, f1

__all__ = ["answers_label", "answers_of", "best_score", "right_texts"]

_FORMS = '{"text": ["1912"], "answer_start": [17]}, as SQuAD has them, empty lists where the passage has no answer'


def answers_label(value: Any, where: str) -> str:
    """The canonical text of a row's answers.

    Raises:
        DataError: they are none.
    """
    try:
        return json.dumps([_pair(*each) for each in _pairs(value)], ensure_ascii=False, separators=(",", ":"))
    except (TypeError, KeyError, ValueError):
        raise DataError(f"{where}: answers are {_FORMS}; found {shown(value)}.") from None


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if value in (None, "", [], {}):
        return []
    if isinstance(value, str):  # a table's cell
        return _pairs(json.loads(value))
    if isinstance(value, Mapping):
        starts, texts = value["answer_start"], value["text"]
        if isinstance(texts, str):
            starts, texts = [starts], [texts]
        return list(zip(starts, texts, strict=True))
    return [(each["answer_start"], each["text"]) for each in value]


def _pair(start: Any, text: Any) -> list[Any]:
    if type(start) is not int or not isinstance(text, str):
        raise TypeError
    return [start, text]


def answers_of(row: Row) -> list[tuple[int, str]]:
    """Where each answer starts, and its text, checked against the passage.

    Raises:
        DataError: there is no question or passage; an answer does not stand where it should.
    """
    passage, found = row.sentence2 or "", [(start, text) for start, text in json.loads(row.label or "[]")]
    for name, text in (("question", row.sentence1), ("passage", passage)):
        if not text.strip():
            raise DataError(f"{row.where}: the {name} is empty; a row has a question and a passage to find it in.")
    for start, text in found:
        if not text.strip():
            raise DataError(
                f"{row.where}: an answer has no text; where the passage has none, answers is an empty list."
            )
        if start < 0 or start + len(text) > len(passage):
            wrong = "starts before it" if start < 0 else "ends beyond it"
            raise DataError(
                f"{row.where}: the answer {shown(text)} at {start} {wrong}: the passage has {len(passage)} characters "
                "(of Python: an emoji is one)."
            )
        if (there := passage[start : start + len(text)]) != text:
            at = passage.find(text)
            hint = f"it stands at {at}" if at >= 0 else "it stands nowhere in it"
            raise DataError(
                f"{row.where}: at {start} of the passage stands {shown(there)}, and not the answer {shown(text)}; "
                f"{hint}."
            )
    return found


def right_texts(row: Row) -> tuple[str, ...]:
    """What SQuAD's script compares with: answers that have a word, or the empty text."""
    texts = dict.fromkeys(text for _, text in json.loads(row.label or "[]") if not exact_match(text, ""))
    return tuple(texts) or ("",)


def best_score(metric: str, given: str, right: Sequence[str]) -> float:
    """By the best of the right answers."""
    score = {"exact_match": exact_match, "f1": f1}[metric]
    return max(score(given, text) for text in right)
