"""What every kind of task is described by: a loss as nodes, metrics, facts, and how it reads texts that are too long.

These are cut, or read in windows that overlap.  Of what is ``chosen`` for a task, ``stride`` is how many tokens two
windows share; without it texts are cut.  A kind that answers once for a text makes one answer of the logits of all its
windows: it is taught by their mean (the loss is that of the pooled logits, not of each window), and ``pool`` says what
was better on the evaluation rows.  One that answers for each token takes each of the window where it has most context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TextEncoder, TokenBatch
from edgepeft.common.errors import UsageError
from edgepeft.data.row_grouping import RowGrouping, stitches_of
from edgepeft.data.rows import Row

CLOSE = 1e-4  # of two logits: what one that is held to no tolerance is taken for rounding up to

Values = NDArray[Any]
Nodes = list[tuple[str, list[str], str, dict[str, Any]]]
"""ONNX operators: type, inputs, output, attributes."""


class LossGraph(NamedTuple):
    """A loss as nodes: they read ``logits`` and ``labels``, and the constants of ``graph.gradient.losses``, and give
    ``loss/of_rows`` [batch], the sum of each row's terms.  ``labels`` are int64 or numbers of these dimensions."""

    nodes: Nodes
    integers: bool
    dims: tuple[str | int, ...] = ("batch",)


class Metric(NamedTuple):
    """A function of (the bound kind, targets [n, ...], outputs [n, ...]), higher is better; and how it comes to one
    number.

    With ``of_sums`` the function gives values [n, ...] of the rows, and the score is made of their sums and n.  What is
    not ``resampled`` is too slow for a bootstrap.
    """

    function: Callable[[Any, Any, Any], Any]
    averaged: str = "over all rows"
    of_sums: Callable[[Any, int], float] | None = None
    resampled: bool = True

    def score(self, *of: Any) -> float:
        """One number."""
        found = self.function(*of)
        return float(found) if self.of_sums is None else self.of_sums(np.sum(found, 0), len(found))


def mean(sums: Any, n: int) -> float:
    """``of_sums`` of a metric that is the mean of its rows' values."""
    return float(sums) / n


class Agreement(NamedTuple):
    """The share of decided rows that have the reference's decision, and the number of undecided rows."""

    share: float
    undecided: int

    @staticmethod
    def decided(reference: Values, tolerance: float | None, axis: int) -> NDArray[np.bool_]:
        """Where the two largest along an axis are too far apart to change places within the tolerance."""
        best = np.sort(reference, axis)
        return best.take(-1, axis) - best.take(-2, axis) > 2 * (tolerance or CLOSE)


