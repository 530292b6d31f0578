"""Embedding: a vector for each text, trained on pairs of texts so that those that belong together are near.

Pairs with a number, as STS-B's, are put in its order (CoSENT) and scored by correlations of cosine and number; those
without are told from all other rows' second texts (in-batch negatives) and scored by recall@k: how often a row's own
second text is among the k nearest of all rows' second texts.  Both losses are sentence-transformers'.

CoSENT (Su, 2022, "CoSENT"; ``CoSENTLoss``), of pairs with a number y, c their cosine and s = 20:

    L = log(1 + sum over i, j with y_i < y_j of exp(s (c_i - c_j)))

In-batch negatives (Henderson et al., 2017, arXiv:1705.00652; ``MultipleNegativesRankingLoss``), where every other row's
second text, and every row's further ones, are wrong answers to a row's first:

    L = mean over i of -log softmax over j of (s cos(a_i, b_j)) [j = i]

A row of data is two token rows, each text for itself; a deployed task reads a single text.  The rival is what the bare
backbone gives, pooled alike.

Letters: B rows of a batch, n rows, K texts of a row, M = B (K - 1) candidates, d dims.
"""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.columns import SENTENCES, number_of
from edgepeft.data.row_grouping import LOWEST
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction, VectorPrediction
from edgepeft.tasks._losses import Agreement, GraphWriter, LossGraph, Metric, Values, log_softmax, mean
from edgepeft.tasks.base import TaskType
from edgepeft.tasks.regression import CORRELATIONS, ranks

_NEAR = 0.95  # the cosine of a vector and its reference above which 8-bit weights have not changed what it says
_BATCH = 16  # rows of a batch that knows nothing
SCALE = 20.0  # of a cosine; sentence-transformers' for both losses
_BLOCK = 1024  # rows whose pairs with all others are computed at once


