"""What is known of a kind of task without a task: names, and what is asked in place of a kind's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from edgepeft.tasks._parts import Metric

__all__ = ["Facts"]


class Facts:
    """Base of ``TaskType``; what has no value here each kind says."""

    name: ClassVar[str]
    title: ClassVar[str]  # in a sentence: "a classification"
    answers: ClassVar[str]  # what an answer is: labels, number, text
    metrics: ClassVar[Mapping[str, Metric]]
    default_metric: ClassVar[str]
    has_labels: ClassVar[bool] = False  # the columns of the logits have names
    needs_names: ClassVar[bool] = False  # and what they are called is what is answered: no number stands for a name
    one_label: ClassVar[bool] = False  # and each row has one of these, so that rows can be weighed by it
    has_baselines: ClassVar[bool] = True  # a majority and a linear head are its rivals
    chooses: ClassVar[bool] = False  # something is chosen on the evaluation rows
    writes: ClassVar[bool] = False  # answers are texts, token by token
    per_token: ClassVar[bool] = False  # logits are of a row's tokens, [B, S, C]
    head: ClassVar[str | None] = None  # the head that it needs; None: any that gives logits
    compared: ClassVar[str] = "decisions"  # what of 8-bit weights is compared: these, or values
    problem_type: ClassVar[str | None] = None  # transformers' name for it
    picks: ClassVar[bool] = False  # an answer is one of the candidates that the row brings
    several: ClassVar[bool] = False  # a row is read as several token rows: ``logits`` are [B, K, C] then, all over
    passages: ClassVar[bool] = False  # those are windows of its second text, and each has a loss: [B, K, S, C]
    pools: ClassVar[tuple[str, ...]] = ("mean", "max")  # of ``several.POOLS``: what may be made of a text's windows
    whole_batch: ClassVar[bool] = False  # the loss is of a batch's rows together: see ``slopes``
    optional_labels: ClassVar[bool] = False  # rows may have none
    gives_vectors: ClassVar[bool] = False  # an answer is one, and the bare backbone's is its rival: see ``frozen``
    model: ClassVar[str] = "ForSequenceClassification"  # how transformers' class for it ends
    older: ClassVar[Mapping[str, Any]] = {}  # what a manifest's entry says for versions that know no kinds
