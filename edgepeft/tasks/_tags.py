"""Tags of words and the entities that they mark: BIO (IOB2), BILOU, BIOES, IO or names alone; tagged rows; scores.

An entity is what seqeval's ``get_entities`` finds (Nakayama, 2018; version 1.2.2, not strict), which is conlleval's
rule: an I- that follows no entity of its type begins one.  BILOU's L and U are E and S by other names.  A tag without
such a letter in front is the type itself: what stands side by side with it is one entity.

A row has a tag for each word, or spans of characters, checked against the text.  Its ``label`` is canonical JSON:
``{"tags": [tag, ...]}``, or ``{"spans": [[start, end, type], ...]}``, sorted.

Scores of entities are seqeval's, without it: what is tuned on a board is scored there.  Of 0 / 0 a score is 0.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import eq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError
from edgepeft.common.messages import counted
from edgepeft.data.columns import label_text, quote
from edgepeft.data.rows import Row
from edgepeft.data.words import Words, words_of
from edgepeft.tasks._losses import Metric, Values

OUTSIDE = "O"
_LETTERS = "BIESLU"
_ALIKE = {"L": "E", "U": "S"}
_SCHEMES = ("I", "BI", "BIES", "BILU")  # the shortest that has a row's letters is its own
_NAMED = ""  # the scheme of names alone


class Entity(NamedTuple):
    """Words ``first`` to ``last``, both of them its own."""

    label: str
    first: int
    last: int


def _parts(tag: str) -> tuple[str, str]:
    """Divide a tag into its letter, as BIOES has it, and its type."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if tag in _LETTERS and len(tag) == 1:
        return _ALIKE.get(tag, tag), "_"
    if tag[0] in _LETTERS and tag[1:2] == "-":
        return _ALIKE.get(tag[0], tag[0]), tag[2:] or "_"
    return "I", tag


def type_of(tag: str) -> str:
    """Return the type of a tag's entity; empty outside of one."""
    return _parts(tag)[1]


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of a row's tags, in order."""
    found, start, before = list[Entity](), 0, (OUTSIDE, "")
    for i, now in enumerate([*map(_parts, tags), (OUTSIDE, "")]):
        (last, kind), (letter, new) = before, now
        if last != OUTSIDE and (last in "ES" or letter in "BSO" or new != kind):
            found.append(Entity(kind, start, i - 1))
        if letter != OUTSIDE and (letter in "BS" or last in "ESO" or new != kind):
            start = i
        before = now
    return found


def _scheme(tags: Iterable[str]) -> str:
    """Return the letters of the scheme that tags are of."""
    tags = [tag for tag in tags if tag != OUTSIDE]
    lettered = [tag for tag in tags if tag[0] in _LETTERS and tag[1:2] in ("", "-")]
    if len(lettered) < len(tags):
        if not lettered:
            return _NAMED
        other = next(tag for tag in tags if tag not in lettered)
        raise ValueError(f"{lettered[0]!r} has a letter in front and {other!r} has none; write all of them one way")
    used = {tag[0] for tag in tags}
    fitting = next((scheme for scheme in _SCHEMES if used <= {*scheme}), None)
    if fitting is None:
        raise ValueError(f"tags begin with {', '.join(sorted(used))}; no scheme (BIO, BILOU, BIOES, IO) has all these")
    return fitting


_LIKE_LETTERED = re.compile(r"([bieslu])[-_:](\S+)", re.IGNORECASE)


def require_told(tags: Iterable[str]) -> None:
    """Refuse tags such as b-per and i-per, or B_PER and I_PER: each would be the name of a type, and o as well."""
    first: dict[str, str] = {}
    for tag in sorted(tags):
        if (like := _LIKE_LETTERED.fullmatch(tag)) is None or _parts(tag)[1] != tag:
            continue
        if (other := first.setdefault(like[2], tag)) != tag:
            raise ValueError(f"the tags {other!r} and {tag!r} would be types of their own; write O, B-TYPE and I-TYPE")


def complete(tags: Iterable[str]) -> tuple[str, ...]:
    """Complete tags by all others of their scheme, sorted: an I- for each B-, and O."""
    tags = set(tags)
    scheme = _scheme(tags)
    made = tags if scheme == _NAMED else {_tag(letter, type_of(tag)) for tag in tags - {OUTSIDE} for letter in scheme}
    return tuple(sorted({*made, OUTSIDE}))


def with_tags(found: Iterable[Entity], n: int, known: Sequence[str] | None = None) -> list[str]:
    """Tag ``n`` words in the scheme of the ``known`` tags, in BIO without any."""
    scheme = "BI" if known is None else _scheme(known)
    tags = [OUTSIDE] * n
    for label, first, last in found:
        n = last + 1 - first
        if scheme in (_NAMED, "I"):
            letters = [scheme] * n
        else:
            letters = [*"B" + "I" * (n - 1)]
            if scheme != "BI":
                letters[-1] = scheme[2] if n > 1 else scheme[3]
        tags[first : last + 1] = [_tag(letter, label) if letter else label for letter in letters]
    return tags


def _tag(letter: str, label: str) -> str:
    return letter if label == "_" else f"{letter}-{label}"


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
        """Return each word's tag, as given, or of spans in the scheme of the ``known`` ones."""
        return with_tags(self.found, self.n_words, known) if self.given is None else list(self.given)