@dataclass(frozen=True)
class Embedding(TaskType):
    """Targets are float32 [n], NaN where a pair has no number.

    Of ``chosen``, ``dims`` are the columns of a vector, and ``scored`` says whether the pairs that trained it have
    numbers.
    """

    name = "embedding"
    title = "an embedding"
    answers = "vector"
    default_metric = "spearman"
    compared = "values"
    head = "vector"
    model = "Model"
    several_texts = True
    whole_batch = True
    optional_labels = True
    gives_vectors = True
    texts_taught = 2
    pools = ("direction",)

    def __post_init__(self) -> None:
        dims, scored = self.chosen.get("dims", 1), self.chosen.get("scored", True)
        if not isinstance(dims, int) or isinstance(dims, bool) or dims < 1 or not isinstance(scored, bool):
            raise ValueError(
                "an embedding has a whole number of dims, and was trained on pairs with numbers or without"
            )

    @classmethod
    def initial_choices(cls, hidden_size: int) -> Mapping[str, Any]:
        return {"dims": hidden_size}

    def bind_rows(self, rows: Sequence[Row]) -> Self:
        return self.bind_chosen(scored=rows[0].label is not None)

    @property
    def n_outputs(self) -> int:
        return int(self.chosen.get("dims", 1))

    @property
    def scored(self) -> bool:
        """True if pairs have numbers."""
        return bool(self.chosen.get("scored", True))

    @property
    def described(self) -> str:
        return f"vectors of {self.n_outputs}"

    @property
    def listed(self) -> str:
        return "pairs with numbers" if self.scored else "pairs that belong together"

    @classmethod
    def labels_of(cls, rows: Sequence[Row]) -> None:
        """Refuse rows that teach nothing, and warn of second texts that stand twice; there are no labels."""
        known = cls().bind_rows(rows)
        for row in rows:
            known.unknown_label(row)
        if len(rows) < 2:
            raise DataError(
                f"{rows[0].where} is the only pair that trains; pairs are learnt from each other: give more."
            )
        if known.scored:
            if len({known.expected(row) for row in rows}) < 2:
                raise DataError(
                    f"{rows[0].where}: its number is {rows[0].label}, and every row has the same: no order to learn."
                )
            return
        counts = Counter(row.sentence2 for row in rows)
        twice = [row for row in rows if counts[row.sentence2] > 1]
        if twice:
            warnings.warn(
                f"{twice[0].where}: the second text {twice[0].sentence2!r:.60} is that of {counts[twice[0].sentence2]} "
                f"rows; {len(twice)} rows share theirs with another. In one batch each is taken for a wrong answer to "
                "the other's first text; give each second text once.",
                UserWarning,
                stacklevel=2,
            )

    def check_batch(self, batch_size: int, rows: Sequence[Row]) -> None:
        if batch_size < 2:
            raise UsageError(
                f"--batch-size {batch_size}: {rows[0].where}, as every pair, would be alone in its batch, and pairs "
                "are learnt from each other; give at least 2."
            )

    def token_rows(self, given: Any, where: str) -> list[tuple[str, str | None]]:
        first, second = given if isinstance(given, tuple | list) and len(given) == 2 else (given, None)
        if isinstance(given, Mapping):
            first, second = (given.get(name) for name in SENTENCES.names[:2])
        if not isinstance(first, str) or not isinstance(second, str | None):
            raise DataError(f"{where}: a text, or a pair of texts (first, second), is needed; found {given!r:.60}.")
        return [(text, None) for text in (first, second) if text is not None]

    def unknown_label(self, row: Row) -> str | None:
        """Refuse what is no pair of texts, or has a number where those before have none."""
        if row.sentence2 is None:
            raise DataError(f"{row.where}: no second text; an embedding learns from pairs (sentence1, sentence2).")
        for which, text in (("first", row.sentence1), ("second", row.sentence2)):
            if not text.strip():
                raise DataError(f"{row.where}: the {which} text is empty; correct or remove the row.")
        if (row.label is not None) != self.scored:
            forms = ("a number", "none") if row.label is not None else ("no number", "one")
            raise DataError(f"{row.where}: the pair has {forms[0]}, and the rows that train have {forms[1]}.")
        if self.scored:
            self._number(row)
        return None

    def _number(self, row: Row) -> float:
        if (number := number_of(row.label)) is None:
            raise DataError(
                f"{row.where}: a pair's label is a finite number, how near its texts are; found {row.label!r}."
            )
        return number

    def expected(self, row: Row) -> float | str:
        """Return the number, or the text that is to be found."""
        return self._number(row) if self.scored else row.sentence2 or ""

    def targets(self, rows: Sequence[Row]) -> Values:
        return np.array([self._number(row) if row.label is not None else math.nan for row in rows], np.float32)

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        return np.arange(len(self.synthetic_per_row(len(mask)) or ()), dtype=np.float32)

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """Return losses [B] of [B, K, d] and [B]; their mean is the loss of all of them together."""
        return row_losses(logits, None if _unscored(targets) else targets)

    def slopes(self, logits: NDArray[np.float32], targets: Values) -> tuple[float, NDArray[np.float64]]:
        return negatives(logits) if _unscored(targets) else cosent(logits, targets)

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        units = logits / logits.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        if targets.isnan().all():
            others = units[:, 1:].transpose(0, 1).flatten(0, 1)
            return -(SCALE * units[:, 0] @ others.T).log_softmax(-1).diagonal().mean()
        found = SCALE * (units[:, 0] * units[:, 1]).sum(-1)
        wrong = (found[:, None] - found).masked_fill(targets[:, None] >= targets, -1e12).flatten().logsumexp(0)
        return wrong.clamp(min=0) + (-wrong.abs()).exp().log1p()

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Sum [B, K, d] times its ``slopes``."""
        of_rows = graph.op("ReduceSum", graph.op("Mul", logits, labels), graph.ints(1, 2), keepdims=0)
        return LossGraph(of_rows, integers=False, dims=("batch", "most", self.n_outputs))

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        """Return the loss of a batch whose vectors are all alike."""
        n = min(_BATCH, len(targets))
        return math.log(n) if _unscored(targets) else math.log1p(n * (n - 1) / 2)

    def metric_or_default(self, metric: str | None) -> str:
        """Return a metric of these pairs: a correlation, or how often the right text is among the nearest."""
        found = super().metric_or_default(metric or (None if self.scored else "recall@1"))
        if (found in CORRELATIONS) != self.scored:
            has = "numbers, so theirs is a correlation" if self.scored else "no numbers, so theirs is a recall"
            raise UsageError(f"{found}: these pairs have {has}: {', '.join(self._figures)}.")
        return found

    @property
    def _figures(self) -> list[str]:
        return [name for name in self.metrics if (name in CORRELATIONS) == self.scored]

    def fitting(self, targets: Any) -> tuple[str, ...]:
        return ("spearman",) if self.scored else ("recall@1", "recall@5", "recall@10")

    def resampled(self, outputs: Values) -> Values:
        """Return pairs' cosines, which correlations are made of."""
        return cosines(outputs) if self.scored else outputs

    def plain(self, outputs: Values) -> list[float]:
        """Return each pair's cosine, or how many texts are at least as near as the right one."""
        found = np.round(cosines(outputs), 6) if self.scored else ranks_of_right(outputs)
        return [float(value) for value in found]

    def row_errors(self, targets: Values, outputs: Values) -> Values:
        """Return how far a pair's cosine is from its number's place, or the right text from the first."""
        if _unscored(targets):
            return ranks_of_right(outputs)
        return np.abs(ranks(cosines(outputs)) - ranks(targets))

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        return {"figures": {name: self.score(name, targets, outputs) for name in self._figures}}

    def baseline_outputs(self, states: Values) -> Values:
        return unit(states).astype(np.float32)

    def logits_and_targets(self, answers: Sequence[Any], rows: Sequence[Row]) -> tuple[Values, Values]:
        """Return the vectors of the rows' texts, [n, 2, d], and the numbers."""
        found = np.array([answer.logits for answer in answers], np.float32)
        return found.reshape(len(rows), -1, self.n_outputs), self.targets(rows)

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        """Answer the vectors: one of a text, two of a pair, which is two token rows."""
        rows = logits.reshape(len(logits), -1, self.n_outputs)
        own = [row[row[:, 0] > LOWEST].ravel() for row in rows]  # a text alone has no second vector beside pairs
        return [
            VectorPrediction(task, None, 0.0, {}, tuple(map(float, row)), note, dims=self.n_outputs)
            for row, note in zip(own, notes, strict=True)
        ]

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """Agree within the tolerance.  Without one, a vector has changed whose cosine with its reference is below
        0.95."""
        if tolerance is not None:
            return Agreement(1.0, 0)
        near = (unit(reference) * unit(logits)).sum(-1) >= _NEAR
        return Agreement(float(near.mean()), 0)


