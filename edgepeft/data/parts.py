"""The rows of one training run: those that train, those that choose a checkpoint, those that are reported.

What no file is given for is held out of the training file, stratified, in the same way for every seed, so
that runs of several seeds are scored on the same rows.  Files are taken as they are, but the rows reported may not
all be among those that train or choose; how many rows two parts share is written down with where they are from.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.arrow import is_dataset, splits_of
from edgepeft.data.rows import FORMATS, SENTENCES, Columns, Row, label_number, read_rows
from edgepeft.data.sampling import part, row_digest
from edgepeft.errors import DataError, UsageError

__all__ = ["PARTS", "Division", "Given", "TaskData", "load_data", "targets_of", "task_data"]

PARTS = ("train", "eval", "test")
HELD_OUT = 0.1  # of the training file, for each part without a file or a share of its own
MANY, VERY_MANY = 100, 1_000  # labels: refused from the one where most have a single row, mentioned from the other

Given = Path | float | None
"""A file, or a share of the training rows; None is a tenth."""


@dataclass(frozen=True)
class TaskData:
    """Rows by part; ``labels`` are sorted by name, None for a regression; ``split`` says where each part is from and
    how many rows two parts share, ``few_shot`` how many rows were asked to train."""

    train: tuple[Row, ...]
    eval: tuple[Row, ...]
    test: tuple[Row, ...]
    labels: tuple[str, ...] | None
    split: str
    few_shot: int | None = None

    @property
    def pairs(self) -> bool:
        """Whether rows are pairs of sentences."""
        return self.train[0].sentence2 is not None

    @property
    def class_weights(self) -> dict[str, float]:
        """n / (k n_c) of each of the k labels that train: the rows of every label weigh as much together."""
        counts = Counter(row.label for row in self.train)
        return {label: len(self.train) / (len(counts) * counts[label]) for label in self.labels or () if counts[label]}

    def row_weights(self, *, balanced: bool) -> NDArray[np.float64]:
        """[rows that train]: what each weighs in the loss, all alike or as its label does."""
        weights = self.class_weights if balanced else {}
        return np.array([weights.get(row.label or "", 1.0) for row in self.train])

    @property
    def sha256(self) -> str:
        """Of all rows in order: the same digest is the same training."""
        digest = hashlib.sha256()
        for name in PARTS:
            digest.update(name.encode())
            for row in getattr(self, name):
                digest.update(row_digest(row))
        return digest.hexdigest()


class Division(TypedDict, total=False):
    """How rows are divided: ``few_shot`` rows are drawn by ``seed``; ``labels`` are those that a head has already."""

    regression: bool
    few_shot: int | None
    seed: int
    labels: tuple[str, ...] | None


class _Source(NamedTuple):
    rows: tuple[Row, ...]
    origin: str


def load_data(
    train: Path,
    eval: Given = None,
    test: Given = None,
    columns: Columns = SENTENCES,
    **division: Unpack[Division],
) -> TaskData:
    """Read the files of a run and part them; a dataset's own splits are the parts that nothing is given for.

    Raises:
        UsageError: a path that is no data file; a test that lies in another part; too many rows wanted.
        DataError: what is wrong in a file, with its line.
    """
    if train.suffix.lower() not in FORMATS and is_dataset(train):
        splits = splits_of(train, columns.names[2])
        train = splits.get("train", train)
        eval, test = (splits.get(n) if given is None else given for n, given in (("eval", eval), ("test", test)))
    asked = {"--data": train, "--eval": eval, "--test": test}
    given = {name: path for name, path in asked.items() if isinstance(path, Path)}
    parts = {name: tuple(read_rows(path, labels=True, columns=columns)) for name, path in given.items()}
    _require_different(given, parts)
    chosen = parts["--eval"] if isinstance(eval, Path) else eval
    tested = parts["--test"] if isinstance(test, Path) else test
    return task_data(parts["--data"], chosen, tested, **division)


def task_data(
    train: Sequence[Row],
    eval: Sequence[Row] | float | None = None,
    test: Sequence[Row] | float | None = None,
    *,
    regression: bool = False,
    few_shot: int | None = None,
    seed: int = 0,
    labels: tuple[str, ...] | None = None,
) -> TaskData:
    """The same from rows in memory; a number is a share of ``train`` to hold out, None a tenth.

    Raises:
        UsageError: more or fewer rows wanted than can be taken.
        DataError: too few rows, a single label, an unseen label, a label that is no number, pairs and single texts.
    """
    seen = None if regression else _labels(train)
    given = [rows for rows in (train, eval, test) if rows is not None and not isinstance(rows, float)]
    if labels is not None:
        _require_known([row for rows in given for row in rows], labels)
    for rows in given:
        _check(rows, train[0], labels or seen)
    labels = labels or seen
    left = tuple(train)
    left, tested = _held_out(left, test, "test", len(train), not regression)
    left, chosen = _held_out(left, eval, "eval", len(train), not regression)
    kept = _Source(left, f"{len(left)} rows of {_name(train)}")
    if few_shot is not None:
        kept = _few(left, few_shot, seed, labels)
    sources = dict(zip(PARTS, (kept, chosen, tested), strict=True))
    split = "; ".join(f"{name}: {source.origin}" for name, source in sources.items())
    split += _shared({name: source.rows for name, source in sources.items()})
    return TaskData(kept.rows, chosen.rows, tested.rows, labels, split, few_shot)


def targets_of(rows: Sequence[Row], labels: tuple[str, ...] | None) -> list[float]:
    """The index of each row's label, or its number where ``labels`` is None."""
    if labels is None:
        return [label_number(row) for row in rows]
    index = {label: i for i, label in enumerate(labels)}
    return [index[row.label or ""] for row in rows]