def tagged_label(value: Any, where: str) -> str:
    """Return what a row says of its words as canonical text."""
    if isinstance(value, Mapping) and len(value) == 1 and {*value} <= {"tags", "spans"}:
        name, value = next(iter(value.items()))
    else:
        name = "tags" if isinstance(value, list | tuple) and value and isinstance(value[0], str) else "spans"
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: {name} are a list; found {quote(value)}. A row has {_FORMS}.")
    read: list[Any]
    if name == "tags":
        # Whether 0 is outside, and where entities begin, is in no row.
        numbers = any(isinstance(tag, int) for tag in value)
        if numbers or (value and all(str(tag).strip().isdecimal() for tag in value)):
            raise DataError(
                f"{where}: tags are numbers, found {quote(value)}; give their names (of the data set's ClassLabel), as "
                '"B-PER" and "O": in the rows, or in a file label_names.json beside them, ["O", "B-PER", ...].'
            )
        read = [label_text(tag, where, f"tag of word {i}") for i, tag in enumerate(value, start=1)]
    else:
        read = sorted(_span(span, where) for span in value)
        for one, other in pairwise(read):
            if other[0] < one[1]:
                both = " and ".join(f"{start} to {end} ({label})" for start, end, label in (one, other))
                raise DataError(f"{where}: the spans {both} overlap; a word has one tag. Keep one of them.")
    return json.dumps({name: read}, ensure_ascii=False, separators=(",", ":"))


def _span(value: Any, where: str) -> tuple[int, int, str]:
    parts = [value.get(key) for key in ("start", "end", "label")] if isinstance(value, Mapping) else value
    if not isinstance(parts, list | tuple) or len(parts) != 3 or any(type(each) is not int for each in parts[:2]):
        raise DataError(
            f"{where}: a span is {{start, end, label}} of two whole numbers and a type; found {quote(value)}."
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
    """Check what a row says against its text."""
    if row.sentence2 is not None:
        raise DataError(f"{row.where}: tags are of one text, and this row is a pair; leave the second one out.")
    text, words, read = row.sentence1, words_of(row.sentence1), json.loads(row.label or "null")
    if not words:
        raise DataError(f"{row.where}: the text has no word to tag: {quote(text)}; leave the row out.")
    if "tags" in read:
        if len(read["tags"]) != len(words):
            more = "" if isinstance(text, Words) else "; give the row's words too, as a list called words"
            told = f"{counted(len(read['tags']), 'tag')} for {counted(len(words), 'word')}"
            raise DataError(f"{row.where}: {told}; each has one{more}.")
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
            raise DataError(f"{row.where}: the span {start} to {end} ({label}) has no word: {quote(text[start:end])}.")
        if found and found[-1].last >= within[0]:
            raise DataError(
                f"{row.where}: two spans share the word {text[slice(*words[within[0]])]!r}, of which the second is "
                f"{start} to {end} ({label}); a word has one tag. Keep one of them."
            )
        if text[words[within[0]][0] : start].strip() or text[end : words[within[-1]][1]].strip():
            widened = f"{row.where}: {text[start:end]!r} of {text[words[within[0]][0] : words[within[-1]][1]]!r}"
        found.append(Entity(label, within[0], within[-1]))
    return Tagged(len(words), tuple(found), None, widened)


def entity_counts(kind: Any, targets: Values, outputs: Values) -> NDArray[np.int64]:
    """Count each row's entities that are given rightly, are given, and are there: [n, 3, types]."""
    place = {name: i for i, name in enumerate(kind.types)}
    counts = np.zeros((len(targets), 3, len(place)), np.int64)
    for row, (true, found) in zip(counts, kind.both(targets, outputs), strict=True):
        there, answered = {*entities(true)}, {*entities(found)}
        for count, those in zip(row, (there & answered, answered, there), strict=True):
            np.add.at(count, [place[entity.label] for entity in those], 1)
    return counts


def _share(part: float, whole: float) -> float:
    return float(part / max(1, whole))


def _macro(sums: Values, _: int) -> float:
    """Average over the types that stand in either."""
    right, given, has = sums[:, sums[1:].sum(0) > 0]
    return float((2 * right / (given + has)).mean()) if len(right) else 0.0


ENTITY_SCORES: Mapping[str, Metric] = {
    "entity_f1": Metric(
        entity_counts,
        "over all rows' entities together, as seqeval's micro average",
        lambda sums, _: _share(2 * sums[0].sum(), sums[1:].sum()),
    ),
    "entity_precision": Metric(
        entity_counts, "over all rows' entities together", lambda sums, _: _share(sums[0].sum(), sums[1].sum())
    ),
    "entity_recall": Metric(
        entity_counts, "over all rows' entities together", lambda sums, _: _share(sums[0].sum(), sums[2].sum())
    ),
    "entity_macro_f1": Metric(entity_counts, "mean over the types of entities, each counting alike", _macro),
    "tag_accuracy": Metric(
        lambda kind, *of: np.array([(sum(map(eq, *both)), len(both[0])) for both in kind.both(*of)]),
        "share of words whose tag is right",
        lambda sums, _: _share(*sums),
    ),
}
