"""Choice of one of a row's candidates, whose number may differ by row: one score for each, a softmax over a row's.

As transformers' ``ForMultipleChoice`` (and Radford et al., 2018, section 3.3), each candidate is read with the row's
text as a pair; a second text is the beginning of every candidate, as SWAG's.  The right one is its text, or its index
from 0.  Where several may be right, as MultiRC's answers, each is a row of its own: a classification of pairs.

Letters: B rows of a batch, n rows, K candidates of the row that has most.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TokenBatch
from edgepeft.common.errors import DataError
from edgepeft.data.columns import CANDIDATES, SENTENCES, candidates_in, label_text, quote
from edgepeft.data.pattern import UnreadableRow
from edgepeft.data.row_grouping import LOWEST, grouped, places_of
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._losses import Agreement, GraphWriter, LossGraph, Metric, Values, cross_entropy, log_softmax, mean
from edgepeft.tasks.base import TaskType


@dataclass(frozen=True)
class ChoicePrediction(Prediction):
    """The candidate that is picked, as ``label``, and its ``index``; the probability of each, in their order."""

    index: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        return {"label": self.label, "index": self.index} | super().facts


@dataclass(frozen=True)
class Choice(TaskType):
    """loss = -log softmax(logits of a row's candidates)[right]; targets are int64 [n, 2]: the index, and how many."""

    name = "choice"
    title = "a choice among candidates"
    answers = "candidate"
    default_metric = "accuracy"
    calibrates = True
    model = "ForMultipleChoice"
    picks = True
    several_texts = True
    texts_answered = 2  # as COPA's rows have
    texts_taught = 2
    possible = "each row's candidates"

    @classmethod
    def label_text(cls, value: Any, where: str) -> str:
        """Return the index, or a text that may be either the candidate or its index, as JSON."""
        label = label_text(value, where)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        index = isinstance(value, int) and not isinstance(value, bool)
        return json.dumps(value if index else label, ensure_ascii=False)

    def expected(self, row: Row) -> str:
        """Return the right candidate; refuse a label that is none of the row's own."""
        return row.candidates[_right(row)]

    def targets(self, rows: Sequence[Row]) -> Values:
        return np.array([(_right(row), len(row.candidates)) for row in rows], np.int64)

    def token_rows(self, given: Any, where: str) -> list[tuple[str, str | None]]:
        text, begin, candidates = _parts(given, where)
        return [(text, f"{begin} {candidate}" if begin else candidate) for candidate in candidates]

    def prediction_context(
        self, given: Sequence[Any], texts: Sequence[Text], tokens: TokenBatch
    ) -> list[tuple[str, ...]]:
        return [_parts(row, f"row {i}")[2] for i, row in enumerate(given)]

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        return np.array([(0, n) for n in self.synthetic_per_row(len(mask)) or ()], np.int64)

    @classmethod
    def readable(cls, *, pairs: bool, text: str = "a") -> Any:
        return {SENTENCES.names[0]: text, CANDIDATES: ("a", "b")}

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """Return the cross entropies over a row's candidates, of [B, K, 1]."""
        return -log_softmax(logits[..., 0])[np.arange(len(targets)), targets[:, 0]]

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        return -logits.squeeze(-1).log_softmax(-1).gather(-1, targets[:, :1]).mean()

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Read (B, K, 1) and (B, 2)."""
        scores = graph.op("Squeeze", logits, graph.ints(-1))
        right = graph.op("Gather", labels, graph.number(0), axis=1)
        return LossGraph(cross_entropy(graph, scores, right, 1), integers=True, dims=("batch", 2))

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        return float(np.log(targets[:, 1]).mean())

    def outputs(self, logits: NDArray[Any]) -> Values:
        return logits[..., 0].argmax(1)

    def plain_answers(self, rows: Sequence[Row], targets: Values, outputs: Values) -> list[Any]:
        return [row.candidates[i] for row, i in zip(rows, outputs, strict=True)]

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Return ``figures``: the accuracy, and the mean accuracy of picking by chance."""
        chance = float((1 / np.asarray(targets)[:, 1]).mean())
        return {"figures": {"accuracy": self.score("accuracy", targets, outputs), "chance": chance}}

    def majority(self, targets: Values) -> Values:
        return np.asarray(np.bincount(targets[:, 0]).argmax())

    def least_squares_targets(self, targets: Values) -> NDArray[np.float64]:
        """Return what the right candidate has above its row's mean, [token rows, 1]: no head tells rows apart."""
        each = [(np.arange(n) == right) - 1 / n for right, n in targets]
        return np.concatenate(each)[:, None]

    def baseline_features(self, states: Sequence[Values], targets: Values) -> Values:
        """Read each token row, [token rows, d]."""
        return np.concatenate(states)

    def logits_by_row(self, logits: Values, targets: Values) -> Values:
        """Group [token rows, 1] by row, [n, K, 1]."""
        return grouped(logits, places_of(targets[:, 1]))

    def right_of(self, targets: Values, logits: Values) -> tuple[Values, Values]:
        """Return the right candidate's index, and the candidates' logits [n, K]."""
        return targets[:, 0], logits[..., 0]

    def logits_and_targets(self, answers: Sequence[Any], rows: Sequence[Row]) -> tuple[Values, Values]:
        """Return the logits of the rows' candidates, [n, K, 1], and which is right."""
        targets, flat = self.targets(rows), [logit for answer in answers for logit in answer.logits]
        return self.logits_by_row(np.array(flat, np.float32)[:, None], targets), targets

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        """Answer the best candidate; probabilities are the softmax over its row's, at the temperature.  Candidates
        that are not ``read`` are called by their indices."""
        answers: list[Prediction] = []
        indices = ([*map(str, range(n))] for n in (logits[..., 0] > LOWEST).sum(1))
        for candidates, row, note in zip(read or indices, logits[..., 0], notes, strict=True):
            own = row[: len(candidates)]
            shares = self.shares(own[None])
            scores = {text: round(float(p), 6) for text, p in zip(candidates, shares[0], strict=True)}
            index, (unsure,) = int(own.argmax()), self.unsure(shares)
            best, raw = candidates[index], tuple(map(float, own))
            answers.append(ChoicePrediction(task, best, scores[best], scores, raw, note, index=index, unsure=unsure))
        return answers

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """Compare which candidate is best.  Of a check file's token rows, [n, 1], each two in turn stand for a row."""
        if reference.ndim == 2:
            reference, logits = (each[: len(each) // 2 * 2].reshape(-1, 2, 1) for each in (reference, logits))
        return super().agreement(reference[..., 0], logits[..., 0], tolerance)


def _right(row: Row) -> int:
    """Return the index of the right candidate."""
    candidates = row.candidates
    if not candidates:
        raise _no_candidates(row.where)
    label = json.loads(row.label or "null")
    texts = [candidate.strip() for candidate in candidates]
    if isinstance(label, str) and label in texts:
        return texts.index(label)
    index = int(label) if isinstance(label, int) or re.fullmatch(r"[0-9]{1,9}", str(label), re.ASCII) else -1
    if 0 <= index < len(candidates):
        return index
    n, listed = len(candidates), quote(candidates)
    raise DataError(
        f"{row.where}: the label {quote(label)} is none of the row's {n} candidates, {listed}; it is the text of one, "
        f"or its index: 0 to {n - 1}."
    )


def _parts(given: Any, where: str) -> tuple[str, str, tuple[str, ...]]:
    """Return a row's text, the beginning of its candidates, and these."""
    first, second, _ = SENTENCES.names
    if not isinstance(given, Mapping) or not (candidates := candidates_in(given, where)):
        raise _no_candidates(where)
    text, begin = given.get(first), given.get(second) or ""
    if not isinstance(text, str) or not isinstance(begin, str):
        name, part = (second, begin) if isinstance(text, str) else (first, text)
        raise UnreadableRow(f"{where}: {name} must be a text; found {quote(part)}.")
    return text, begin, candidates


def _no_candidates(where: str) -> UnreadableRow:
    return UnreadableRow(
        f"{where}: no candidates to pick from. A row has a list of texts, two or more, as {CANDIDATES!r}, or columns "
        "choice1, choice2 and so on."
    )


Choice.metrics = {
    "accuracy": Metric(
        lambda _, right, picked: right[:, 0] == picked, "share of rows whose right candidate is picked", mean
    )
}
