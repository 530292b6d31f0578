"""Rows of parquet files and of Hugging Face datasets, read by the optional extra ``data``.

A dataset is a folder that its ``save_to_disk`` wrote, or a name of the Hub (``NAME:CONFIG`` where it has several
configurations); ``#SPLIT`` after it names one of its splits.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgepeft.common.errors import DataError, UsageError, requiring

__all__ = ["is_dataset", "read_dataset", "read_parquet", "splits_of"]

_PARTS = {"train": "train", "validation": "eval", "dev": "eval", "valid": "eval", "test": "test"}
_SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` writes of several splits, and of one


def read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row), a batch in memory at a time.

    Raises:
        MissingPackage: pyarrow is not installed.
        DataError: no parquet file.
    """
    with requiring("data", "a parquet file"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        rows = (row for batch in ParquetFile(path).iter_batches() for row in batch.to_pylist())
        yield from enumerate(rows, start=1)
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} is not a parquet file that can be read ({error}).") from error


def is_dataset(path: Path) -> bool:
    """Whether it is a saved dataset's folder, or no file but possibly a name of the Hub."""
    folder = Path(_parted(path)[0])
    if folder.exists():
        return any((folder / name).is_file() for name in _SAVED)
    return re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?(:[\w.-]+)?", str(folder)) is not None


def read_dataset(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, row) of a split; labels that are classes by their names.

    Raises:
        MissingPackage: datasets is not installed.
        UsageError: no such dataset or split, or several and none is named.
    """
    source, split = _parted(path)
    splits = _opened(source)
    if not split and len(splits) == 1:
        split = next(iter(splits))
    if split not in splits:
        raise UsageError(f"{source} has the splits {', '.join(splits)}; name one: {source}#{next(iter(splits))}.")
    rows = splits[split]
    names = {column: kind.names for column, kind in rows.features.items() if hasattr(kind, "int2str")}
    for number, row in enumerate(rows, start=1):
        for column, known in names.items():
            row[column] = None if row[column] in (None, -1) else known[row[column]]  # -1: GLUE's tests have no labels
        yield number, row


def splits_of(path: Path, label: str) -> dict[str, Path]:
    """A dataset's own splits by part (train, eval, test), those without labels left out."""
    source, split = _parted(path)
    found = {} if split else _opened(source)
    parts = {}
    for name, rows in found.items():
        labelled = len(rows) and label in rows.column_names and rows[0][label] not in (None, -1)
        if name in _PARTS and labelled:
            parts[_PARTS[name]] = Path(f"{source}#{name}")
    return parts


def _parted(path: Path) -> tuple[str, str]:
    source, _, split = str(path).partition("#")
    return source, split


def _opened(source: str) -> Mapping[str, Any]:
    with requiring("data", f"{source} is no file of rows; as a dataset of Hugging Face it"):
        import datasets
    # Without a network it logs an exception for each of its retries; the sentence below says it once.
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        name, _, config = source.partition(":")
        local = Path(source).is_dir()
        found = datasets.load_from_disk(source) if local else datasets.load_dataset(name, config or None)
    except Exception as error:  # the library's many kinds all mean: not here, not reachable
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"there is no file {source}, and datasets gave none of that name ({reason}). Give a file, a folder of "
            "save_to_disk, or a name that the Hub has; it needs a network the first time."
        ) from error
    finally:
        hub.setLevel(level)
    return found if isinstance(found, dict) else {"train": found}
