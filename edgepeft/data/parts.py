"""The rows of one training run: those that train, those that choose a checkpoint, those that are reported.

A part without a file is held out of the training file, stratified, in the same way for every seed, so that runs of
several seeds are scored on the same rows.  Files are taken as they are, but the rows reported may not all be among
those that train or choose; how many rows two parts share is written down with where they are from.

Rows that are held out, or a few to train on, are drawn in the same way on every machine: in the order of SHA-256 over a
salt and the row's content, no generator whose stream a release may change.  Equal rows are neighbours in it, so copies
of a row hardly ever fall on both sides of a split.

Rows of a file that cannot be used are named at once, or left out.  Where no option says the kind of task or the
patterns of its text, the rows tell them.
"""

import hashlib
import heapq
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.messages import counted, first_of
from edgepeft.data.columns import SENTENCES, Columns, require_names
from edgepeft.data.readers import Source, head_of, held, source_of, splits_of
from edgepeft.data.rows import BadRows, Row, read_rows
from edgepeft.data.shapes import Shape, recognised_shape
from edgepeft.options.base import LearningOptions, Rows, share_of
from edgepeft.tasks._conformal import Guarantee
from edgepeft.tasks.base import TaskType, kind_from_card, requested_kind

PARTS = ("train", "eval", "test")

RowsOrShare = Source | float | None
"""A file or rows, or a share of the training rows; None is a tenth."""


@dataclass(frozen=True)
class TaskData:
    """Rows by part, and what is known of them and of the task."""

    train: tuple[Row, ...]
    eval: tuple[Row, ...]
    test: tuple[Row, ...]
    labels: tuple[str, ...] | None  # sorted by name; None where the kind of task has none
    split: str  # where each part is from, and how many rows two parts share
    few_shot: int | None = None  # rows that were asked to train
    source: str | None = None  # the pattern of the texts, where the task is posed as text
    target: str | None = None  # the pattern of text that is written freely; then there are no labels
    targets: tuple[str, ...] | None = None  # what is written of each label; None its name
    step: float | None = None  # of which labels that are numbers are multiples
    kind: str | None = None  # of task, by name; None: by what is there
    guarantee: Guarantee = field(default_factory=dict)  # of the answers
    stride: int | None = None  # tokens that windows of long texts share, where these are not cut
    json_schema: Mapping[str, Any] | None = None  # what a text that is written keeps to
    n_bad: int = 0  # rows that could not be used, and were left out

    @cached_property
    def task_kind(self) -> TaskType:
        """The kind of task, with these labels."""
        chosen, head = {} if self.stride is None else {"stride": self.stride}, "" if self.target is None else "text"
        kind = kind_from_card(self.kind, self.labels, head, step=self.step, chosen=chosen)
        return kind.bind_rows(self.train).with_guarantee(self.guarantee, len(self.eval))

    @property
    def pairs(self) -> bool:
        """True if a pair of texts is read of a row."""
        return self.task_kind.read(self.train[:1])[0][0].second is not None

    @property
    def class_weights(self) -> dict[str, float]:
        """The weight n / (k n_c) of each of the k labels that train: all rows of a label weigh alike together."""
        counts = Counter(row.label for row in self.train)
        return {label: len(self.train) / (len(counts) * counts[label]) for label in self.labels or () if counts[label]}

    def row_weights(self, *, balanced: bool) -> NDArray[np.float64]:
        """Return each training row's weight in the loss, all alike or its label's."""
        weights = self.class_weights if balanced else {}
        return np.array([weights.get(row.label or "", 1.0) for row in self.train])

    @property
    def sha256(self) -> str:
        """Digest of all rows in order, and of the schema of texts: the same digest is the same training."""
        digest = hashlib.sha256()
        for name in PARTS:
            digest.update(name.encode())
            for row in getattr(self, name):
                digest.update(row_digest(row))
        if self.json_schema is not None:
            digest.update(json.dumps(self.json_schema, sort_keys=True).encode())
        return digest.hexdigest()


def rows_or_share(option: str, given: Rows | float | None) -> RowsOrShare:
    """Return rows, or a share to hold out: what reads as a number or a percentage, and is no file."""
    if given is None:
        return None
    if isinstance(given, int | float | np.number):
        return float(given)
    text = str(given) if isinstance(given, str | os.PathLike) else ""
    if not text.removesuffix("%").replace(".", "", 1).isdigit() or Path(text).exists():
        return source_of(given)
    return share_of(option, text)


