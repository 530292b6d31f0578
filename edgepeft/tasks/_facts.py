"""What describes every kind of task: a loss as nodes, metrics, facts, and how it reads long texts.

Texts that are too long are cut, or read in windows that overlap.  Of what is ``chosen`` for a task, ``stride`` is how
many tokens two windows share; without it texts are cut.  A kind that answers once for a text pools the logits of its
windows: it is taught by their mean (the loss is that of the pooled logits, not of each window), and ``pool`` says what
was better on the evaluation rows.  One that answers for each token takes each of the window where it has most context.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TextEncoder, TokenBatch
from edgepeft.common.errors import UsageError
from edgepeft.data.row_grouping import RowGrouping, stitches_of
from edgepeft.data.rows import Row

CLOSE = 1e-4  # a difference of two logits that counts as rounding, where no tolerance holds them

Values = NDArray[Any]


class GraphWriter(Protocol):
    """``backbones.emit.Writer``, which imports onnx: what knows a task need not."""

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str: ...
    def ints(self, *values: int) -> str: ...
    def number(self, value: float, dtype: type[np.generic] = ...) -> str: ...


class LossGraph(NamedTuple):
    """A loss as nodes of ``logits`` and ``labels``; ``of_rows`` [batch] is the value that has the sum of each row's
    terms."""

    of_rows: str
    integers: bool  # ``labels`` are int64, else numbers
    dims: tuple[str | int, ...] = ("batch",)  # of ``labels``


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
        """Return the score as one number."""
        found = self.function(*of)
        return float(found) if self.of_sums is None else self.of_sums(np.sum(found, 0), len(found))


def mean(sums: Any, n: int) -> float:
    """Return the mean of the rows' values, as ``Metric.of_sums``."""
    return float(sums) / n


class Agreement(NamedTuple):
    """The share of decided rows that have the reference's decision, and the number of undecided rows."""

    share: float
    undecided: int

    @staticmethod
    def decided(reference: Values, tolerance: float | None, axis: int) -> NDArray[np.bool_]:
        """Mark where the two largest along an axis are too far apart to change places within the tolerance."""
        best = np.sort(reference, axis)
        return best.take(-1, axis) - best.take(-2, axis) > 2 * (tolerance or CLOSE)


