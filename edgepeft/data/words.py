"""Find the words of a text, and the first token of each.

Words are given, or they are runs of letters and digits with the marks on them; any other character that is no blank is
a word of its own, as is each ideograph: as BERT's tokenizer divides texts (Devlin et al., 2019), for any tokenizer.
Places in a text are Python's: they count characters (code points), an emoji as one.

Letters: B rows, S tokens of the longest, w words of a row, C columns.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from edgepeft.backbones.tokens import cleaned
from edgepeft.data.columns import NO_TARGET

NOWHERE = -1  # the place of a word that has no token: past the longest text that is read, or of nothing but controls

Span = tuple[int, int]
# Written without blanks between words: BERT's list.
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"

_JOINERS = "\u00ad\u200c\u200d"  # within a word or an emoji; a soft hyphen, which BERT does not read
_UNSEEN = "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff"  # directions, and blanks of no width


class Words(str):
    """A text whose words are given: these, with a blank between two."""

    spans: tuple[Span, ...]

    def __new__(cls, words: Iterable[str]) -> Self:
        """Join words, and keep where each stands."""
        parts = list(words)
        text, end, spans = super().__new__(cls, " ".join(parts)), 0, list[Span]()
        for word in parts:
            spans.append((end, end + len(word)))
            end += len(word) + 1
        text.spans = tuple(spans)
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ([self[start:end] for start, end in self.spans],)


class Read(NamedTuple):
    """A text as a task for tokens reads it."""

    text: str
    words: tuple[Span, ...]
    places: NDArray[np.int64]  # of each word's first token in its row
    cut: bool = False  # tokens past the longest text were left out


def words_of(text: str) -> tuple[Span, ...]:
    """Return where each word begins and ends."""
    if isinstance(text, Words):
        return text.spans
    return tuple(match.span() for match in _pattern().finditer(text))


@cache
def _pattern() -> re.Pattern[str]:
    # re's \w has no marks: those of Hindi's vowels, of Hebrew's points, or an accent that stands by itself.
    points = enumerate(i for i in range(0x300, 0xE01F0) if unicodedata.category(chr(i))[0] == "M")
    runs = [[point for _, point in run] for _, run in groupby(points, lambda each: each[1] - each[0])]
    marks = "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)
    joined = rf"[{marks}{_JOINERS}]"
    letter = rf"(?:(?![{_IDEOGRAPHS}_])\w|{joined})"
    return re.compile(rf"(?:(?![{_IDEOGRAPHS}_])\w){letter}*|[^\s{marks}{_JOINERS}{_UNSEEN}]{joined}*|[{marks}]+")


def read_words(text: str, encoding: Encoding) -> Read:
    """Return a text's words and their tokens' places; invalid Unicode is read as the tokenizer does."""
    text = text if isinstance(text, Words) else cleaned(text)
    words = words_of(text)
    return Read(text, words, places_of(words, encoding), bool(encoding.overflowing))


def places_of(words: Sequence[Span], encoding: Encoding) -> NDArray[np.int64]:
    """Return the place of each word's first token, [w]; a token that begins in one word is no other's."""
    own = [
        (max(start, 0), end, place)
        for place, ((start, end), special, part) in enumerate(
            zip(encoding.offsets, encoding.special_tokens_mask, encoding.type_ids, strict=True)
        )
        if not (special or part or end <= start)
    ]
    places, i = np.full(len(words), NOWHERE), 0
    for k, (start, end) in enumerate(words):
        while i < len(own) and own[i][1] <= start:
            i += 1
        if i < len(own) and own[i][0] < end:
            places[k] = own[i][2]
            i += 1  # what follows of this word is none of the next one's: it ends before that begins
    return places


def at_tokens(targets: NDArray[Any], length: int) -> NDArray[np.int64]:
    """Put each row's tags [2, w], tag and place, where their tokens are, [B, S]; NO_TARGET elsewhere."""
    found = np.full((len(targets), length), NO_TARGET)
    for row, (tags, places) in zip(found, targets, strict=True):
        row[places[places != NOWHERE]] = tags[places != NOWHERE]
    return found


def spread(values: NDArray[Any], places: Sequence[NDArray[np.int64]]) -> NDArray[Any]:
    """Put each word's values at its token, [all words, C] -> [B, S, C]."""
    longest = max((int(each.max(initial=NOWHERE)) for each in places), default=NOWHERE) + 1
    found, done = np.zeros((len(places), longest, values.shape[1]), values.dtype), 0
    for row, each in zip(found, places, strict=True):
        known = each[each != NOWHERE]
        row[known] = values[done : done + len(known)]
        done += len(known)
    return found
