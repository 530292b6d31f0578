"""What columns are called, and how cells are read: texts, candidates, and labels, of which jsonl's ``3`` or ``true``
and csv's text are one.

Lists and mappings in a table's cell are read as JSON or Python writes them.  Names are compared in lower case.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.pattern import Pattern, UnreadableRow

if TYPE_CHECKING:
    from edgepeft.options.base import ColumnOptions

# As data sets call them; a list of texts under one of them has several labels.
LABELS = (
    "label", "labels", "gold_label", "target", "class", "class index", "category", "sentiment", "is_duplicate", "y",
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "tweet", "message", "body", "comment", "comment_text", "document",
    "headline",
)  # fmt: skip
SCORES = ("score", "similarity", "similarity_score", "rating", "stars")
# Of the readers, which who answers a text need not import.
STDIN = "-"  # in place of a file's name
# Numbers of rows, in lower case, and the index of pandas, as its csv, parquet and datasets keep it.
COUNTER = re.compile(r"(.*_)?id|idx|index|__index_level_\d+__|unnamed: [\d.]+|", re.DOTALL)
HEAD = 100  # rows by which shapes and splits are told
NUMBERED = re.compile(r"(candidate|choice|ending|option|answer)[ _]?(\d{1,4})", re.ASCII)
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

NO_TARGET = -100  # past a target's end: PyTorch's and transformers' number for what no loss is of
_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*", re.ASCII)
_MAX_VALUES = 20  # of labels that are numbers and names all the same

LabelReader = Callable[[Any, str], str]
"""(the column's value, ``file:line``) -> the row's label as text; raises DataError."""


def label_text(value: Any, where: str, what: str = "label") -> str:
    """Return the text of a label, or of another column that is ``what``."""
    if not isinstance(value, str | int | float | Decimal):
        within = isinstance(value, Mapping) and not {"spans", "tags"} & value.keys()  # which are our own
        remedy = " A column within a column is named with a dot: label.name." if within else ""
        raise DataError(f"{where}: the {what} must be a text or a number; found {quote(value)}.{remedy}")
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise DataError(
            f"{where}: the {what} is {value}, which stands for a missing one; fill it in or leave the row out."
        )
    label = json.dumps(value) if isinstance(value, bool) else str(value).strip()
    if not label or (not label.isascii() and any("\ud800" <= character <= "\udfff" for character in label)):
        raise DataError(f"{where}: the {what} is empty or not valid Unicode: {quote(value)}.")
    return label


def quote(value: Any) -> str:
    """Show a value as JSON, cut if it is long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def number_of(value: Any) -> float | None:
    """Return the number that a label is; None for a name."""
    try:
        number = isinstance(value, str | int | float | Decimal) and not isinstance(value, bool)
        found = float(value) if number and "_" not in str(value) else math.nan  # Python's own 1_000
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def _has_comma(label: Any) -> bool:
    return isinstance(label, str) and _COMMA.fullmatch(label) is not None


def require_names(path: object, what: str, labels: Sequence[Any]) -> None:
    """Refuse labels that are numbers to learn: many, with fractions, or with commas for these."""
    labels = [*map(one_of, labels)]
    commas = [label for label in labels if _has_comma(label)]
    if commas and all(_has_comma(each) or number_of(each) is not None for each in labels if each not in (None, "")):
        raise UsageError(
            f"{path}: the {what} holds numbers with commas ({'; '.join(dict.fromkeys(commas[:3]))}). Say what they "
            "are: --kind regression learns to give a number, once it is written with a point, --kind classification "
            "takes each for a name, --kind labels --label-separator , for several."
        )
    values = {number for label in labels if (number := number_of(label)) is not None}
    if len(values) <= _MAX_VALUES and all(value == int(value) for value in values):
        return
    if all(number_of(label) is not None for label in labels):
        few = ", ".join(f"{value:g}" for value in sorted(values)[:3])
        raise UsageError(
            f"{path}: the {what} holds numbers ({few}, ...). Say what they are: --kind regression learns to "
            "give such a number, --kind classification takes each for a name."
        )


_LONGEST = 1 << 20  # characters
_OF_PYTHON = 1 << 18  # a list that Python parses takes some hundred times as much
_APART = re.compile(r"""['"]\s+['"]""")  # NumPy's ['a' 'b'], which Python reads as ['ab']


def parse_cell(cell: Any) -> Any:
    """Return the list or mapping that a cell is the text of; anything else as it is."""
    text = cell.strip() if isinstance(cell, str) and len(cell) <= _LONGEST else ""
    if (text[:1], text[-1:]) not in (("[", "]"), ("{", "}")):
        return cell
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    if len(text) <= _OF_PYTHON and not _APART.search(text):
        with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            found = ast.literal_eval(text)
            return found if isinstance(found, list | dict) else cell
    return cell


def is_mark(mark: Any) -> bool:
    """True for a mark in a text, as tools write one: an object, or [start, end, label]."""
    if isinstance(mark, Mapping):
        return bool({"label", "labels"} & mark.keys()) and (
            {"start", "end"} <= mark.keys() or {"start_offset", "end_offset"} <= mark.keys()
        )
    return isinstance(mark, list | tuple) and [*map(type, mark)] == [int, int, str]


def mark_of(mark: Any) -> Any:
    """Return a mark by our own names."""
    if isinstance(mark, Mapping):
        start, end = mark.get("start", mark.get("start_offset")), mark.get("end", mark.get("end_offset"))
        several = mark.get("labels")  # Label Studio's
        label = several[0] if isinstance(several, list) and len(several) == 1 else mark.get("label")
        return {"start": start, "end": end, "label": label} | ({"text": mark["text"]} if "text" in mark else {})
    return dict(zip(("start", "end", "label"), mark, strict=False)) if isinstance(mark, list | tuple) else mark


def one_of(value: Any) -> Any:
    """Return what a list of one holds, as doccano and fastText have a class; anything else as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def lower_names(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row's columns by their names in lower case."""
    return {str(name).strip().lower(): name for name in row}


def column_names(record: Mapping[str, Any], depth: int = 3) -> list[str]:
    """Name a row's columns; in place of one with columns within it these, as ``pattern.cell_at`` takes them."""
    names = list[str]()
    for name, cell in record.items():
        within = isinstance(cell, Mapping) and depth and "." not in str(name)
        inner = column_names(cell, depth - 1) if within else []
        names += [f"{name}.{each}" for each in inner] or [str(name)]
    return [*dict.fromkeys(names)]


def sole(path: object, names: Sequence[str], what: str, option: str) -> str | None:
    """Return the only one of these columns; None if there is none; refuse several."""
    if len(names) > 1:
        raise DataError(f"{path}: {', '.join(names)} may each be {what}; say which: {option} NAME.")
    return names[0] if names else None


def candidates_in(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the candidates of a file's row; none if it has no such column."""
    if CANDIDATES in record:
        return distinct_candidates(parse_cell(record[CANDIDATES]), where)
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


def distinct_candidates(value: Any, where: str) -> tuple[str, ...]:
    """Return a list of candidates after a check: at least two texts, all different."""
    if not isinstance(value, list | tuple):
        raise UnreadableRow(f"{where}: {CANDIDATES} is a list of texts; found {quote(value)}.")
    for place, text in enumerate(value):
        if not isinstance(text, str) or not text.strip():
            raise UnreadableRow(f"{where}: candidate {place} must be a text that is not empty; found {quote(text)}.")
        if text.strip() in (other.strip() for other in value[:place]):
            raise UnreadableRow(f"{where}: the candidate {quote(text)} stands there twice; give each once.")
    if len(value) < 2:
        held = "one candidate" if value else "no candidate"
        raise UnreadableRow(f"{where}: the row has {held}, and one is picked of two or more.")
    return tuple(value)


def _called(record: Mapping[str, Any], usual: Iterable[str]) -> list[str]:
    """Return a row's columns of these usual names: text before Text; of Text and TEXT one is to be named."""
    flat = [name for name, cell in record.items() if not isinstance(cell, Mapping)]
    named = {each: [name for name in flat if str(name).strip().lower() == each] for each in usual}
    return [name for each, names in named.items() for name in ([each] if each in names else names)]


def text_columns(record: Mapping[str, Any], pair: str | None = None) -> list[tuple[str, ...]]:
    """Return the columns that may be the text, or the two of a pair, by their usual names; ``pair`` is named."""
    known = lower_names(record)
    if {FIRST, "words"} & known.keys() or {"text", "spans"} <= known.keys():
        return []
    pairs = [names for names in _PAIRS if pair is None and {*names} <= known.keys()]
    texts = _called(record, (name for name in TEXTS if not any(name in names for names in pairs)))
    texts += [] if texts or pairs else _called(record, [_TITLE])
    return [*((text,) for text in texts), *((known[first], known[second]) for first, second in pairs)]


# What a column of 0 and 1 holds, in lower case, as tables and data sets write it.
BITS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}


def odd_columns(suffix: str, head: Sequence[Mapping[str, Any]]) -> str:
    """Say by a file's first rows what may be wrong with its columns, of which some are not known; else nothing."""
    told, found = "", head[0] if head else {}
    chats = [n for n, cell in found.items() if isinstance(cell, list) and cell and isinstance(cell[0], Mapping)]
    if chat := next((name for name in chats if {"role", "from"} & found[name][0].keys()), None):
        told += f" A chat ({chat}) is not read: write what is asked into a column prompt, the answer into completion."
    names = lower_names(found)
    if {"prompt", "completion"} <= names.keys() and (said := next((names[n] for n in LABELS if n in names), None)):
        told += f" If {said} says which completions are good: keep those rows alone, and take the column {said} out."
    cells = {name: {str(row.get(name)).lower() for row in head} - {"", "none"} for name in found}
    bits = [name for name, values in cells.items() if values and values <= BITS.keys()]
    if len(bits) > 1:
        others = {name: str(name).strip().lower() for name in found if name not in bits}
        rest = [name for name, lower in others.items() if lower not in (FIRST, *TEXTS) and not COUNTER.fullmatch(lower)]
        told += (
            f" If {', '.join(bits)} are labels: such columns are read where nothing but the text and an id (id, index, "
            "..._id) stands beside them, each of their cells is 0 or 1, and no option names a column."
            + (f" Take {', '.join(map(str, rest))} out." if rest else "")
        )
    return told + _odd_header(suffix, found)


def odd_scores(head: Sequence[Mapping[str, Any]]) -> str:
    """Say by a file's first rows what keeps a column from being read as scores; else nothing."""
    odd = dict[str, Any]()
    for name, cell in (item for row in head for item in row.items()):
        if str(name).lower() in SCORES and cell not in (None, "") and number_of(cell) is None:
            odd.setdefault(name, cell)
    remedies = {
        n: "write a point for its comma, or nothing if it parts thousands"
        if _has_comma(cell)
        else "write numbers alone"
        for n, cell in odd.items()
    }
    return "; ".join(f"{n} holds {quote(cell)}, which is no number: {remedies[n]}" for n, cell in odd.items())


def _odd_header(suffix: str, found: Collection[str]) -> str:
    if suffix.lower() in (".xlsx", ".xlsm") and len(found) == 1:
        return " If the first row is a title, delete it: names of columns come first."
    right = {".csv": "commas", ".tsv": "tabs"}.get(suffix.lower())
    if right is None or not found:
        return ""
    if len(found) > 1:
        odd = any(name.isdigit() or len(name.split()) > 3 for name in found)
        return " If the first line is a row, and no names of columns, put a line of names above it." if odd else ""
    marks = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
    used = next((name for mark, name in marks.items() if mark in next(iter(found)) and name != right), None)
    found_out = "The table has one column alone" if used is None else f"The one column looks like several, with {used}"
    return f" {found_out}; a {suffix.lower()[1:]} separates them by {right}."


class Columns(NamedTuple):
    """What a file calls text, second text and label, and how it is read."""

    text: str | None = None
    pair: str | None = None  # one that is named has to be there
    label: str | None = None
    source: Pattern | None = None  # makes the text of the columns that it names
    target: Pattern | None = None  # makes the label likewise
    remedy: str = ""  # ends the error where a column is not there
    fields: tuple[str, ...] | None = None  # must be there, and nothing else: rows are left to their tasks
    step: float | None = None  # to whose multiples labels are rounded
    separator: str | None = None  # of a text that stands for a list of labels
    candidates: bool = False  # are read, where a row has some
    passages: bool = False  # so are a question, a context and answers, as SQuAD calls them
    named: bool = False  # labels that are numbers get the names that a file beside the rows has

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of text, second text and label."""
        return self.text or FIRST, self.pair or SECOND, self.label or LABEL

    @property
    def answer(self) -> str:
        """The name of the column that says what is right."""
        return self.names[2] if self.target is None else self.target.fields[0]

    @classmethod
    def of(cls, options: ColumnOptions) -> Self:
        """Take the names that options give."""
        named = options.text_column, options.pair_column, options.label_column
        return cls(*named, separator=options.label_separator)

    def listed(self, value: Any) -> Any:
        """Divide a label that is a text by the separator, if there is one."""
        if self.separator is None or not isinstance(value, str):
            return value
        if isinstance(found := parse_cell(value), list):  # as pandas and JSON write it
            return found
        return [part.strip() for part in value.split(self.separator)] if value.strip() else []

    def label_in(self, record: Mapping[str, Any]) -> Any:
        """Return a row's label: several as a list; of candidates the place of the one whose column it names, as COPA's
        classes do."""
        label = record.get(self.names[2])
        if not self.candidates:
            return self.listed(label)
        names = _numbered(record)
        return names.index(label) if isinstance(label, str) and label in names else label

    def by_convention(self, path: object, record: Mapping[str, Any], *, labels: bool) -> dict[str, str]:
        """Return what is read as text, pair and label, where no option names it and no usual name is there."""
        if FIRST in record and LABEL in record:
            return {}
        texts, found = [] if self.text is not None else text_columns(record, self.pair), dict[str, str]()
        if sole(path, [" and ".join(names) for names in texts], "the text", "--text-column") is not None:
            found = dict(zip((FIRST, SECOND), texts[0], strict=False))
        if labels and self.label is None and LABEL not in record and (found or FIRST in record or self.text):
            names = [name for name in _called(record, LABELS) if name not in found.values()]
            names += _called(record, [_ANSWER]) if not names and SECOND in found else []
            if (only := sole(path, names, "the label", "--label-column")) is not None:
                found[LABEL] = only
        if found:
            told = ", ".join(f"{usual} is the column {name}" for usual, name in found.items())
            warnings.warn(f"{path}: {told}; --text-column, --pair-column and --label-column name others.", stacklevel=2)
        return found

    def needed(self, labels: bool) -> dict[str, str]:
        """Return the columns that must be there, each with the option that names another, if there is one."""
        text, pair, label = self.names
        if self.fields is not None:
            return dict.fromkeys(self.fields, "")
        needed = {text: "--text-column"} | ({pair: "--pair-column"} if self.pair else {})
        if self.source is not None:
            needed = dict.fromkeys(self.source.fields, "")
        if self.target is not None:
            return needed | (dict.fromkeys(self.target.fields, "") if labels else {})
        if labels and self.source is None and label in needed:
            raise UsageError(
                f"the column {label} is read as a text and as its label; name another, --label-column NAME."
            )
        return needed | ({label: "--label-column"} if labels else {})


SENTENCES = Columns()


def verify_columns(data: object, text: str | None, pair: str | None, label: str | None) -> Columns:
    """Return what the rows of ``--verify-data`` call their columns."""
    columns = Columns(text, pair, label)
    if data is None and columns != SENTENCES:
        raise UsageError("--text-column, --pair-column and --label-column are about --verify-data; give it too.")
    return columns