def _unscored(targets: Values) -> bool:
    return bool(np.isnan(targets).any())


def unit(vectors: Values) -> Values:
    """Scale [..., d] to length 1, in float64; zeros stay zeros."""
    exact = vectors.astype(np.float64)
    return exact / np.maximum(_lengths(exact), 1e-12)


def cosines(vectors: Values) -> Values:
    """Return the cosine of each row's first two vectors, [n, K, d] -> [n]."""
    first, second = unit(vectors[:, 0]), unit(vectors[:, 1])
    return (first * second).sum(-1)


def cosent(vectors: Values, numbers: Values) -> tuple[float, Values]:
    """Return the loss of [B, 2, d] and [B], and its derivatives [B, 2, d]."""
    units, found = unit(vectors[:, :2]), cosines(vectors)
    terms = np.exp(SCALE * (found[:, None] - found)) * (numbers[:, None] < numbers)
    total = 1 + terms.sum()
    slopes = SCALE * (terms.sum(1) - terms.sum(0)) / total  # by the cosines
    back = np.zeros(vectors.shape)
    back[:, :2] = _back(slopes[:, None, None] * units[:, ::-1], units, vectors[:, :2])
    return float(np.log(total)), back


def negatives(vectors: Values) -> tuple[float, Values]:
    """Return the loss of [B, K, d], and its derivatives [B, K, d]."""
    units = unit(vectors)
    firsts, others = units[:, 0], _candidates(units)
    logarithms = log_softmax(SCALE * firsts @ others.T)
    shares = np.exp(logarithms)
    shares[np.arange(len(units)), np.arange(len(units))] -= 1
    shares *= SCALE / len(units)  # by the cosines [B, M]
    slopes = np.empty_like(units)
    slopes[:, 0] = shares @ others
    slopes[:, 1:] = (shares.T @ firsts).reshape(units.shape[1] - 1, len(units), -1).swapaxes(0, 1)
    return -float(logarithms.diagonal().mean()), _back(slopes, units, vectors)