def load_data(
    train: Source,
    eval: RowsOrShare = None,
    test: RowsOrShare = None,
    columns: Columns = SENTENCES,
    *,
    kind: str | None = None,
    regression: bool = False,
    few_shot: int | None = None,
    seed: int = 0,
    labels: tuple[str, ...] | None = None,
    partial: bool = False,
    skip_bad: bool = False,
) -> TaskData:
    """Read the files of a run and part them; a dataset's own splits are the parts without a file.

    ``regression`` is short for that ``kind`` of task; ``few_shot`` rows are drawn by ``seed``; ``labels`` are those
    that a head has already, of which ``partial`` rows may lack some.  With ``skip_bad`` rows that cannot be used are
    left out, which is said; else all of them are named.
    """
    wanted = [name for name, given in (("train", None), ("eval", eval), ("test", test)) if given is None]
    if splits := splits_of(train, columns.answer, tell=wanted):
        train = splits.get("train", train)
        eval, test = (splits.get(n) if n in wanted else given for n, given in (("eval", eval), ("test", test)))
    asked = {"--data": train, "--eval": eval, "--test": test}
    given = {name: path for name, path in asked.items() if isinstance(path, Source)}
    of = requested_kind(kind, regression=regression, writes=columns.target is not None)
    reads: dict[str, Any] = {"columns": of.columns(columns), "label_of": of.label_text, "optional": of.optional_labels}
    problems = {name: BadRows(path) for name, path in given.items()}
    parts = {name: tuple(read_rows(path, labels=True, bad=problems[name], **reads)) for name, path in given.items()}
    for name, bad in problems.items():
        bad.raise_or_warn(skip=skip_bad, some=bool(parts[name]))
    if kind is None and of.one_label and not labels:
        require_names(train, "label", [row.label for row in parts["--data"]])  # of all rows; shapes see the first ones
    digests = {option: set(map(row_digest, rows)) for option, rows in parts.items()}
    for one, other in combinations(parts, 2):  # in whatever order rows stand
        inner, outer = (one, other) if digests[one] <= digests[other] else (other, one)
        reported = other == "--test" and digests[inner] <= digests[outer]
        if reported or digests[one] == digests[other]:
            raise UsageError(
                f"every row of {inner} {given[inner]} is in {outer} {given[outer]} too; a score on rows that trained "
                f"or chose the checkpoint means nothing. Leave {other} out to have a part held out."
            )
    chosen = parts["--eval"] if isinstance(eval, Source) else eval
    tested = parts["--test"] if isinstance(test, Source) else test
    division: dict[str, Any] = {"few_shot": few_shot, "seed": seed, "labels": labels, "partial": partial}
    data = task_data(parts["--data"], chosen, tested, kind=of.name, **division)
    source, target = (None if each is None else each.text for each in (columns.source, columns.target))
    left_out = "".join(bad.left_out for bad in problems.values())
    n_bad = sum(bad.n for bad in problems.values())
    return replace(data, source=source, target=target, split=data.split + left_out, n_bad=n_bad)


