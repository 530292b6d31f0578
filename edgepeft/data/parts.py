"""The rows of one training run: those that train, those that choose a checkpoint, those that are reported.

What no file is given for is held out of the training file, stratified, in the same way for every seed, so
that runs of several seeds are scored on the same rows.  Files are taken as they are, but the rows reported may not
all be among those that train or choose; how many rows two parts share is written down with where they are from.

The parts are the same on every machine, Python and library version: the order of rows is that of SHA-256 over a salt
and the row's content, no generator whose stream a release may change.  Equal rows are neighbours in it, so copies of a
row hardly ever fall on both sides of a split.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.bad_rows import BadRows
from edgepeft.data.labels import require_names
from edgepeft.data.readers import Source, source_of
from edgepeft.data.rows import SENTENCES, Columns, Row, read_rows
from edgepeft.data.told import own_splits
from edgepeft.options.base import Rows, share_of
from edgepeft.tasks._conformal import Guarantee
from edgepeft.tasks.base import TaskType, kind_asked, listed, stated

__all__ = [
    "PARTS",
    "Division",
    "Given",
    "TaskData",
    "given_rows",
    "load_data",
    "part",
    "quotas",
    "row_digest",
    "task_data",
]

PARTS = ("train", "eval", "test")
HELD_OUT = 0.1  # of the training file, for each part without a file or a share of its own

Given = Source | float | None
"""A file or rows, or a share of the training rows; None is a tenth."""


@dataclass(frozen=True)
class TaskData:
    """Rows by part; ``labels`` are sorted by name, None where the ``kind`` of task has none, of which that is the name
    (None: by what is there); ``split`` says where each part is from and how many rows two parts share, ``few_shot`` how
    many rows were asked to train, ``guarantee`` what holds of the answers, ``stride`` how many tokens windows of long
    texts share, where these are not cut.

    Where the task is posed as text, ``source`` is the pattern that its texts were made by.  ``targets`` are what is
    written of each label, None its name; ``target`` is the pattern of text that is written freely: there are no labels.
    Labels are numbers, multiples of ``step``, where that is there.
    """

    train: tuple[Row, ...]
    eval: tuple[Row, ...]
    test: tuple[Row, ...]
    labels: tuple[str, ...] | None
    split: str
    few_shot: int | None = None
    source: str | None = None
    target: str | None = None
    targets: tuple[str, ...] | None = None
    step: float | None = None
    kind: str | None = None
    guarantee: Guarantee = field(default_factory=dict)
    stride: int | None = None

    @cached_property
    def task_kind(self) -> TaskType:
        """The kind of task, with these labels."""
        chosen = {} if self.stride is None else {"stride": self.stride}
        kind = stated(self.kind, self.labels, "" if self.target is None else "text", step=self.step, chosen=chosen)
        return kind.seen(self.train).with_guarantee(self.guarantee, len(self.eval))

    def of_each_answer(self, *, everywhere: bool) -> TaskData:
        """A row for each of a row's answers: of those that train, or of all."""
        parts = PARTS if everywhere else PARTS[:1]
        rows = {
            name: tuple(row._replace(label=answer) for row in getattr(self, name) for answer in row.references)
            for name in parts
        }
        return replace(self, **rows)  # type: ignore[arg-type]

    @property
    def pairs(self) -> bool:
        """Whether what is read of a row is a pair of texts."""
        texts, _ = self.task_kind.read(self.train[:1])
        return texts[0].second is not None

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
    """How rows are divided: ``few_shot`` rows are drawn by ``seed``; ``labels`` are those that a head has already;
    ``kind`` is of the task, for which ``regression`` is short; ``partial`` rows may have one of the labels alone."""

    kind: str | None
    regression: bool
    few_shot: int | None
    seed: int
    labels: tuple[str, ...] | None
    partial: bool


class _Source(NamedTuple):
    rows: tuple[Row, ...]
    origin: str


def given_rows(option: str, given: Rows | float | None) -> Given:
    """What reads as a number or a percentage, and is no file, is a share to hold out."""
    if given is None or isinstance(given, int | float):
        return None if given is None else float(given)
    text = str(given) if isinstance(given, str | os.PathLike) else ""
    if not text.removesuffix("%").replace(".", "", 1).isdigit() or Path(text).exists():
        return source_of(given)
    return share_of(option, text)


