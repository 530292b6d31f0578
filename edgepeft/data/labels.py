"""What columns are called, and how cells are read: texts, candidates, and labels, of which jsonl's ``3`` or ``true``
and csv's text are one.

Lists and mappings in a table's cell are read as JSON or Python writes them.  Names are compared in lower case.

Labels that are whole numbers in all of the first rows take their names from a file beside the rows; what has names
already keeps them:

    label_names.json, id2label.json     ["ham", "spam"], {"0": "ham", "1": "spam"} or {"ham": 0, "spam": 1}
    labels.txt, classes.txt             a name a line, the first one is 0's; or "0 ham"
    dataset_info.json                   a data set's features, as datasets writes them: ClassLabel's names
    config.json                         a model's id2label
"""

import ast
import contextlib
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.resources import bytes_at
from edgepeft.data.pattern import UnreadableRow

# As data sets call them; a list of texts under one of them has several labels.
LABELS = (
    "label", "labels", "gold_label", "target", "class", "class index", "category", "sentiment", "is_duplicate", "y",
)  # fmt: skip
TEXTS = (
    "text", "sentence", "review", "content", "tweet", "message", "body", "comment", "comment_text", "document",
    "headline",
)  # fmt: skip
SCORES = ("score", "similarity", "similarity_score", "rating", "stars")
STDIN = "-"  # in place of a file's name
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
        raise DataError(f"{where}: the {what} must be a text or a number; found {quote(value)}.")
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