def _labels(rows: Sequence[Row]) -> tuple[str, ...]:
    labels = tuple(sorted({row.label or "" for row in rows}))
    if len(labels) < 2:
        raise DataError(
            f"{rows[0].file}: every label is {labels[0]!r}; a classification needs two. "
            "Numbers to predict are for: edgepeft train --regression."
        )
    if len(labels) > MANY and 2 * len(labels) > len(rows):
        raise DataError(
            f"{rows[0].file}: {len(labels):,} different labels in {len(rows):,} rows, such as {_listed(labels[:3])}; a "
            "label stands in many rows. Is it another column (--label-column NAME), or numbers (--regression)?"
        )
    _say_what_is_odd(labels, rows[0].file)
    return labels


def _say_what_is_odd(labels: Sequence[str], file: str) -> None:
    alike: dict[str, list[str]] = {}
    for label in labels:
        alike.setdefault("".join(label.split()).casefold(), []).append(label)
    if same := [" and ".join(map(repr, each)) for each in alike.values() if len(each) > 1]:
        more = f" and {len(same) - 3} more" if len(same) > 3 else ""
        shown = "; ".join(same[:3]) + more
        warnings.warn(f"{file}: labels that differ in case or blanks only are different ones: {shown}.", stacklevel=2)
    if len(labels) > VERY_MANY:
        warnings.warn(
            f"{file} has {len(labels):,} labels; each needs rows of its own to be learnt. If it is not the column of "
            "labels, --label-column names another; numbers to predict are for --regression.",
            stacklevel=2,
        )


def _require_known(rows: Sequence[Row], labels: tuple[str, ...]) -> None:
    odd = next((row for row in rows if row.label not in labels), None)
    if odd is not None:
        raise DataError(
            f"{odd.where}: the task's head has no label {odd.label!r}; it has {_listed(labels)}. "
            "Correct the row, or start a task of your own from a template."
        )