def load_data(
    train: Source,
    eval: Given = None,
    test: Given = None,
    columns: Columns = SENTENCES,
    *,
    skip_bad: bool = False,
    **division: Unpack[Division],
) -> TaskData:
    """Read the files of a run and part them; a dataset's own splits are the parts that nothing is given for.

    With ``skip_bad`` rows that cannot be used are left out, which is said; else all of them are named.
    """
    if splits := own_splits(train, columns):
        train = splits.get("train", train)
        eval, test = (splits.get(n) if given is None else given for n, given in (("eval", eval), ("test", test)))
    asked = {"--data": train, "--eval": eval, "--test": test}
    given = {name: path for name, path in asked.items() if isinstance(path, Source)}
    short, written = division.pop("regression", False), columns.target is not None
    asked_kind = division.get("kind")
    kind = kind_asked(asked_kind, regression=short, writes=written)
    division["kind"] = kind.name
    reads = {
        "labels": True,
        "columns": kind.columns(columns),
        "label_of": kind.label_text,
        "optional": kind.optional_labels,
    }
    problems = {name: BadRows(path) for name, path in given.items()}
    parts = {
        name: tuple(read_rows(path, bad=problems[name], **reads))  # type: ignore[arg-type]
        for name, path in given.items()
    }
    for name, bad in problems.items():
        bad.settle(skip=skip_bad, some=bool(parts[name]))
    if asked_kind is None and kind.one_label and division.get("labels") is None and isinstance(train, Path):
        require_names(train, "label", [row.label for row in parts["--data"]])  # of all rows; shapes see the first ones
    _require_different(given, parts)
    chosen = parts["--eval"] if isinstance(eval, Source) else eval
    tested = parts["--test"] if isinstance(test, Source) else test
    data = task_data(parts["--data"], chosen, tested, **division)
    source, target = (None if each is None else each.text for each in (columns.source, columns.target))
    left_out = "".join(bad.left_out for bad in problems.values())
    return replace(data, source=source, target=target, split=data.split + left_out)


def task_data(
    train: Sequence[Row],
    eval: Sequence[Row] | float | None = None,
    test: Sequence[Row] | float | None = None,
    *,
    kind: str | None = None,
    regression: bool = False,
    few_shot: int | None = None,
    seed: int = 0,
    labels: tuple[str, ...] | None = None,
    partial: bool = False,
) -> TaskData:
    """The same from rows in memory; a number is a share of ``train`` to hold out, None a tenth."""
    asked = kind_asked(kind, regression=regression)
    seen = labels if partial and labels else asked.labels_of(train)
    known = asked(labels or seen).seen(train)
    given = [rows for rows in (train, eval, test) if rows is not None and not isinstance(rows, float)]
    if labels:
        _require_known([row for rows in given for row in rows], known)
    for rows in given:
        _check(rows, train[0], known)
    if known.one_label:
        _note_conflicts([row for rows in given for row in rows])
    left = tuple(train)
    left, tested = _held_out(left, test, "test", len(train), known)
    left, chosen = _held_out(left, eval, "eval", len(train), known)
    kept = _Source(left, f"{len(left)} rows of {_name(train)}")
    if few_shot is not None:
        kept = _few(left, few_shot, seed, known)
    sources = dict(zip(PARTS, (kept, chosen, tested), strict=True))
    split = "; ".join(f"{name}: {source.origin}" for name, source in sources.items())
    split += _shared({name: source.rows for name, source in sources.items()}, note=few_shot is None)
    return TaskData(kept.rows, chosen.rows, tested.rows, known.labels, split, few_shot, kind=asked.name)


def _require_known(rows: Sequence[Row], kind: TaskType) -> None:
    for row in rows:
        if (odd := kind.strange(row)) is not None:
            raise DataError(
                f"{row.where}: the task's head has no label {odd!r}; it has {listed(kind.labels or ())}. "
                "Correct the row, or start a task of your own from a template."
            )


def _check(rows: Sequence[Row], first: Row, kind: TaskType) -> None:
    for row in rows:
        if (row.sentence2 is None) != (first.sentence2 is None):
            forms = ("a single text", "a pair") if row.sentence2 is None else ("a pair", "a single text")
            raise DataError(f"{row.where} is {forms[0]}, but {first.where} is {forms[1]}; give one kind.")
        if (odd := kind.strange(row)) is not None:
            raise DataError(
                f"{row.where}: label {odd!r} was not seen in {first.file}, which has {listed(kind.labels or ())}. "
                "Add training rows of it, or correct it."
            )


def _held_out(
    rows: tuple[Row, ...], given: Sequence[Row] | float | None, name: str, n_all: int, kind: TaskType
) -> tuple[tuple[Row, ...], _Source]:
    """What is left to train on, and the part called ``name``: as given, or held out, the asked share of all rows."""
    if given is not None and not isinstance(given, float):
        return rows, _Source(tuple(given), f"{len(given)} rows of {_name(given)}")
    if given is not None and not 0 < given < 1:
        raise UsageError(f"--{name} {given:g}: a share to hold out lies between 0 and 1, such as 0.2 or 20%.")
    n = max(1, round((given or HELD_OUT) * n_all))
    taken, left = part(rows, n, f"held out: {name}", strata=kind.strata(rows), spare=1)
    if given is not None and len(taken) < n:
        raise UsageError(
            f"--{name} {given:g} of {n_all} rows is {n}, and {len(taken)} can be held out: a row of every label stays "
            "to train on. Give smaller shares, or more rows."
        )
    if not taken:
        lack = "no label has a row more than the one that stays to train on" if kind.one_label else "too few to share"
        raise DataError(
            f"{rows[0].file} has {n_all} rows, and none can be held out for {name}: {lack}. "
            "Give files for --eval and --test, or more rows."
        )
    return left, _Source(taken, f"{len(taken)} rows held out of {_name(rows)}")