def task_data(
    train: Sequence[Row],
    eval: Sequence[Row] | float | None = None,
    test: Sequence[Row] | float | None = None,
    *,
    kind: str | None = None,
    few_shot: int | None = None,
    seed: int = 0,
    labels: tuple[str, ...] | None = None,
    partial: bool = False,
) -> TaskData:
    """Part rows in memory likewise; a number is a share of ``train`` to hold out, None a tenth."""
    asked = requested_kind(kind)
    seen = labels if partial else asked.labels_of(train)  # the rest of the rows, or of the labels, is elsewhere
    known = asked(labels or seen).bind_rows(train)
    train = known.as_known(train)
    eval, test = (each if each is None or isinstance(each, float) else known.as_known(each) for each in (eval, test))
    given = [rows for rows in (train, eval, test) if rows is not None and not isinstance(rows, float)]
    for rows in given:
        _check(rows, train[0], known, of_head=bool(labels))
    every = [row for rows in given for row in rows]
    empty = [row.where for row in every if row.fields is None and not (row.sentence1 + (row.sentence2 or "")).strip()]
    if empty:
        has = "has" if len(empty) == 1 else "have"
        warnings.warn(f"{len(empty):,} of {len(every):,} rows {has} no text: {_first_three(empty)}.", stacklevel=2)
    if known.one_label:
        _note_conflicts(every)
    left = tuple(train)
    left, tested = hold_out(left, test, "test", len(train), known)
    left, chosen = hold_out(left, eval, "eval", len(train), known)
    kept = Part(left, f"{counted(len(left), 'row')} of {file_name(train)}")
    if (n := few_shot) is not None:
        strata = known.strata(left)
        least = known.n_outputs if known.one_label else len(set(strata))
        if n < least:
            raise UsageError(f"--few-shot {n} is fewer than {least}; give at least one row, and one of every label.")
        if n > len(left):
            raise UsageError(
                f"--few-shot {n} is more than the {counted(len(left), 'row')} of {left[0].file} that can train."
            )
        taken, _ = split_rows(left, n, f"few-shot {seed}", strata=strata, least=1)
        kept = Part(taken, f"{n} of {len(left)} rows of {file_name(left)} (stratified, seed {seed})")
    sources = dict(zip(PARTS, (kept, chosen, tested), strict=True))
    split = "; ".join(f"{name}: {source.origin}" for name, source in sources.items())
    split += _overlap({name: source.rows for name, source in sources.items()}, note=few_shot is None)
    return TaskData(kept.rows, chosen.rows, tested.rows, known.labels, split, few_shot, kind=asked.name)


HELD_OUT = 0.1  # of the training file, for each part without a file or a share of its own


class Part(NamedTuple):
    """Rows, and where they are from."""

    rows: tuple[Row, ...]
    origin: str


def hold_out(
    rows: tuple[Row, ...], given: Sequence[Row] | float | None, name: str, n_all: int, kind: TaskType
) -> tuple[tuple[Row, ...], Part]:
    """Return what is left to train on, and the part called ``name``: as given, or the asked share of all rows."""
    if given is not None and not isinstance(given, float):
        return rows, Part(tuple(given), f"{counted(len(given), 'row')} of {file_name(given)}")
    if given is not None and not 0 < given < 1:
        raise UsageError(f"--{name} {given:g}: a share to hold out lies between 0 and 1, such as 0.2 or 20%.")
    n = max(1, round((given or HELD_OUT) * n_all))
    taken, left = split_rows(rows, n, f"held out: {name}", strata=kind.strata(rows), spare=1)
    if given is not None and len(taken) < n:
        raise UsageError(
            f"--{name} {given:g} of {n_all} rows is {n}, and {len(taken)} can be held out: a row of every label stays "
            "to train on. Give smaller shares, or more rows."
        )
    if not taken:
        lack = "no label has a row more than the one that stays to train on" if kind.one_label else "too few to share"
        raise DataError(
            f"{rows[0].file} has {counted(n_all, 'row')}, and none can be held out for {name}: {lack}. "
            "Give files for --eval and --test, or more rows."
        )
    return left, Part(taken, f"{counted(len(taken), 'row')} held out of {file_name(rows)}")


def file_name(rows: Sequence[Row]) -> str:
    """Return the name of the file that rows are from."""
    return Path(rows[0].file).name


