"""Names of labels that are whole numbers in all of the first rows; what has names already keeps them.

They stand in a file beside the rows, or in a data set's features:

    label_names.json, id2label.json     ["ham", "spam"], {"0": "ham", "1": "spam"} or {"ham": 0, "spam": 1}
    labels.txt, classes.txt             a name a line, the first one is 0's; or "0 ham"
    dataset_info.json                   a data set's features, as datasets writes them: ClassLabel's names
    config.json                         a model's id2label
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from edgepeft.common.errors import DataError
from edgepeft.common.resources import bytes_at

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