def _few(rows: tuple[Row, ...], n: int, seed: int, kind: TaskType) -> _Source:
    strata = kind.strata(rows)
    least = kind.n_outputs if kind.one_label else len(set(strata))
    if n < least:
        raise UsageError(f"--few-shot {n} is fewer than {least}; give at least one row, and one of every label.")
    if n > len(rows):
        raise UsageError(f"--few-shot {n} is more than the {len(rows)} rows of {rows[0].file} that can train.")
    taken = part(rows, n, f"few-shot {seed}", strata=strata, least=1).taken
    return _Source(taken, f"{n} of {len(rows)} rows of {_name(rows)} (stratified, seed {seed})")


def _name(rows: Sequence[Row]) -> str:
    return Path(rows[0].file).name


def _note_conflicts(rows: Sequence[Row]) -> None:
    """Say which texts stand with different labels; no part can have them right."""
    first, found = dict[object, Row](), dict[object, Row]()
    for row in rows:
        text = (row.sentence1.strip(), row.sentence2, row.references)
        if first.setdefault(text, row).label != row.label:
            found.setdefault(text, row)
    if found:
        texts = "text stands" if len(found) == 1 else "texts stand"
        told = _first(
            [f"{first[key].where} has {first[key].label!r}, {row.where} {row.label!r}" for key, row in found.items()]
        )
        warnings.warn(f"{len(found):,} {texts} with different labels: {told}.", stacklevel=3)


def _first(told: Sequence[str]) -> str:
    """Three of them, and how many more there are."""
    return "; ".join([*told[:3], *([f"and {len(told) - 3:,} more"] if len(told) > 3 else [])])


def _shared(parts: dict[str, Sequence[Row]], *, note: bool) -> str:
    """What ``split`` says of rows that stand in two parts, as real data sets have them, and of texts that stand with
    another label there; a ``note`` names the first rows."""
    rows = {name: [row_digest(row) for row in part] for name, part in parts.items()}
    texts = {name: [row_digest(row._replace(label=None)) for row in part] for name, part in parts.items()}
    copies, unlike = list[str](), list[str]()
    for one, other in combinations(parts, 2):
        n, n_texts = (sum(map({*of[one]}.__contains__, of[other])) for of in (rows, texts))
        if n:
            copies.append(f"{n} of {other} in {one}")
            there = dict(zip(rows[one][::-1], parts[one][::-1], strict=True))  # the first one of equal rows
            pairs = zip(parts[other], rows[other], strict=True)
            told = [f"{row.short} is {there[digest].short} of {one}" for row, digest in pairs if digest in there]
            if note:
                stand = "row of {} stands" if n == 1 else "rows of {} stand"
                warnings.warn(f"{n:,} {stand.format(other)} in {one} too: {_first(told)}.", stacklevel=3)
        unlike += [f"{n_texts - n} of {other} in {one}"] if n_texts > n else []
    found = {"rows in both": copies, "texts in both with other labels": unlike}
    return "".join(f"; {what}: {', '.join(counts)}" for what, counts in found.items() if counts)


def _require_different(given: dict[str, Source], parts: dict[str, tuple[Row, ...]]) -> None:
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


class DrawnRows(NamedTuple):
    """Rows taken and rows left, each in the order of the file."""

    taken: tuple[Row, ...]
    left: tuple[Row, ...]


def part(
    rows: Sequence[Row], n: int, salt: str, *, strata: Sequence[str] | None, least: int = 0, spare: int = 0
) -> DrawnRows:
    """Take ``n`` rows, in proportion from the rows of every one of ``strata`` (each row's; None: all are of one).

    Every stratum gives at least ``least`` rows and keeps at least ``spare``.
    """
    members_of: dict[str, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: row_digest(rows[index], salt)):
        members_of.setdefault("" if strata is None else strata[index], []).append(index)
    wanted = quotas({label: len(members) for label, members in members_of.items()}, n, least=least, spare=spare)
    taken = {index for label, members in members_of.items() for index in members[: wanted[label]]}
    return DrawnRows(
        tuple(row for index, row in enumerate(rows) if index in taken),
        tuple(row for index, row in enumerate(rows) if index not in taken),
    )


def quotas(sizes: Mapping[str, int], n: int, *, least: int = 0, spare: int = 0) -> dict[str, int]:
    """``n`` shared in proportion to ``sizes``: one by one to whom most is due; less if there are not so many."""
    total = sum(sizes.values())
    room = {label: max(0, size - spare) for label, size in sizes.items()}
    given = {label: min(least, room[label]) for label in sizes}
    due = [(given[label] - size * n / total, label) for label, size in sizes.items() if given[label] < room[label]]
    heapq.heapify(due)
    for _ in range(min(n, sum(room.values())) - sum(given.values())):
        _, neediest = heapq.heappop(due)
        given[neediest] += 1
        if given[neediest] < room[neediest]:
            heapq.heappush(due, (given[neediest] - sizes[neediest] * n / total, neediest))
    return given


def row_digest(row: Row, salt: str = "") -> bytes:
    """SHA-256 of the salt and the row's content, not of where it stands."""
    content = "\0".join((salt, row.sentence1, row.sentence2 or "", row.label or "", *row.candidates))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
