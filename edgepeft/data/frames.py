"""Rows of other libraries: Arrow's and parquet's files and the folders that ``datasets.save_to_disk`` writes, a part at
a time; datasets, DataFrames and dictionaries in memory, which are read as a file's.

A text that parquet stores once may stand in a million rows, so its sizes are counted before rows are made.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgepeft.common.errors import DataError, requiring
from edgepeft.common.resources import json_at
from edgepeft.data.columns import quote
from edgepeft.data.containers import ROW_BYTES, Record, Room
from edgepeft.data.label_names import class_names, named_classes
from edgepeft.data.tables import distinct

SAVED = _OF_SPLITS, _OF_ONE = "dataset_dict.json", "state.json"  # what `save_to_disk` writes of several splits, of one
_MAGIC, _END = b"ARROW1\0\0", struct.Struct("<i6x")  # a file's beginning; its footer's length, and ARROW1
_MAX_TEXTS = 1_000_000  # names and sizes in the file's own description
_AT_ONCE = 1024  # rows as Python's values


def read_arrow(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row) of a file of either form, with the names that its own description has for classes."""
    with requiring("data", "an arrow file"):
        from pyarrow import ArrowException, ipc, memory_map
    try:
        with memory_map(str(path)) as file:
            of_file, room = file.read(len(_MAGIC)) == _MAGIC, Room(path)
            file.seek(0)
            messages = _messages_of(file) if of_file else ipc.MessageReader.open_stream(file)
            room.require(sum(map(_unpacked_bytes, messages)))
            file.seek(0)
            found = ipc.open_file(file) if of_file else ipc.open_stream(file)
            batches = map(found.get_batch, range(found.num_record_batches)) if of_file else found
            rows = (row for batch in batches for row in _rows(batch, room))
            yield from enumerate(named_classes(rows, names_in(found.schema)), start=1)
    except (ArrowException, EOFError, NotImplementedError, OSError, ValueError, TypeError, struct.error) as error:
        raise DataError(f"{path} is not an arrow file that can be read ({error}).") from error


def _rows(batch: Any, room: Room) -> Iterator[dict[str, Any]]:
    batch.validate(full=True)  # pyarrow follows a file's offsets unchecked: a damaged one would end the process
    for part in (batch.slice(i, _AT_ONCE) for i in range(0, batch.num_rows, _AT_ONCE)):
        room.take(ROW_BYTES * len(part) + sum(map(_bytes_of, part.columns)))
        yield from part.to_pylist()


def _messages_of(file: Any) -> Iterator[Any]:
    """Yield the messages that an Arrow file's footer names: polars' file has no stream behind its first bytes.

    The positions are those of Footer (dictionaries, then batches) and Block in Arrow's File.fbs.
    """
    from pyarrow import ipc

    ipc.open_file(file)  # checks the footer
    file.seek(file.size() - _END.size)
    (size,) = _END.unpack(file.read(_END.size))
    file.seek(file.size() - _END.size - size)
    about = file.read(size)
    table = _table(about)
    for slot in (8, 10):
        blocks = table.Offset(slot)
        for i in range(table.VectorLen(blocks) if blocks else 0):
            file.seek(struct.unpack_from("<q", about, table.Vector(blocks) + 24 * i)[0])
            yield ipc.read_message(file)


def _table(about: bytes) -> Any:
    from flatbuffers import encode, number_types
    from flatbuffers.table import Table

    return Table(about, encode.Get(number_types.UOffsetTFlags.packer_type, about, 0))


def _unpacked_bytes(message: Any) -> int:
    """Count what a message's buffers take once pyarrow has unpacked them: each compressed one begins with its length.

    The positions are those of Message, DictionaryBatch and RecordBatch in Arrow's Message.fbs.
    """
    from flatbuffers.table import Table

    about = bytes(message.metadata)
    table = _table(about)
    for place in {"record batch": (8,), "dictionary": (8, 6)}.get(message.type, ()):
        table = Table(about, table.Indirect(table.Pos + table.Offset(place)))
    if message.type not in ("record batch", "dictionary") or not table.Offset(10):  # its compression
        return 0
    buffers = table.Offset(8)
    begin, n_buffers, body = table.Vector(buffers), table.VectorLen(buffers), memoryview(message.body)
    places = (struct.unpack_from("<qq", about, begin + 16 * i) for i in range(n_buffers))
    lengths = (struct.unpack_from("<q", body, offset)[0] for offset, size in places if size >= 8)
    return sum(length for length in lengths if length > 0)


def _bytes_of(array: Any) -> int:
    """Count what the values of an Arrow array take once they are no longer in a dictionary."""
    from pyarrow import compute, types

    kind = array.type
    if types.is_dictionary(kind) and not types.is_primitive(kind.value_type):
        return int(compute.sum(compute.binary_length(array.dictionary).take(array.indices)).as_py() or 0)
    if str(kind) in ("string_view", "binary_view"):  # of a view's four numbers the first is its length
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        return int(views[array.offset : array.offset + len(array), 0].sum(dtype=np.int64))
    if str(kind).startswith(("run_end_encoded", "list_view", "large_list_view")):
        return len(array) * _bytes_of(array.values)  # at most: each may hold all
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_map(kind):
        inner = [array.keys, array.items] if types.is_map(kind) else [array.flatten()]
        return sum(map(_bytes_of, inner)) + ROW_BYTES * len(inner[0])
    if types.is_struct(kind):
        return sum(map(_bytes_of, array.flatten()))
    return int(array.nbytes)


