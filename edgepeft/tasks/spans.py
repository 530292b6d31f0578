"""Spans: the answer to a question as it stands in a passage (Rajpurkar et al., 2016), or that it does not (2018).

A head gives each token a logit to be the answer's start, and one to be its end.  A passage that is too long is read in
windows that overlap.  As in transformers' ``run_qa``, a window that does not hold all of the answer learns the first
token of its row as start and end, loss = mean of both cross entropies over the tokens that can be read, the mean over
windows.  The answer is the span of highest start + end in any window, of at most 30 tokens; there is none where the
least start + end at a window's first token is above that by more than a threshold, chosen on the evaluation rows.

A row's ``label`` is canonical JSON: a list of [start, text], empty where the passage has no answer.

Letters: W windows of a batch, B rows, n rows, K windows of the row that has most, S tokens.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TokenBatch
from edgepeft.common.errors import DataError
from edgepeft.data.columns import SENTENCES, quote
from edgepeft.data.pattern import UnreadableRow
from edgepeft.data.row_grouping import LOWEST, Asked, Passage, RowGrouping, passage_of, readable, wanted_of, windows_of
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._losses import Agreement, GraphWriter, LossGraph, Metric, Values, cross_entropy, log_softmax, mean
from edgepeft.tasks.base import TaskType
from edgepeft.tasks.text import exact_match, f1

_NONE, _WHOLE = -1.0, -2.0  # in place of a window: no answer, or all of the passage
_LONGEST = 30  # tokens of an answer: run_qa's
_FORMS = '{"text": ["1912"], "answer_start": [17]}, as SQuAD has them, empty lists where the passage has no answer'


@dataclass(frozen=True)
class SpansPrediction(Prediction):
    """The ``text`` that stands in the passage from ``start`` to before ``end``, in Python's characters; empty, without
    places, where there is no answer."""

    text: str = ""
    start: int | None = None
    end: int | None = None
    of_row: Any = field(default=None, compare=False, repr=False)  # (logits [K, S, 2], passage)

    @property
    def value(self) -> str:
        return self.text

    @property
    def facts(self) -> dict[str, Any]:
        there = self.start is not None
        places = {"start": self.start, "end": self.end} if there else {}
        return {"text": self.text, "answered": there, **places, "score": self.score}


@dataclass(frozen=True)
class Spans(TaskType):
    """Of ``chosen``, ``threshold`` is what the score of no answer must be above the best span's; without it every
    question has an answer."""

    name = "spans"
    title = "a search for answers in passages"
    answers = "span"
    default_metric = "f1"
    telling = ("f1", "exact_match")
    per_token = True
    several_texts = True
    passages = True
    chooses = True
    head = "tokens"
    model = "ForQuestionAnswering"
    possible = "what stands in each row's passage"
    sample_label = "[]"

    def __post_init__(self) -> None:
        threshold = self.chosen.get("threshold", 0.0)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not math.isfinite(threshold):
            raise ValueError(f"the threshold of no answer is a number; found {threshold!r}")

    @property
    def n_outputs(self) -> int:
        return 2

    @property
    def described(self) -> str:
        return "an answer, or none" if "threshold" in self.chosen else "an answer"

    # Rows.

    @classmethod
    def label_text(cls, value: Any, where: str) -> str:
        try:
            found = [(start, text) for start, text in _pairs(value)]
            if any(type(start) is not int or not isinstance(text, str) for start, text in found):
                raise TypeError
            return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, KeyError, ValueError):
            raise DataError(f"{where}: answers are {_FORMS}; found {quote(value)}.") from None

    def unknown_label(self, row: Row) -> str | None:
        """Refuse an answer that does not stand in the passage."""
        answers_of(row)
        return None

    def strata(self, rows: Sequence[Row]) -> list[str]:
        return ["some" if answers_of(row) else "none" for row in rows]

    def expected(self, row: Row) -> str:
        return right_texts(row)[0]

    def token_rows(self, given: Any, where: str) -> list[tuple[str, str | None]]:
        """Return question and passage, of which the passage is read in windows."""
        if isinstance(given, Mapping):
            first, second, _ = SENTENCES.names
            given = given.get(first, given.get("question")), given.get(second, given.get("context"))
        pair = given if isinstance(given, tuple | list) and len(given) == 2 else (given, None)
        for name, text in zip(("question", "passage"), pair, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise UnreadableRow(
                    f"{where}: no {name}. A row has two texts, the question and the passage, as sentence1 and "
                    "sentence2 or question and context; neither is empty."
                )
        return [(pair[0], pair[1])]

    @classmethod
    def readable(cls, *, pairs: bool, text: str = "a") -> Any:
        return ("a", text)

    def targets(self, rows: Sequence[Row]) -> Values:
        """Return [n] of ``Asked``, in no window."""
        return _asked(rows, (passage_of(row.sentence2 or "", ()) for row in rows))

    def targets_at_tokens(self, rows: Sequence[Row], tokens: TokenBatch) -> Values:
        """Return [n] of ``Asked``, with the first answer's first and last token in each window."""
        pairs = zip(rows, tokens.windows, strict=True)
        return _asked(rows, (passage_of(row.sentence2 or "", own) for row, own in pairs))

    def grouping(self, tokens: TokenBatch, per_row: Sequence[int] | None) -> RowGrouping:
        """Say which windows are a row's, and that the passage's tokens can be answers."""
        passages = [passage_of("", own) for own in tokens.windows]
        return RowGrouping(tokens.per_text, read=readable(passages, max(len(each.ids) for each in tokens.encodings)))

    def prediction_context(self, given: Sequence[Any], texts: Sequence[Text], tokens: TokenBatch) -> list[Passage]:
        return [passage_of(text.second or "", own) for text, own in zip(texts, tokens.windows, strict=True)]

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        return np.zeros((len(mask), 2), np.int64)

    # Losses.

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """Return losses of windows [W, S, 2], with targets [W, 2]; of rows [B, K, S, 2] the means over windows."""
        if targets.dtype == object:
            each = [self.losses(row[: len(t.wanted)], t.wanted).mean() for row, t in zip(logits, targets, strict=True)]
            return np.array(each)
        chosen = np.take_along_axis(log_softmax(logits, axis=1), targets[:, None], 1)[:, 0]
        return -chosen.mean(1)

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        return -logits.log_softmax(1).gather(1, targets.unsqueeze(1)).mean()

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Read (W, S, 2) and (W, 2)."""
        of_both = cross_entropy(graph, graph.op("Transpose", logits, perm=[0, 2, 1]), labels, 2)
        of_rows = graph.op("ReduceMean", of_both, graph.ints(-1), keepdims=0)
        return LossGraph(of_rows, integers=True, dims=("batch", 2))

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        counts = [1 + len(places) for target in targets for places in target.passage.places]
        return float(np.log(counts).mean())

    # Scores.

    def outputs(self, logits: NDArray[Any]) -> Values:
        """Search [B, K, S, 2] for window, first and last token, the span's score, and that of no answer, [B, 5]."""
        exact = logits.astype(np.float64)
        starts, ends, n_tokens = exact[..., 0], exact[..., 1], exact.shape[2]
        nothing = starts[:, :, 0] + ends[:, :, 0]
        nothing = np.where(nothing > LOWEST, nothing, np.inf).min(1)  # LOWEST twice: there is no such window
        found = np.tile([0.0, 0.0, 0.0, 2 * LOWEST], (len(exact), 1))
        for further in range(min(_LONGEST, n_tokens - 1)):
            scores = starts[:, :, 1 : n_tokens - further] + ends[:, :, 1 + further :]
            flat = scores.reshape(len(exact), -1)
            best = flat.argmax(1)
            window, first = np.divmod(best, scores.shape[2])
            value = flat[np.arange(len(flat)), best]
            better = value > found[:, 3]
            found[better] = np.stack([window, first + 1, first + 1 + further, value], 1)[better]
        return np.concatenate([found, nothing[:, None]], 1)

    def _given(self, target: Asked, output: Values) -> str:
        start, end = self._span(target.passage, output)
        return target.passage.text[start:end]

    def _span(self, passage: Passage, output: Values) -> tuple[int, int]:
        """Return where the answer stands; (0, 0) if there is none."""
        window, first, last, score, nothing = output.tolist()
        if window < 0:
            return 0, 0 if window == _NONE else len(passage.text)
        if score < LOWEST / 2 or nothing - score > self.chosen.get("threshold", math.inf):
            return 0, 0
        places, offsets = passage.places[int(window)], passage.offsets[int(window)]
        one, other = np.searchsorted(places, (int(first), int(last)))
        start, end = int(offsets[one][0]), int(offsets[other][1])
        text = passage.text[start:end]
        return start + len(text) - len(text.lstrip()), end - len(text) + len(text.rstrip())

    def with_chosen(self, targets: Values, outputs: Values) -> Self:
        """Choose the threshold of the highest F1, midway between two rows' differences, of several the lowest, if some
        rows have no answer."""
        bare = self.bind_chosen("threshold")
        if not any(target.answers == ("",) for target in targets):
            return bare
        if_none = np.array([float(target.answers == ("",)) for target in targets])
        apart, gains = outputs[:, 4] - outputs[:, 3], bare.each(targets, outputs) - if_none
        order = np.argsort(apart, kind="stable")
        ranked = apart[order]
        cuts = np.concatenate([[ranked[0] - 1], (ranked[:-1] + ranked[1:]) / 2, [ranked[-1] + 1]])
        totals = np.concatenate([[0.0], np.cumsum(gains[order])])
        between = np.concatenate([[True], ranked[1:] > ranked[:-1], [True]])
        return bare.bind_chosen(threshold=float(cuts[int(np.where(between, totals, -np.inf).argmax())]))

    def plain_answers(self, rows: Sequence[Row], targets: Values, outputs: Values) -> list[str]:
        return [self._given(*each) for each in zip(targets, outputs, strict=True)]

    def each(self, targets: Values, outputs: Values, metric: str = "f1") -> Values:
        """Score each row by the best of its right answers, [n]."""
        score, given = {"exact_match": exact_match, "f1": f1}[metric], map(self._given, targets, outputs)
        return np.array(
            [max(score(text, right) for right in t.answers) for t, text in zip(targets, given, strict=True)]
        )

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Return ``figures``: the metrics; if some rows have no answer, also of those and of the others alone."""
        none = np.array([target.answers == ("",) for target in targets])
        figures = {}
        for metric in self.metrics:
            each = self.each(targets, outputs, metric)
            figures[metric] = float(each.mean())
            if none.any() and not none.all():
                figures[f"has_answer_{metric}"] = float(each[~none].mean())
                figures[f"no_answer_{metric}"] = float(each[none].mean())
        return {"figures": figures}

    # Baselines.

    def majority(self, targets: Values) -> Values:
        """Return no answer, or the whole passage, by their F1."""
        kinds = [np.array([window, 0, 0, 0, 0]) for window in (_NONE, _WHOLE)]
        scores = [self.each(targets, np.tile(each, (len(targets), 1))).mean() for each in kinds]
        return kinds[int(np.argmax(scores))]

    def least_squares_targets(self, targets: Values) -> NDArray[np.float64]:
        """Return 1 at the start, and at the end, less their shares of a window's tokens: [tokens that are read, 2]."""
        found = []
        for places, wanted in windows_of(targets):
            at = np.concatenate([[0], places])[:, None] == wanted
            found.append(at - at.mean(0))
        return np.concatenate(found)

    def baseline_features(self, states: Sequence[Values], targets: Values) -> Values:
        """Read each window's first token and the passage's, [tokens that are read, d]."""
        windows = (window for row, target in zip(states, targets, strict=True) for window in row[: len(target.wanted)])
        read = zip(windows, windows_of(targets), strict=True)
        return np.concatenate([window[np.concatenate([[0], places])] for window, (places, _) in read])

    def logits_by_row(self, logits: Values, targets: Values) -> Values:
        """Spread [tokens that are read, 2] over windows, [n, K, S, 2]."""
        most = max(len(target.wanted) for target in targets)
        longest = 1 + max(int(places.max(initial=0)) for places, _ in windows_of(targets))
        found, done = np.full((len(targets), most, longest, 2), LOWEST), 0
        for row, target in zip(found, targets, strict=True):
            for window, places in zip(row, target.passage.places, strict=False):
                own = np.concatenate([[0], places])
                window[own] = logits[done : done + len(own)]
                done += len(own)
        return found

    # Answers of a deployed task.

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        """Answer [n, K, S, 2] and passages; the score is the product of start's and end's probabilities among the
        tokens of all windows, of no answer at the first token of the window that says so least."""
        rows = zip(logits, self.outputs(logits), read, notes, strict=True)
        return [self._predicted(task, *row) for row in rows]

    def _predicted(
        self, task: str, logits: NDArray[np.float32], output: Values, passage: Passage, note: str
    ) -> SpansPrediction:
        own = logits[: len(passage.places)].astype(np.float64)
        shares = np.exp(log_softmax(own, (0, 1)))
        start, end = self._span(passage, output)
        window, first, last = output[:3].astype(int)
        if start == end:
            window, first, last = int(own[:, 0].sum(-1).argmin()), 0, 0
        score = round(float(shares[window, first, 0] * shares[window, last, 1]), 6)
        places: dict[str, Any] = {"start": start, "end": end} if start < end else {}
        of_row = own.astype(np.float32), passage
        return SpansPrediction(task, None, score, {}, (), note, text=passage.text[start:end], of_row=of_row, **places)

    def logits_and_targets(self, answers: Sequence[Any], rows: Sequence[Row]) -> tuple[Values, Values]:
        """Return the rows' logits, [n, K, S, 2], and what is asked of them."""
        found = [answer.of_row for answer in answers]
        most, longest = (max(logits.shape[axis] for logits, _ in found) for axis in (0, 1))
        padded = np.full((len(found), most, longest, 2), LOWEST, np.float32)
        for row, (logits, _) in zip(padded, found, strict=True):
            row[: logits.shape[0], : logits.shape[1]] = logits
        return padded, _asked(rows, (passage for _, passage in found))

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """Return the share of windows' best starts and ends that are the same; a row is undecided if all its are."""
        one, other = (each.reshape(len(each), -1, *each.shape[-2:]).swapaxes(1, 2) for each in (reference, logits))
        return super().agreement(one, other, tolerance)  # of (n, S, K, 2)


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if value in (None, "", [], {}):
        return []
    if isinstance(value, str):  # a table's cell
        return _pairs(json.loads(value))
    if isinstance(value, Mapping):
        starts, texts = value["answer_start"], value["text"]
        if isinstance(texts, str):
            starts, texts = [starts], [texts]
        return list(zip(starts, texts, strict=True))
    return [(each["answer_start"], each["text"]) for each in value]