def split_rows(
    rows: Sequence[Row], n: int, salt: str, *, strata: Sequence[str], least: int = 0, spare: int = 0
) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Take ``n`` rows, in proportion from the rows of every one of ``strata`` (each row's), at least ``least`` and so
    that ``spare`` stay; return them and the others, in the order of the file."""
    members_of: dict[str, list[int]] = {}
    for index in sorted(range(len(rows)), key=lambda index: row_digest(rows[index], salt)):
        members_of.setdefault(strata[index], []).append(index)
    wanted = quotas({label: len(members) for label, members in members_of.items()}, n, least=least, spare=spare)
    taken = {index for label, members in members_of.items() for index in members[: wanted[label]]}
    left = tuple(row for index, row in enumerate(rows) if index not in taken)
    return tuple(rows[index] for index in sorted(taken)), left


def quotas(sizes: Mapping[str, int], n: int, *, least: int = 0, spare: int = 0) -> dict[str, int]:
    """Share ``n`` in proportion to ``sizes``, one by one to whom most is due; less if there are not so many."""
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
    """Return SHA-256 of the salt and the row's content, not of where it stands."""
    content = "\0".join((salt, row.sentence1, row.sentence2 or "", row.label or "", *row.candidates))
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


_NAMED = 20  # labels that an error names


def _check(rows: Sequence[Row], first: Row, kind: TaskType, *, of_head: bool) -> None:
    """Refuse rows of another form than the first, or with labels that the head, or the training rows, do not have."""
    for row in rows:
        if (row.sentence2 is None) != (first.sentence2 is None):
            forms = ("a single text", "a pair") if row.sentence2 is None else ("a pair", "a single text")
            raise DataError(f"{row.where} is {forms[0]}, but {first.where} is {forms[1]}; give one kind.")
        if (odd := kind.unknown_label(row)) is not None:
            labels = kind.labels or ()
            known = first_of(labels, _NAMED)
            raise DataError(
                f"{row.where}: the task's head has no label {odd!r}; it has {known}. Correct the row, or start a task "
                "of your own from a template."
                if of_head
                else f"{row.where}: label {odd!r} was not seen in {first.file}, which has {known}. Add training rows "
                "of it, or correct it."
            )


def _note_conflicts(rows: Sequence[Row]) -> None:
    """Say which texts stand with different labels; no part can have them right."""
    first, found = dict[object, Row](), dict[object, Row]()
    for row in rows:
        text = (row.sentence1.strip(), row.sentence2, row.references)
        if first.setdefault(text, row).label != row.label:
            found.setdefault(text, row)
    if found:
        texts = "text stands" if len(found) == 1 else "texts stand"
        each = [f"{first[key].where} has {first[key].label!r}, {row.where} {row.label!r}" for key, row in found.items()]
        warnings.warn(f"{len(found):,} {texts} with different labels: {_first_three(each)}.", stacklevel=3)


def _first_three(told: Sequence[str]) -> str:
    """Name three of them, and count the others."""
    return "; ".join([*told[:3], *([f"and {len(told) - 3:,} more"] if len(told) > 3 else [])])


def _overlap(parts: dict[str, Sequence[Row]], *, note: bool) -> str:
    """Say for ``split`` how many rows, and texts with another label, stand in two parts; a ``note`` names rows."""
    rows = {name: [(row_digest(row), row) for row in part] for name, part in parts.items()}
    texts = {name: [row_digest(row._replace(label=None)) for row in part] for name, part in parts.items()}
    copies, unlike = list[str](), list[str]()
    for one, other in combinations(parts, 2):
        there = dict(rows[one][::-1])  # the first one of equal rows
        told = [f"{row.short} is {there[digest].short} of {one}" for digest, row in rows[other] if digest in there]
        if n := len(told):
            copies.append(f"{n} of {other} in {one}")
            if note:
                stand = f"row of {other} stands" if n == 1 else f"rows of {other} stand"
                warnings.warn(f"{n:,} {stand} in {one} too: {_first_three(told)}.", stacklevel=3)
        known = {*texts[one]}
        if (more := sum(digest in known for digest in texts[other]) - n) > 0:
            unlike.append(f"{more} of {other} in {one}")
    found = {"rows in both": copies, "texts in both with other labels": unlike}
    return "".join(f"; {what}: {', '.join(counts)}" for what, counts in found.items() if counts)


SHAPE_OPTIONS = ("kind", "source", "target")  # options that a shape says
_KIND_OPTIONS = (*SHAPE_OPTIONS, "regression", "format")

O = TypeVar("O", bound=LearningOptions)  # noqa: E741


def complete_from_rows(options: O) -> O:
    """Complete the options by what the shape of their rows tells, if none of them says what the rows are."""
    if any(getattr(options, name, None) for name in _KIND_OPTIONS):
        return options
    rows = held(source_of(options.data))
    shape = detect_shape(rows, Columns.of(options))
    known = [name for name in SHAPE_OPTIONS if shape is not None and name in type(options).model_fields]
    return options.model_copy(update={"data": rows, **{name: getattr(shape, name) for name in known}})


def detect_shape(train: Source, columns: Columns = SENTENCES) -> Shape | None:
    """Tell the shape of training rows by the first ones."""
    return recognised_shape(train, head_of(splits_of(train, columns.answer).get("train", train)), columns[:3])
