"""Read what corpora are published as: CoNLL's columns, fastText's lines, brat's folders."""

import contextlib
import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.messages import counted
from edgepeft.data.containers import Record, lines_of, require_one_part
from edgepeft.data.rows import require_texts


def read_conll(path: Path) -> Iterator[Record]:
    """Read columns between tabs, or else blanks: the first is the word, the last its tag; -DOCSTART- stands alone.

    Lines that begin with "# " before a sentence are comments.  Where the first column counts the words, the second one
    has them; where it has the tags, as MIT's movies and restaurants do, the last one.
    """
    sentences = _sentences(path)
    first = list[tuple[int, list[list[str]]]]()
    with contextlib.suppress(*(DataError,) * (path.suffix.lower() == ".txt")):  # of texts that are no words with tags
        for sentence in sentences:
            first.append(sentence)
            if len(sentence[1]) > 1:  # one word alone may be a number
                break
    lines = first[-1][1] if first else []
    last = bool(lines) and all(_TAG.fullmatch(cells[-1]) for cells in lines)
    turned = not last and len(lines) > 1 and all(_TAG.fullmatch(cells[0]) for cells in lines)
    if path.suffix.lower() == ".txt" and not (last or turned):
        raise UsageError(
            f"{path} has no words with tags (O, B-PER, ...), as a .txt of rows has, nor fastText's lines "
            "(__label__good ...). If it is a table, call it .csv; if it has a JSON object a line, .jsonl."
        )
    numbers, n = [cells[0] for cells in lines], len(lines)
    numbered = n > 1 and len(lines[0]) > 2 and numbers in ([*map(str, range(k, k + n))] for k in (0, 1))
    if numbered or turned:
        told = "has the tags; the last" if turned else "counts the words; the second"
        warnings.warn(f"{path}: the first column {told} one is read as the words.", stacklevel=1)
    word, tag = (-1, 0) if turned else (int(numbered), -1)
    for start, lines in itertools.chain(first, sentences):
        tags = {"tags": [cells[tag] for cells in lines]} if len(lines[0]) > 1 else {}
        yield start, {"words": [cells[word] for cells in lines], **tags}


def read_conllu(path: Path) -> Iterator[Record]:
    """Read number, form, lemma, part of speech and more of each word; 1-2 are two words as one, 1.1 is none."""
    for start, lines in _sentences(path):
        if len(lines[0]) < 4:
            raise DataError(
                f"{path}:{start}: {counted(len(lines[0]), 'column')}, where CoNLL-U has ten; name it .conll."
            )
        words = [cells for cells in lines if cells[0].isdigit()]
        yield start, {"words": [cells[1] for cells in words], "tags": [cells[3] for cells in words]}


_MAX_WORDS = 100_000  # of a row, more than of a book's chapter
_TAG = re.compile(r"O|[BIESLU]-\S+")


def _sentences(path: Path) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the number of each sentence's first line, and the cells of its words."""
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
            found = f"{counted(len(cells), 'column')}, where lines before have {columns}"
            raise DataError(f"{path}:{number}: {found}: {line.strip()!r:.80}.")
        words.append(cells)
        if len(words) > _MAX_WORDS:
            raise DataError(f"{path}:{start}: a row of more than {_MAX_WORDS:,} words; an empty line ends a row.")
    if words:
        yield start, words


_OF_FASTTEXT = re.compile(r"\s*((?:__label__\S+(?:\s+|$))*)(.*)", re.DOTALL)


def read_fasttext(path: Path) -> Iterator[Record]:
    """Read lines of fastText, ``__label__good A text``: a text, and the list of its labels."""
    for number, line in lines_of(path):
        if line.strip() and (found := _OF_FASTTEXT.match(line)):
            yield number, {"text": found[2].strip(), "label": found[1].replace("__label__", "").split()}


def read_txt(path: Path) -> Iterator[Record]:
    """Read a .txt by how it begins."""
    with contextlib.suppress(DataError):  # of another encoding
        if any(line.startswith("__label__") for _, line in itertools.islice(lines_of(path), 1)):
            return read_fasttext(path)
    return read_conll(path)


def marks_in(path: Path) -> Iterator[Path]:
    """Yield a folder's .ann files, none that a system or a tool hides."""
    files = path.rglob("*.ann")
    return (file for file in files if not any(name.startswith(".") for name in file.relative_to(path).parts))


def read_brat(path: Path) -> Iterator[Record]:
    """Yield (number, text and spans) of a folder of brat: a .txt each, and an .ann with the marks in it."""
    files = sorted(marks_in(path))
    require_one_part(path, (name for file in files for name in file.relative_to(path).parts[:-1]))
    for number, file in enumerate(files, start=1):
        try:
            text = file.with_suffix(".txt").read_bytes().decode("utf-8")
            require_texts(text, marks := [*_marks_of_brat(file)], str(file))
            yield number, {"text": text, "spans": marks}
        except (OSError, UnicodeDecodeError) as error:
            yield number, DataError(f"{file} has no text beside it that can be read ({error}).")
        except DataError as error:
            yield number, error


_MARK = re.compile(r"T\S*\t(\S+) (\d{1,9}) (\d{1,9})\t(.*)", re.ASCII)  # a mark in several parts has ; between them


def _marks_of_brat(file: Path) -> Iterator[dict[str, Any]]:
    for number, line in lines_of(file):
        if line.startswith("T"):  # no relation, event or note
            if (found := _MARK.fullmatch(line.rstrip("\r\n"))) is None:
                raise DataError(f"{file}:{number}: a mark has one start and one end; found {line.strip()!r:.80}.")
            yield {"start": int(found[2]), "end": int(found[3]), "label": found[1], "text": found[4]}