def same_best(reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
    """Compare which is the largest of [n, C, ...]; undecided is a row whose two largest are too near everywhere."""
    decided = Agreement.decided(reference, tolerance, axis=1)
    equal = reference.argmax(axis=1) == logits.argmax(axis=1)
    undecided = (~decided).all(tuple(range(1, decided.ndim)))
    return Agreement(float(equal[decided].mean()) if decided.any() else 1.0, int(undecided.sum()))


def log_softmax(logits: NDArray[Any], axis: int | tuple[int, ...] = -1) -> NDArray[np.float64]:
    """Return the logarithm of the softmax along an axis or several, in float64."""
    exact = logits.astype(np.float64)
    exact -= exact.max(axis, keepdims=True)
    return exact - np.log(np.exp(exact).sum(axis, keepdims=True))


def token_loss(logits: Any, targets: Any) -> Any:
    """Return the mean -log softmax of PyTorch's ``logits`` [B, S, C] at ``targets`` [B, S], but for NO_TARGET."""
    known = targets >= 0
    each = logits.log_softmax(-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -(each * known).sum() / known.sum().clamp(min=1)


def cross_entropy(graph: GraphWriter, logits: str, labels: str, axis: int) -> str:
    """Write -log softmax of ``logits`` [..., C] at int64 ``labels`` [...], which have ``axis`` dimensions; 0 where a
    label is no column."""
    op, last = graph.op, graph.ints(-1)
    n = op("Squeeze", op("Shape", logits, start=axis, end=axis + 1))
    columns = op("Range", graph.number(0), n, graph.number(1))
    chosen = op("Equal", op("Unsqueeze", labels, last), columns)
    shares = op("Where", chosen, op("LogSoftmax", logits, axis=-1), graph.number(0, np.float32))
    return op("Neg", op("ReduceSum", shares, last, keepdims=0))


def rarest(names: Sequence[Sequence[str]]) -> list[str]:
    """Return each row's name that fewest rows have; empty if it has none."""
    counts = Counter(name for of_row in names for name in of_row)
    return [min(of_row, key=lambda name: (counts[name], name), default="") for of_row in names]


CUT, WINDOWS = "cut", "windows"


class Facts:
    """Base of ``TaskType``: what is true of a kind, and how it reads rows.  A kind sets what has no value here."""

    name: ClassVar[str]
    title: ClassVar[str]  # in a sentence: "a classification"
    answers: ClassVar[str]  # what an answer is: labels, number, text
    metrics: ClassVar[Mapping[str, Metric]]
    default_metric: ClassVar[str]
    telling: ClassVar[tuple[str, ...]] = ()  # the metrics that say most, the best first, if not the default one
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
    several_texts: ClassVar[bool] = False  # a row is several token rows: ``logits`` are [B, K, C] then, all over
    passages: ClassVar[bool] = False  # those are windows of its second text, and each has a loss: [B, K, S, C]
    pools: ClassVar[tuple[str, ...]] = ("mean", "max")  # of ``POOLS``: how a text's windows may be pooled
    whole_batch: ClassVar[bool] = False  # the loss is of a batch's rows together: see ``slopes``
    optional_labels: ClassVar[bool] = False  # rows may have none
    gives_vectors: ClassVar[bool] = False  # an answer is one, and the bare backbone's is its rival: see ``frozen``
    model: ClassVar[str] = "ForSequenceClassification"  # how transformers' class for it ends
    older: ClassVar[Mapping[str, Any]] = {}  # what a manifest's entry says for versions that know no kinds
    possible: ClassVar[str] = ""  # the answers, in words, where they are no labels
    sample_label: ClassVar[str] = "0"  # of a synthetic row
    sample_labels: ClassVar[tuple[str, ...]] = ("yes", "no")  # of a synthetic task that has labels
    texts_answered: ClassVar[int] = 1  # of a synthetic row, when it is answered
    texts_taught: ClassVar[int] = 1  # and when it is learnt from
    chosen: Mapping[str, Any]

    @classmethod
    def require_classes(cls) -> None:
        """Refuse ``--balanced`` where rows cannot be weighed by a label."""
        if not cls.one_label:
            raise UsageError(f"--balanced weighs classes, and {cls.title} has none; leave --balanced out.")

    @property
    def windows(self) -> bool:
        """True if a long text is read in windows."""
        return self.passages or "stride" in self.chosen

    @property
    def stitches(self) -> bool:
        """True if each token's answer is taken of one of the windows that it stands in."""
        return self.windows and self.per_token and not self.passages

    @property
    def pooled(self) -> bool:
        """True if the logits of a text's windows become one answer."""
        return self.windows and not self.per_token

    @property
    def pool(self) -> str:
        """How a text's windows are pooled."""
        return str(self.chosen.get("pool", self.pools[0]))

    def bind_chosen(self, *without: str, **chosen: Any) -> Self:
        """Bind what is chosen, beside what was before but for ``without``."""
        kept = {name: value for name, value in self.chosen.items() if name not in without}
        return replace(self, chosen=kept | chosen)  # type: ignore[type-var]

    def pool_candidates(self) -> tuple[Self, ...]:
        """Return this kind with each pool to try, or alone where there is nothing to choose."""
        return tuple(self.bind_chosen(pool=pool) for pool in self.pools) if self.pooled and self.pools[1:] else (self,)

    def in_one_window(self) -> Self:
        """Return this kind for synthetic texts, which all fit."""
        return self.bind_chosen("stride", "pool")

    def overlap(self, max_length: int) -> int:
        """Return how many tokens two windows of that length share."""
        return int(self.chosen.get("stride", max_length // 3))

    def read_as(self, length: int, longest: int, *, taught: bool = False) -> tuple[int, int]:
        """Return how many token rows a row of texts of ``length`` tokens is, and the tokens of each, if the task
        takes ``longest``; ``taught``: while it is learnt from."""
        texts = self.texts_taught if taught else self.texts_answered
        if not self.windows or length <= longest:
            return texts, length
        return texts * (1 - (longest - length) // (longest - self.overlap(longest))), longest

    def synthetic_per_row(self, n: int) -> list[int] | None:
        """Divide ``n`` synthetic token rows among rows: two each, the last has the rest; None if each row is one."""
        if self.texts_taught < 2:
            return None
        return [2] * (n // 2 - 1) + [2 + n % 2] if n > 1 else [n]

    @classmethod
    def readable(cls, *, pairs: bool, text: str = "a") -> Any:
        """Return a synthetic row, as callers give it, whose long text is ``text``."""
        return (text, "a") if pairs else text

    @classmethod
    def example(cls, labels: Sequence[str] | None) -> tuple[str, tuple[str, ...] | None]:
        """Return a synthetic row's label, and all labels: ``labels`` if they are known."""
        known = tuple(labels or cls.sample_labels) if cls.has_labels else None
        return (known[0] if known and cls.one_label else cls.sample_label), known

    def token_rows(self, given: Any, where: str) -> list[tuple[str, str | None]]:
        """Divide a row, as ``Row.readable`` or a caller gives it, into texts and pairs, if it is ``several_texts``."""
        raise UsageError(f"{self.title} reads a row as one text or pair.")

    def read(self, rows: Sequence[Row]) -> tuple[list[Text], list[int] | None]:
        """Return all rows' token rows, and how many each row is; None if each is one."""
        if not self.several_texts:
            return [Text(row.sentence1, row.sentence2) for row in rows], None
        found = [self.token_rows(row.readable, row.where) for row in rows]
        return [Text(*text) for of_row in found for text in of_row], [*map(len, found)]

    def tokens(
        self, encoder: TextEncoder, texts: Sequence[Text], max_length: int, names: Sequence[str] = ()
    ) -> TokenBatch:
        """Tokenize texts, cut at the maximal length or in windows."""
        if not self.windows:
            return encoder.encode(texts, max_length)
        return encoder.windows(texts, max_length, self.overlap(max_length), names, second=self.passages)

    def grouping(self, tokens: TokenBatch, per_row: Sequence[int] | None) -> RowGrouping:
        """Say how token rows make rows of ``per_row`` texts."""
        if not self.windows:
            return RowGrouping(per_row=per_row)
        return RowGrouping(tokens.per_text, per_row, stitches=stitches_of(tokens) if self.stitches else None)

    def require_sound_windows(self) -> None:
        """Refuse what a card cannot say of windows."""
        stride, pool = self.chosen.get("stride", 1), self.chosen.get("pool", self.pools[0])
        if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
            raise ValueError(f"the stride of its windows is a whole number from 1; found {stride!r}")
        if self.windows and self.writes:
            raise ValueError("a task that writes text reads no windows")
        if pool not in self.pools or ("pool" in self.chosen and not self.pooled):
            raise ValueError(f"the pool of its windows is {pool!r}")

    @classmethod
    def resolve_long(cls, long: str | None, stride: int | None) -> str:
        """Return how long texts are read, ``cut`` or ``windows``, after a check of what is asked."""
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