def names_in(schema: Any) -> dict[str, list[str]]:
    """Return the names of classes that datasets has put into a file's schema."""
    try:
        described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        return class_names(described["info"]["features"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


def saved_splits(folder: Path) -> dict[str, Iterator[dict[str, Any]]]:
    """Return the splits that ``save_to_disk`` wrote into a folder, by name; a single one is called train."""
    if not (folder / _OF_SPLITS).is_file():
        return {"train": _saved(folder)}
    names = _document(folder / _OF_SPLITS).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) and (folder / name).is_dir() for name in names):
        raise DataError(f"{folder / _OF_SPLITS} names no splits that lie beside it; save the data set again.")
    return {name: _saved(folder / name) for name in names}


def _saved(folder: Path) -> Iterator[dict[str, Any]]:
    """Return one split's rows, whose files are opened when they are read."""
    state = _document(folder / _OF_ONE)
    try:
        files = [folder / Path(each["filename"]).name for each in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder / _OF_ONE} names no files of rows; save the data set again.") from error
    described = folder / "dataset_info.json"  # for a file without a description of its own
    names = class_names(_document(described).get("features")) if described.is_file() else {}
    return named_classes((row for file in files for _, row in read_arrow(file)), names)


def _document(path: Path) -> Mapping[str, Any]:
    try:
        found = json_at(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); save the data set again.") from error
    return found if isinstance(found, Mapping) else {}


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row), a batch in memory at a time, with the names that datasets has put there for classes."""
    with requiring("data", "a parquet file"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        room = Room(path)
        limits = {"thrift_string_size_limit": _MAX_TEXTS, "thrift_container_size_limit": _MAX_TEXTS}
        with ParquetFile(path, **limits) as file:
            about = file.metadata
            groups = [about.row_group(i) for i in range(about.num_row_groups)]
            room.require(sum(group.total_byte_size for group in groups) + ROW_BYTES * about.num_rows)
            names = names_in(file.schema_arrow)
            texts = [file.schema.column(i).path for i in range(len(file.schema))]
        # Texts by their dictionary: each once, and a number in each row.
        with ParquetFile(path, read_dictionary=texts, **limits) as file:
            rows = (row for batch in file.iter_batches(_AT_ONCE) for row in _rows(batch, room))
            yield from enumerate(named_classes(rows, names), start=1)
    except (ArrowException, OSError, ValueError) as error:  # the last one of texts that are not UTF-8
        raise DataError(f"{path} is not a parquet file that can be read ({error}).") from error


def named_split(rows: Any) -> Iterator[dict[str, Any]]:
    """Return the rows of a split of ``datasets``, with the names of classes."""
    rows = rows.with_format(None)  # in Python's values, and all columns
    features = rows.features or {}  # a stream may have none
    kinds = {column: getattr(kind, "feature", kind) for column, kind in features.items()}  # of lists, their items'
    names = {column: kind.names for column, kind in kinds.items() if hasattr(kind, "int2str")}
    return named_classes(iter(rows), names)


class Records:
    """Dictionaries, a DataFrame of pandas or polars, a dataset's split."""

    suffix = ""  # a file's would say its format

    def __init__(self, rows: Any) -> None:
        if hasattr(rows, "with_format"):
            self._rows = list(named_split(rows))
        elif hasattr(rows, "to_dicts"):  # polars
            self._rows = rows.to_dicts()
        elif hasattr(rows, "iterrows"):  # pandas
            distinct(self, 1, [*map(str, rows.columns)])  # of which to_dict takes the last
            records = rows.to_dict("records")
            self._rows = [{name: None if _missing(value) else value for name, value in r.items()} for r in records]
        else:
            self._rows = list(rows)

    def __str__(self) -> str:
        """Stand in for a file's name."""
        return "rows"

    def read(self, _: object) -> Iterator[Record]:
        """Yield (number, row)."""
        for number, row in enumerate(self._rows, start=1):
            if isinstance(row, Mapping):
                yield number, {str(name): _plain(value) for name, value in row.items()}
            else:
                yield number, DataError(f"{self}:{number}: expected a dictionary of columns; found {quote(row)}.")


def _missing(value: Any) -> bool:
    """True for what pandas has where nothing is: NaN, and NA of its nullable types or NaT, which equal not even NaN."""
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value))


def _plain(value: Any) -> Any:
    """Return a cell as a file's are, lists and numbers of Python: not NumPy's, which pandas has of parquet's lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, set | frozenset):  # of labels, whose order is none
        value = sorted(value, key=str)
    return [*map(_plain, value)] if isinstance(value, list | tuple) else value


class Held(Records):
    """Standard input's records, which can be read once."""

    def __init__(self, path: Path, records: Iterator[Record]) -> None:
        self._path, self._records = path, list(records)

    def __str__(self) -> str:
        """Name the file that they are from."""
        return str(self._path)

    def read(self, _: object) -> Iterator[Record]:
        """Yield (line, row)."""
        return iter(self._records)
