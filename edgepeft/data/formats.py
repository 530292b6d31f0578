"""Tasks as text, by name: the sources and targets of T5 (Raffel et al., 2020) and of Compacter (Mahabadi et al., 2021).

T5 puts a word for the task first, then ``name: text`` for each field.  Compacter has no such word where adapters are
trained, another order of some fields, and writes the number of a class in place of its name.  Both in the versions
text-to-text-transfer-transformer e081111 and compacter e123daa.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

from edgepeft.common.errors import DataError, named

__all__ = ["FORMATS", "Format", "format_named"]

NAMES = {
    "cola": ("unacceptable", "acceptable"),
    "sst2": ("negative", "positive"),
    "mrpc": ("not_equivalent", "equivalent"),
    "qqp": ("not_duplicate", "duplicate"),
    "mnli": ("entailment", "neutral", "contradiction"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("not_entailment", "entailment"),
    "boolq": ("False", "True"),
    "cb": ("entailment", "contradiction", "neutral"),
    "copa": ("choice1", "choice2"),
    "multirc": ("False", "True"),
    "wic": ("False", "True"),
}
"""Of each task with classes, in the order of the classes' numbers."""

# Fields in T5's order, and in Compacter's where that is another one; a ``;`` stands before a field without a colon.
_GLUE = {
    "cola": ("sentence", ""),
    "sst2": ("sentence", ""),
    "mrpc": ("sentence1 sentence2", ""),
    "qqp": ("question1 question2", ""),
    "mnli": ("hypothesis premise", "premise ;hypothesis"),
    "qnli": ("question sentence", ""),
    "rte": ("sentence1 sentence2", ""),
    "wnli": ("sentence1 sentence2", ""),
}
_SUPERGLUE = {
    "boolq": ("passage question", "question passage"),
    "cb": ("hypothesis premise", "premise hypothesis"),
    "copa": ("choice1 choice2 premise question", "premise choice1 choice2"),
    "multirc": ("question:untagged answer:untagged paragraph:untagged", ""),
    "wic": ("sentence1 sentence2 word", ""),
    "rte": ("hypothesis premise", "premise hypothesis"),
}
_METRICS = {"cola": "matthews", "mrpc": "f1", "qqp": "f1", "cb": "f1", "multirc": "f1"}
_RECORD = "record query: {query} entities: {entities:joined} passage: {passage:in-sentences}"


@dataclasses.dataclass(frozen=True)
class Format:
    """How rows of a data set become text.

    ``word`` stands before ``source`` only where no adapters are trained.  ``names`` are the classes', ``targets`` what
    is written of each; none where ``target`` is written freely.  ``each_answer`` makes a row of every answer: of those
    that train, or of all.  Numbers are rounded to multiples of ``step``, which are the names.
    """

    name: str
    source: str
    word: str = ""
    names: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    target: str = ""
    metric: str = "accuracy"
    max_length: int | None = None
    each_answer: Literal["no", "train", "all"] = "no"
    step: float | None = None

    def source_for(self, *, adapters: bool) -> str:
        """The source of a task whose method trains adapters, or none."""
        return f"{self.word} {self.source}" if self.word and not adapters else self.source

    def targets_of(self, labels: Sequence[str]) -> tuple[str, ...]:
        """What is written of each of the data's labels, which are names or numbers of classes.

        Raises:
            DataError: no target has such a label, or two labels have one.
        """
        places = [self._place(label) for label in labels]
        if len(set(places)) < len(places):
            raise DataError(
                f"two of the labels {', '.join(labels)} are the same class of {self.name}; write it one way."
            )
        return tuple(self.targets[place] for place in places)

    def _place(self, label: str) -> int:
        folded = [name.casefold() for name in self.names]
        if label.casefold() in folded:
            return folded.index(label.casefold())
        if label.isdecimal() and int(label) < len(self.names):
            return int(label)
        known = ", ".join(f"{name} (or {i})" for i, name in enumerate(self.names))
        raise DataError(f"no target of {self.name} has the label {label!r}; its labels are {known}.")


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        UnknownName: there is none.
    """
    return named("format", name, FORMATS)


def _fields(fields: str) -> str:
    """``"question:untagged ;answer"`` -> ``"question: {question:untagged} answer {answer}"``."""
    marks = [(field.removeprefix(";"), "" if field[0] == ";" else ":") for field in fields.split()]
    return " ".join(f"{field.partition(':')[0]}{colon} {{{field}}}" for field, colon in marks)


def _labelled() -> Iterator[Format]:
    for group, tasks, start, length in (("glue", _GLUE, "", 128), ("superglue", _SUPERGLUE, "superglue-", 256)):
        for task, (ours, other) in tasks.items():
            names, metric = NAMES[task], _METRICS.get(task, "accuracy")
            yield Format(f"{group}:{task}", f"{task} {_fields(ours)}", names=names, targets=names, metric=metric)
            numbers, word = tuple(map(str, range(len(names)))), start + task
            source = _fields(other or ours)
            more = {"names": names, "targets": numbers, "metric": metric, "max_length": length}
            yield Format(f"compacter:{word}", source, word, **more)  # type: ignore[arg-type]


def _written() -> Iterator[Format]:
    free = {"target": "{answers}", "metric": "f1"}
    yield Format("superglue:record", _RECORD, each_answer="train", **free)  # type: ignore[arg-type]
    of = "superglue-record"
    yield Format(f"compacter:{of}", _RECORD, of, max_length=512, each_answer="all", **free)  # type: ignore[arg-type]
    for name, cleaning in (("squad", "spaced"), ("compacter:squad", "spaced-apart")):
        source = _fields(f"question:{cleaning} context:{cleaning}")
        word = name.removeprefix("compacter:") if ":" in name else ""
        yield Format(name, source, word, target=f"{{answers:{cleaning}}}", metric="f1")


def _numbers() -> Iterator[Format]:
    """STS-B's: how alike two sentences are, from 0.0 to 5.0."""
    source = _fields("sentence1 sentence2")
    for name, read, word, step in (
        ("glue:stsb", f"stsb {source}", "", 0.2),
        ("compacter:stsb", source, "stsb", 0.1),
    ):
        names = tuple(f"{i * step:.1f}" for i in range(round(5 / step) + 1))
        length = 128 if word else None
        more = {"names": names, "targets": names, "metric": "pearson_spearman", "max_length": length, "step": step}
        yield Format(name, read, word, **more)  # type: ignore[arg-type]


FORMATS: dict[str, Format] = {each.name: each for each in (*_labelled(), *_numbers(), *_written())}
"""By name: ``glue:mrpc``, ``superglue:cb`` and ``squad`` are T5's, ``compacter:mrpc`` is Compacter's."""