def lower_names(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row's columns by their names in lower case."""
    return {str(name).strip().lower(): name for name in row}


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


def chosen_column(record: Mapping[str, Any], label: Any) -> Any:
    """Return the place of the candidate whose column the label names, as COPA's classes do; else the label."""
    names = _numbered(record)
    return names.index(label) if isinstance(label, str) and label in names else label


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


def by_convention(
    path: object, record: Mapping[str, Any], text: str | None, pair: str | None, label: str | None, *, labels: bool
) -> dict[str, str]:
    """Return which columns are read as text, pair and label, where no option names them and no usual name is there."""
    if FIRST in record and LABEL in record:
        return {}
    known, found = lower_names(record), dict[str, str]()

    def called(usual: Iterable[str]) -> list[str]:  # Text and text are two, of which one is to be named
        return [name for each in usual for name in record if str(name).strip().lower() == each]

    if text is None and not {FIRST, "words"} & known.keys() and not {"text", "spans"} <= known.keys():
        pairs = [names for names in _PAIRS if pair is None and {*names} <= known.keys()]
        texts = called(name for name in TEXTS if not any(name in names for names in pairs))
        texts += [] if texts or pairs else called([_TITLE])
        sole(path, [*texts, *(" and ".join(names) for names in pairs)], "the text", "--text-column")
        if pairs:
            found = {FIRST: known[pairs[0][0]], SECOND: known[pairs[0][1]]}
        elif texts:
            found = {FIRST: texts[0]}
    if labels and label is None and LABEL not in record and (found or FIRST in record or text):
        names = [name for name in called(LABELS) if name not in found.values()]
        names += called([_ANSWER]) if not names and SECOND in found else []
        if (only := sole(path, names, "the label", "--label-column")) is not None:
            found[LABEL] = only
    if found:
        told = ", ".join(f"{usual} is the column {name}" for usual, name in found.items())
        warnings.warn(f"{path}: {told}; --text-column, --pair-column and --label-column name others.", stacklevel=2)
    return found


_OF_LABELS = ("label_names.json", "id2label.json")
_FILES = (*_OF_LABELS, "labels.txt", "classes.txt", "dataset_info.json", "config.json")
_LONGEST_FILE = 1 << 22  # bytes of such a file
_COUNTED = re.compile(r"(\d+)[\s,:]+(.+)", re.ASCII)
_UNNAMED = re.compile(r"LABEL_\d+")  # transformers' stand-in for a name


class LabelNames(NamedTuple):
    """Names of labels by number, and the file that has them."""

    file: str
    names: Mapping[int, str]

    def named(self, value: Any, where: str) -> Any:
        """Return the name of a number, or of each in a list; anything else as it is."""
        if isinstance(value, list):
            return [self.named(each, where) for each in value]
        if isinstance(value, Mapping) and "tags" in value:
            return {"tags": self.named(value["tags"], where)}
        if (number := _number(value)) is None:
            return value
        if number not in self.names:
            raise DataError(
                f"{where}: the label {number} has no name in {self.file}, which names {min(self.names)} to "
                f"{max(self.names)}; correct one of the two."
            )
        return self.names[number]

    def say(self, path: object) -> None:
        """Say that the names are taken, with the first ones."""
        first = ", ".join(f"{number} is {self.names[number]}" for number in sorted(self.names)[:3])
        more = f", and {len(self.names) - 3} more" if len(self.names) > 3 else ""
        warnings.warn(f"{path}: labels are numbers, whose names {self.file} has: {first}{more}.", stacklevel=2)


def names_beside(path: object, column: str, values: Sequence[Any]) -> LabelNames | None:
    """Find the names of a column's ``values`` in a file beside; None if they are no numbers or no file has them."""
    parts = [value["tags"] if isinstance(value, Mapping) and "tags" in value else value for value in values]
    while any(isinstance(each, list) for each in parts):
        parts = [part for each in parts for part in (each if isinstance(each, list) else [each])]
    plain = [part for part in parts if part not in (None, "")]
    if not plain or any(_number(each) is None for each in plain):
        return None
    found = [LabelNames(file.name, names) for file in files_beside(path) if (names := _read(file, column))]
    if other := next((each for each in found if each.names != found[0].names), None):
        raise DataError(f"{path}: {found[0].file} and {other.file} beside it name its labels in two ways; keep one.")
    return found[0] if found else None


def files_beside(path: object) -> list[Path]:
    """List the files beside a file of rows that may name its labels."""
    if not isinstance(path, Path) or not path.is_file():
        return []
    return [file for name in _FILES if (file := path.parent / name).is_file() and file != path]


def class_names(features: Any) -> dict[str, list[str]]:
    """Return the names of each column of classes, or of lists of them, in the JSON of a data set's features."""
    found = {}
    for column, feature in features.items() if isinstance(features, Mapping) else ():
        inner = feature
        while isinstance(inner, Mapping) and isinstance(inner.get("feature"), Mapping):
            inner = inner["feature"]
        inner = inner[0] if isinstance(inner, list) and inner else inner  # as older versions write lists
        names = inner.get("names") if isinstance(inner, Mapping) else None
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            found[column] = names
    return found


def named_classes(rows: Iterator[dict[str, Any]], names: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Yield a data set's rows with the names of their classes; -1 is none, as GLUE's test rows have it."""

    def named(value: Any, known: Sequence[str]) -> Any:
        if isinstance(value, list):
            return [named(each, known) for each in value]
        if isinstance(value, str):  # a name already
            return value
        return known[value] if isinstance(value, int) and 0 <= value < len(known) else None

    for row in rows:
        yield row | {column: named(row[column], known) for column, known in names.items() if column in row}


def _number(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,6}\s*", value, re.ASCII):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read(file: Path, column: str) -> dict[int, str] | None:
    try:
        text = bytes_at(file, _LONGEST_FILE).decode("utf-8-sig")
        if file.suffix == ".txt":
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            counted = [match for line in lines if (match := _COUNTED.fullmatch(line)) is not None]
            all_counted = len(counted) == len(lines)
            names = {int(match[1]): match[2] for match in counted} if all_counted else dict(enumerate(lines))
            found = _sound(names, len(lines))
        else:
            found = _of_json(json.loads(text), column)
    except (OSError, ValueError, RecursionError):
        found = None
    if found is None and file.name in _OF_LABELS:
        raise DataError(f'{file} has no names of labels; it is ["ham", "spam"] or {{"0": "ham", "1": "spam"}}.')
    return found


def _of_json(document: Any, column: str) -> dict[int, str] | None:
    if isinstance(document, list):
        return _sound(dict(enumerate(document)), len(document))
    if not isinstance(document, Mapping):
        return None
    for name in ("id2label", "names", "label_names"):
        if isinstance(document.get(name), list | Mapping):
            return _of_json(document[name], column)
    if "features" in document:
        classes = class_names(document["features"])
        names = next(iter(classes.values()), None) if len(classes) == 1 else classes.get(column)
        return None if names is None else _of_json(names, column)
    by_name = all(isinstance(value, int) for value in document.values())
    pairs = [(value, name) if by_name else (name, value) for name, value in document.items()]
    numbers = {number: name for key, name in pairs if (number := _number(key)) is not None}
    return _sound(numbers, len(pairs))


def _sound(names: Mapping[int, Any], n: int) -> dict[int, str] | None:
    """Return the names if they are ``n`` different texts, and not all stand-ins."""
    texts = {number: name for number, name in names.items() if isinstance(name, str) and name.strip()}
    good = n and len(texts) == n == len({*texts.values()})
    return texts if good and not all(map(_UNNAMED.fullmatch, texts.values())) else None
