"""Tags of words and the entities that they tell: BIO (IOB2), BILOU, BIOES, IO, or names alone.

An entity is what seqeval's ``get_entities`` finds (Nakayama, 2018; version 1.2.2, not strict), which is conlleval's
rule: an I- that follows no entity of its type begins one.  BILOU's L and U are E and S by other names.  A tag without
such a letter in front is the type itself: what stands side by side with it is one entity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["OUTSIDE", "Entity", "complete", "entities", "type_of", "with_tags"]

OUTSIDE = "O"
_LETTERS = "BIESLU"
_ALIKE = {"L": "E", "U": "S"}
_WHOLE: Mapping[frozenset[str], str] = {
    frozenset("I"): "I",
    frozenset("BI"): "BI",
    frozenset("BIES"): "BIES",
    frozenset("BILU"): "BILU",
}
_NAMED = ""  # the scheme of names alone


class Entity(NamedTuple):
    """Words ``first`` to ``last``, both of them its own."""

    label: str
    first: int
    last: int


def _parts(tag: str) -> tuple[str, str]:
    """Letter, as BIOES has it, and type."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if tag in _LETTERS and len(tag) == 1:
        return _ALIKE.get(tag, tag), "_"
    if tag[0] in _LETTERS and tag[1:2] == "-":
        return _ALIKE.get(tag[0], tag[0]), tag[2:] or "_"
    return "I", tag


def type_of(tag: str) -> str:
    """The entity's; empty outside of one."""
    return _parts(tag)[1]


def entities(tags: Sequence[str]) -> list[Entity]:
    """Those of a row, in order."""
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
    """Its letters.

    Raises:
        ValueError: no scheme has these.
    """
    tags = [tag for tag in tags if tag != OUTSIDE]
    lettered = [tag for tag in tags if tag[0] in _LETTERS and tag[1:2] in ("", "-")]
    if len(lettered) < len(tags):
        if not lettered:
            return _NAMED
        other = next(tag for tag in tags if tag not in lettered)
        raise ValueError(f"{lettered[0]!r} has a letter in front and {other!r} has none; write all of them one way")
    used = frozenset(tag[0] for tag in tags)
    fitting = sorted((scheme for scheme in _WHOLE if used <= scheme), key=len)
    if not fitting:
        raise ValueError(f"tags begin with {', '.join(sorted(used))}; no scheme (BIO, BILOU, BIOES, IO) has all these")
    return _WHOLE[fitting[0]]


def complete(tags: Iterable[str]) -> tuple[str, ...]:
    """All tags of the scheme that these are of, sorted: an I- for each B-, and O.

    Raises:
        ValueError: they are of none.
    """
    tags = set(tags)
    scheme = _scheme(tags)
    made = tags if scheme == _NAMED else {_tag(letter, type_of(tag)) for tag in tags - {OUTSIDE} for letter in scheme}
    return tuple(sorted({*made, OUTSIDE}))


def with_tags(found: Iterable[Entity], n: int, known: Sequence[str] | None = None) -> list[str]:
    """The tags of ``n`` words, in the scheme of the ``known`` ones, BIO where there are none."""
    scheme = "BI" if known is None else _scheme(known)
    tags = [OUTSIDE] * n
    for entity in found:
        for i, letter in zip(range(entity.first, entity.last + 1), _letters(scheme, entity), strict=True):
            tags[i] = _tag(letter, entity.label) if letter else entity.label
    return tags


def _letters(scheme: str, entity: Entity) -> Iterator[str]:
    n = entity.last - entity.first + 1
    if scheme in (_NAMED, "I"):
        yield from [scheme] * n
    elif scheme == "BI":
        yield from "B" + "I" * (n - 1)
    else:
        last, only = scheme[2], scheme[3]
        yield from only if n == 1 else "B" + "I" * (n - 2) + last


def _tag(letter: str, label: str) -> str:
    return letter if label == "_" else f"{letter}-{label}"