def same_best(reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
    """Whether the largest of each row is the same; undecided where the reference's two largest are too near."""
    decided = Agreement.decided(reference, tolerance, axis=1)
    equal = reference.argmax(axis=1) == logits.argmax(axis=1)
    return Agreement(float(equal[decided].mean()) if decided.any() else 1.0, int((~decided).sum()))


def log_softmax(logits: NDArray[Any], axis: int = -1) -> NDArray[np.float64]:
    """Of the same shape, in float64."""
    exact = logits.astype(np.float64)
    exact -= exact.max(axis, keepdims=True)
    return exact - np.log(np.exp(exact).sum(axis, keepdims=True))


def cross_entropy(logits: str, labels: str, axis: int, out: str) -> Nodes:
    """-log softmax of ``logits`` [..., C] at int64 ``labels`` [...], whose number of dimensions is ``axis``; 0 where
    these are no column."""
    return [
        ("Shape", [logits], "loss/n_outputs", {"start": axis, "end": axis + 1}),
        ("Squeeze", ["loss/n_outputs"], "loss/n", {}),
        ("Range", ["loss/zero", "loss/n", "loss/one"], "loss/columns", {}),
        ("Unsqueeze", [labels, "loss/last"], "loss/labels", {}),
        ("Equal", ["loss/labels", "loss/columns"], "loss/chosen", {}),
        ("LogSoftmax", [logits], "loss/log_shares", {"axis": -1}),
        ("Where", ["loss/chosen", "loss/log_shares", "loss/nothing"], "loss/of_labels", {}),
        ("ReduceSum", ["loss/of_labels", "loss/last"], "loss/likelihoods", {"keepdims": 0}),
        ("Neg", ["loss/likelihoods"], out, {}),
    ]


def rarest(names: Sequence[Sequence[str]]) -> list[str]:
    """Of the names of each row the one that fewest rows' names are; empty where a row has none."""
    counts = Counter(name for of_row in names for name in of_row)
    return [min(of_row, key=lambda name: (counts[name], name), default="") for of_row in names]


def listed(labels: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(labels[:20]) + (f" and {len(labels) - 20} more" if len(labels) > 20 else "")


CUT, WINDOWS = "cut", "windows"


class Facts:
    """Base of ``TaskType``: what is true of a kind, and how it reads rows; what has no value here each kind says."""

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
    texts_answered: ClassVar[int] = 1  # of a row, where only their number matters
    texts_taught: ClassVar[int] = 1
    chosen: Mapping[str, Any]

    @classmethod
    def require_classes(cls) -> None:
        """See that rows can be weighed by their label."""
        if not cls.one_label:
            raise UsageError(f"--balanced weighs classes, and {cls.title} has none; leave --balanced out.")

    @property
    def windows(self) -> bool:
        """Whether a long text is read in windows."""
        return self.passages or "stride" in self.chosen

    @property
    def stitches(self) -> bool:
        """Whether each token's answer is taken of one of the windows that it stands in."""
        return self.windows and self.per_token and not self.passages

    @property
    def pooled(self) -> bool:
        """Whether the logits of a text's windows become one answer."""
        return self.windows and not self.per_token

    @property
    def pool(self) -> str:
        """What is made of a text's windows."""
        return str(self.chosen.get("pool", self.pools[0]))

    def pooling(self) -> tuple[Self, ...]:
        """This kind with each of the pools that may be better, where there are several."""
        if not self.pooled or len(self.pools) < 2:
            return (self,)
        return tuple(replace(self, chosen={**self.chosen, "pool": pool}) for pool in self.pools)  # type: ignore[type-var]

    def in_one_window(self) -> Self:
        """This kind as of texts that all fit, where only time matters."""
        chosen = {name: value for name, value in self.chosen.items() if name not in ("stride", "pool")}
        return replace(self, chosen=chosen)  # type: ignore[type-var]

    def overlap(self, max_length: int) -> int:
        """How many tokens two windows of that length share."""
        return int(self.chosen.get("stride", max_length // 3))

    def read_as(self, length: int, longest: int, *, taught: bool = False) -> tuple[int, int]:
        """The token rows that a row of texts of ``length`` tokens is, and the tokens of each, where the task takes
        ``longest``; ``taught``: while it is learnt from."""
        texts = self.texts_taught if taught else self.texts_answered
        if not self.windows or length <= longest:
            return texts, length
        return texts * (1 - (longest - length) // (longest - self.overlap(longest))), longest

    def token_rows(self, given: Any, where: str) -> list[tuple[str, str | None]]:
        """What is tokenized for a row, as ``Row.readable`` or a caller gives it, if it is ``several``: texts, pairs."""
        raise UsageError(f"{self.title} reads a row as one text or pair.")

    def read(self, rows: Sequence[Row]) -> tuple[list[Text], list[int] | None]:
        """The token rows of all rows, and how many each row is; None where each is one."""
        if not self.several:
            return [Text(row.sentence1, row.sentence2) for row in rows], None
        found = [self.token_rows(row.readable, row.where) for row in rows]
        return [Text(*text) for of_row in found for text in of_row], [*map(len, found)]

    def tokens(
        self, encoder: TextEncoder, texts: Sequence[Text], max_length: int, names: Sequence[str] = ()
    ) -> TokenBatch:
        """Token rows cut at the maximal length, or in windows."""
        if not self.windows:
            return encoder.encode(texts, max_length)
        return encoder.windows(texts, max_length, self.overlap(max_length), names, second=self.passages)

    def grouping(self, tokens: TokenBatch, per_row: Sequence[int] | None) -> RowGrouping:
        """How token rows make rows, of so many texts each."""
        if not self.windows:
            return RowGrouping(per_row=per_row)
        return RowGrouping(tokens.per_text, per_row, stitches=stitches_of(tokens) if self.stitches else None)

    def require_sound_windows(self) -> None:
        """See that what a card says of windows can be."""
        stride, pool = self.chosen.get("stride", 1), self.chosen.get("pool", self.pools[0])
        if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
            raise ValueError(f"the stride of its windows is a whole number from 1; found {stride!r}")
        if self.windows and self.writes:
            raise ValueError("a task that writes text reads no windows")
        if pool not in self.pools or ("pool" in self.chosen and not self.pooled):
            raise ValueError(f"the pool of its windows is {pool!r}")

    @classmethod
    def long_asked(cls, long: str | None, stride: int | None) -> str:
        """How long texts are read, where that is asked for, with so many tokens that windows share."""
        usual = WINDOWS if cls.passages else CUT
        if cls.writes and long == WINDOWS:
            raise UsageError(
                "--long windows: a text that is written cannot be pooled of what is written for each window; leave it "
                "out, or give a greater --max-length."
            )
        if cls.passages and long == CUT:
            raise UsageError("--long cut: answers are searched in all of a passage, in windows; leave it out.")
        if stride is not None and (long or usual) == CUT:
            raise UsageError("--stride is what windows share; give --long windows too, or leave it out.")
        return long or usual