def row_losses(vectors: Values, numbers: Values | None) -> Values:
    """Return n times each row's part of the loss of all of them together, [n]: their mean is the loss."""
    if numbers is None:
        return np.concatenate([losses for _, losses in _blocks(vectors)])
    found, parts = cosines(vectors), np.zeros(len(vectors))
    for start in range(0, len(found), _BLOCK):
        some = slice(start, start + _BLOCK)
        terms = np.exp(SCALE * (found[some, None] - found)) * (numbers[some, None] < numbers)
        parts[some] += terms.sum(1) / 2
        parts += terms.sum(0) / 2
    total = parts.sum()
    shares: Values = parts / max(float(total), 1e-300)
    return len(parts) * float(np.log1p(total)) * shares


def ranks_of_right(vectors: Values) -> Values:
    """Rank each row's second text among those of all rows by nearness to its first, [n] from 1; of equally near ones
    the earlier row's comes first."""
    return np.concatenate([ranks for ranks, _ in _blocks(vectors)])


def _blocks(vectors: Values) -> Any:
    """Yield ranks and losses [rows of a block], of in-batch negatives with all rows as the batch."""
    units = unit(vectors)
    others, n = _candidates(units), len(units)
    for start in range(0, n, _BLOCK):
        right = np.arange(start, min(start + _BLOCK, n))
        near = units[right, 0] @ others.T
        own = near[np.arange(len(right)), right][:, None]
        before = (near[:, :n] > own) | ((near[:, :n] == own) & (np.arange(n) < right[:, None]))
        yield 1 + before.sum(1), -log_softmax(SCALE * near)[np.arange(len(right)), right]


def _candidates(units: Values) -> Values:
    """List all second texts, then all third ones, and so on: [B, K, d] -> [M, d]."""
    return units[:, 1:].swapaxes(0, 1).reshape(-1, units.shape[-1])


def _back(slopes: Values, units: Values, vectors: Values) -> Values:
    """Turn slopes by ``units`` into those by vectors [..., d]: what points along a vector changes no cosine."""
    across: Values = slopes - (slopes * units).sum(-1, keepdims=True) * units
    return across / np.maximum(_lengths(vectors.astype(np.float64)), 1e-12)


def _lengths(vectors: Values) -> Values:
    return np.linalg.norm(vectors, axis=-1, keepdims=True)


def _correlation(name: str, kind: Embedding, targets: Values, outputs: Values) -> float:
    return CORRELATIONS[name].function(kind, targets, cosines(outputs) if outputs.ndim > 1 else outputs)


Embedding.metrics = {
    name: Metric(partial(_correlation, name), "of cosine and number, over all pairs")
    for name in ("spearman", "pearson", "pearson_spearman")
} | {
    f"recall@{k}": Metric(
        lambda _, __, outputs, k=k: ranks_of_right(outputs) <= k,  # type: ignore[misc]
        f"share of rows whose second text is among the {k} nearest of all rows'",
        mean,
    )
    for k in (1, 5, 10)
}
