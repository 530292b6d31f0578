"""What a field of a pattern may be passed through: as T5 (Raffel et al., 2020) and Compacter prepare their data."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable

from edgepeft.common.errors import DataError

__all__ = ["CLEANINGS", "nearest"]

_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")


def spaced(text: str) -> str:
    """Blanks around ASCII's punctuation, and single ones everywhere: T5's SQuAD."""
    return _single(_PUNCTUATION.sub(r" \1 ", text))


def spaced_apart(text: str) -> str:
    """Blanks around all but letters, numbers, accents and underscores: Compacter's SQuAD."""
    return _single("".join(c if c == "_" or unicodedata.category(c)[0] in "LNM" else f" {c} " for c in text))


def untagged(text: str) -> str:
    """``<br>`` is a blank, ``<b>`` and ``</b>`` are nothing: MultiRC."""
    return re.sub("</?b>", "", text.replace("<br>", " "))


def in_sentences(text: str) -> str:
    """Lines after ``@highlight`` go on as sentences: ReCoRD's passages."""
    text = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", text)
    return text.replace("\n@highlight\n", ". ")


def nearest(label: str, step: float, where: str) -> str:
    """The multiple of ``step`` that is nearest to a number, with one decimal: STS-B's targets.

    Raises:
        DataError: it is no number.
    """
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