def answers_of(row: Row) -> list[tuple[int, str]]:
    """Return where each answer starts, and its text, after a check against the passage."""
    passage, found = row.sentence2 or "", [(start, text) for start, text in json.loads(row.label or "[]")]
    for name, text in (("question", row.sentence1), ("passage", passage)):
        if not text.strip():
            raise DataError(f"{row.where}: the {name} is empty; a row has a question and a passage to find it in.")
    for start, text in found:
        if not text.strip():
            raise DataError(
                f"{row.where}: an answer has no text; where the passage has none, answers is an empty list."
            )
        if start < 0 or start + len(text) > len(passage):
            wrong = "starts before it" if start < 0 else "ends beyond it"
            raise DataError(
                f"{row.where}: the answer {quote(text)} at {start} {wrong}: the passage has {len(passage)} characters "
                "(of Python: an emoji is one)."
            )
        if (there := passage[start : start + len(text)]) != text:
            at = passage.find(text)
            hint = f"it stands at {at}" if at >= 0 else "it stands nowhere in it"
            raise DataError(
                f"{row.where}: at {start} of the passage stands {quote(there)}, and not the answer {quote(text)}; "
                f"{hint}."
            )
    return found


def right_texts(row: Row) -> tuple[str, ...]:
    """Return what SQuAD's script compares with: answers that have a word, or the empty text."""
    texts = dict.fromkeys(text for _, text in json.loads(row.label or "[]") if not exact_match(text, ""))
    return tuple(texts) or ("",)


def _asked(rows: Sequence[Row], passages: Iterable[Passage]) -> Values:
    """Return what each row asks about its passage, [n] of ``Asked``."""
    pairs = zip(rows, passages, strict=True)
    found = (Asked(passage, right_texts(row), wanted_of(passage, answers_of(row))) for row, passage in pairs)
    return np.fromiter(found, object, len(rows))


Spans.metrics = {
    name: Metric(
        partial(Spans.each, metric=name),
        "mean over rows, each by its best right answer, as SQuAD's script has it",
        mean,
    )
    for name in ("f1", "exact_match")
}
