"""Other names, in any case, that files give to text, second text, label and candidates."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from edgepeft.common.errors import DataError
from edgepeft.data.labels import opened, shown
from edgepeft.data.pattern import UnreadableRow
from edgepeft.data.shapes import LABELS, NUMBERED, TEXTS, lower_names, one_of

FIRST, SECOND, LABEL = "sentence1", "sentence2", "label"
_TITLE = "title"  # the text where there is no other
_PAIRS = (
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("sentence_a", "sentence_b"),
    ("query", "passage"),
    ("question", "passage"),
    ("question", "sentence"),
    ("question", "context"),
)
_ANSWER = "answer"  # of a question and a passage, as BoolQ has it
CANDIDATES = "candidates"
_MIN = 2


def candidates_in(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the candidates of a file's row; none if it has no such column."""
    if CANDIDATES in record:
        return distinct_candidates(opened(record[CANDIDATES]), where)
    names = _numbered(record)
    if len(kinds := {match[1] for name in names if (match := NUMBERED.fullmatch(name))}) > 1:
        told = ", ".join(sorted(kinds))
        raise DataError(f"{where}: numbered columns of several names ({told}); put the candidates into one list.")
    numbered = [record[name] for name in names]
    while numbered and numbered[-1] in (None, ""):  # a table's rows have as many cells as its longest one
        numbered.pop()
    return distinct_candidates(numbered, where) if names else ()


def _numbered(record: Mapping[str, Any]) -> list[str]:
    """Return the numbered columns, by their numbers."""
    found = {name: int(match[2]) for name in record if (match := NUMBERED.fullmatch(name)) is not None}
    return sorted(found, key=found.__getitem__)


def chosen_column(record: Mapping[str, Any], label: Any) -> Any:
    """Return the place of the candidate whose column the label names, as COPA's classes do; else the label."""
    names = _numbered(record)
    return names.index(label) if isinstance(label, str) and label in names else label


def distinct_candidates(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of candidates after a check: at least two texts, all different."""
    if not isinstance(value, list | tuple):
        raise UnreadableRow(f"{where}: {CANDIDATES} is a list of texts; found {shown(value)}.")
    for place, text in enumerate(value):
        if not isinstance(text, str) or not text.strip():
            raise UnreadableRow(f"{where}: candidate {place} must be a text that is not empty; found {shown(text)}.")
        if text.strip() in (other.strip() for other in value[:place]):
            raise UnreadableRow(f"{where}: the candidate {shown(text)} stands there twice; give each once.")
    if len(value) < _MIN:
        held = "one candidate" if value else "no candidate"
        raise UnreadableRow(f"{where}: the row has {held}, and one is picked of two or more.")
    return tuple(value)


def by_convention(
    path: object, record: Mapping[str, Any], text: str | None, pair: str | None, label: str | None, *, labels: bool
) -> dict[str, str]:
    """Return which columns are read as text, pair and label, where no option names them and no usual name is there."""
    if FIRST in record and LABEL in record:
        return {}
    known = lower_names(record)
    found: dict[str, str] = {}
    if text is None and not {FIRST, "words"} & known.keys() and not {"text", "spans"} <= known.keys():
        pairs = [names for names in _PAIRS if pair is None and {*names} <= known.keys()]
        texts = [known[name] for name in TEXTS if name in known and not any(name in names for names in pairs)]
        texts += [known[_TITLE]] if _TITLE in known and not texts and not pairs else []
        one_of(path, [*texts, *(" and ".join(names) for names in pairs)], "the text", "--text-column")
        if pairs:
            found = {FIRST: known[pairs[0][0]], SECOND: known[pairs[0][1]]}
        elif texts:
            found = {FIRST: texts[0]}
    if labels and label is None and LABEL not in record and (found or FIRST in record or text):
        names = [known[name] for name in LABELS if name in known and known[name] not in found.values()]
        names += [known[_ANSWER]] if not names and _ANSWER in known and SECOND in found else []
        if (only := one_of(path, names, "the label", "--label-column")) is not None:
            found[LABEL] = only
    if found:
        told = ", ".join(f"{usual} is the column {name}" for usual, name in found.items())
        warnings.warn(f"{path}: {told}; --text-column, --pair-column and --label-column name others.", stacklevel=2)
    return found
