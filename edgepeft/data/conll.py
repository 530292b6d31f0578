"""CoNLL's lines: a word a line with its columns, an empty line between texts; Universal Dependencies' too."""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.containers import Record, lines_of

__all__ = ["read_conll"]


def read_conll(path: Path) -> Iterator[Record]:
    """Columns between tabs, or else blanks: the first is the word, the last its tag; -DOCSTART- stands alone.

    Lines that begin with "# " before a sentence are comments.  Where the first column counts the words, the second one
    has them.
    """
    sentences = _sentences(path)
    if path.suffix.lower() == ".conllu":  # number, form, lemma, part of speech, ...; 1-2 are two words as one, 1.1 none
        for start, lines in sentences:
            words = [cells for cells in lines if cells[0].isdigit()]
            if len(lines[0]) < 4:
                raise DataError(f"{path}:{start}: {len(lines[0])} columns, where CoNLL-U has ten; name it .conll.")
            yield start, {"words": [cells[1] for cells in words], "tags": [cells[3] for cells in words]}
        return
    first = list[tuple[int, list[list[str]]]]()
    with contextlib.suppress(*(DataError,) * (path.suffix.lower() == ".txt")):  # of texts that are no words with tags
        for sentence in sentences:
            first.append(sentence)
            if len(sentence[1]) > 1:  # one word alone may be a number
                break
    lines = first[-1][1] if first else []
    if path.suffix.lower() == ".txt" and not (lines and all(_TAG.fullmatch(cells[-1]) for cells in lines)):
        raise UsageError(
            f"{path} has no words with tags (O, B-PER, ...), as a .txt of rows has; other texts: csv, jsonl."
        )
    numbers = [cells[0] for cells in lines]
    counted = (
        len(lines) > 1 and len(lines[0]) > 2 and numbers in ([*map(str, range(n, n + len(lines)))] for n in (0, 1))
    )
    if counted:
        warnings.warn(f"{path}: the first column counts the words; the second one is read as the words.", stacklevel=2)
    for start, lines in itertools.chain(first, sentences):
        tags = {"tags": [cells[-1] for cells in lines]} if len(lines[0]) > 1 else {}
        yield start, {"words": [cells[int(counted)] for cells in lines], **tags}


_MOST_WORDS = 100_000  # of a row, more than of a book's chapter
_TAG = re.compile(r"O|[BIESLU]-\S+")


def _sentences(path: Path) -> Iterator[tuple[int, list[list[str]]]]:
    """Each with the number of its first line: the cells of its words."""
    start, words, columns = 0, list[list[str]](), 0
    for number, line in lines_of(path):
        if not words and line.startswith("# "):
            continue
        cells, tabbed = line.split(), line.rstrip("\r\n").split("\t")
        if len(tabbed) > 1 and len(tabbed) == (columns or len(tabbed)):  # a blank is then part of a word
            cells = tabbed
        if not any(cells) or cells[0] == "-DOCSTART-":
            if words:
                yield start, words
            words = []
            continue
        start = start if words else number
        columns = columns or len(cells)
        if len(cells) != columns:
            raise DataError(
                f"{path}:{number}: {len(cells)} columns, where lines before have {columns}: {line.strip()!r:.80}."
            )
        words.append(cells)
        if len(words) > _MOST_WORDS:
            raise DataError(f"{path}:{start}: a row of more than {_MOST_WORDS:,} words; an empty line ends a row.")
    if words:
        yield start, words