def _check(rows: Sequence[Row], first: Row, labels: tuple[str, ...] | None) -> None:
    known = set(labels or ())
    for row in rows:
        if (row.sentence2 is None) != (first.sentence2 is None):
            kinds = ("a single text", "a pair") if row.sentence2 is None else ("a pair", "a single text")
            raise DataError(f"{row.where} is {kinds[0]}, but {first.where} is {kinds[1]}; give one kind.")
        if labels is None:
            label_number(row)
        elif row.label not in known:
            raise DataError(
                f"{row.where}: label {row.label!r} was not seen in {first.file}, which has {_listed(labels)}. "
                "Add training rows of it, or correct it."
            )


def _listed(labels: Sequence[str]) -> str:
    return ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")


def _held_out(
    rows: tuple[Row, ...], given: Sequence[Row] | float | None, name: str, n_all: int, stratify: bool
) -> tuple[tuple[Row, ...], _Source]:
    """What is left to train on, and the part called ``name``: as given, or held out, the asked share of all rows."""
    if given is not None and not isinstance(given, float):
        return rows, _Source(tuple(given), f"{len(given)} rows of {_name(given)}")
    n = max(1, round((given or HELD_OUT) * n_all))
    if given is not None and not 0 < given < 1:
        raise UsageError(f"--{name} {given:g}: a share to hold out lies between 0 and 1, such as 0.2 or 20%.")
    taken, left = part(rows, n, f"held out: {name}", stratify=stratify, spare=1)
    if given is not None and len(taken) < n:
        raise UsageError(
            f"--{name} {given:g} of {n_all} rows is {n}, and {len(taken)} can be held out: a row of every label stays "
            "to train on. Give smaller shares, or more rows."
        )
    if not taken:
        lack = "no label has a row more than the one that stays to train on" if stratify else "too few to share"
        raise DataError(
            f"{rows[0].file} has {n_all} rows, and none can be held out for {name}: {lack}. "
            "Give files for --eval and --test, or more rows."
        )
    return left, _Source(taken, f"{len(taken)} rows held out of {_name(rows)}")


def _few(rows: tuple[Row, ...], n: int, seed: int, labels: tuple[str, ...] | None) -> _Source:
    least = 1 if labels is None else len(labels)
    if n < least:
        raise UsageError(f"--few-shot {n} is fewer than {least}; give at least one row, and one of every label.")
    if n > len(rows):
        raise UsageError(f"--few-shot {n} is more than the {len(rows)} rows of {rows[0].file} that can train.")
    taken = part(rows, n, f"few-shot {seed}", stratify=labels is not None, least=1).taken
    return _Source(taken, f"{n} of {len(rows)} rows of {_name(rows)} (stratified, seed {seed})")


def _name(rows: Sequence[Row]) -> str:
    return Path(rows[0].file).name


def _shared(parts: dict[str, Sequence[Row]]) -> str:
    """What ``split`` says of rows that stand in two parts, as real data sets have them."""
    digests = {name: set(map(row_digest, rows)) for name, rows in parts.items()}
    counts = []
    for one, other in combinations(parts, 2):
        if n := sum(row_digest(row) in digests[one] for row in parts[other]):
            counts.append(f"{n} of {other} in {one}")
    return f"; rows in both: {', '.join(counts)}" if counts else ""


def _require_different(given: dict[str, Path], parts: dict[str, tuple[Row, ...]]) -> None:
    """The rows that choose a checkpoint or train are never the rows reported, in whatever order they stand."""
    digests = {option: set(map(row_digest, rows)) for option, rows in parts.items()}
    for one, other in combinations(parts, 2):
        inner, outer = (one, other) if digests[one] <= digests[other] else (other, one)
        reported = other == "--test" and digests[inner] <= digests[outer]
        if reported or digests[one] == digests[other]:
            raise UsageError(
                f"every row of {inner} {given[inner]} is in {outer} {given[outer]} too; a score on rows that trained "
                f"or chose the checkpoint means nothing. Leave {other} out to have a part held out."
            )
