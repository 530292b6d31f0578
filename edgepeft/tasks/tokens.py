"""Tokens: a tag for each word of a text, by the cross entropy at its first piece (Devlin et al., 2019).

Tags tell entities as ``_tags`` says, spans of the text that have a type.  Scores are seqeval's, computed without it: an
entity is right where its type, its first and its last word are.  A word that is not read, past the longest text, is
outside of all entities: those that lie there are missed.

Targets are a row's tags [2, w], of each word the tag and the place of its first token in the row, NOWHERE where it has
none; in a batch [B, S], the tag at that place.  Outputs are the best tag of each token.

Letters: B rows of a batch, n rows, S tokens, w words of a row, C tags.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TokenBatch, cleaned
from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.messages import counted
from edgepeft.data.columns import NO_TARGET
from edgepeft.data.rows import Row
from edgepeft.data.words import NOWHERE, Read, Words, at_tokens, places_of, read_words, spread, words_of
from edgepeft.tasks import _tags
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._conformal import softmax
from edgepeft.tasks._losses import Agreement, GraphWriter, LossGraph, Values, cross_entropy, log_softmax, token_loss
from edgepeft.tasks.base import TaskType
from edgepeft.tasks.classification import check_names


class TokenSpan(NamedTuple):
    """``text`` stands from ``start`` to before ``end``, in Python's characters; ``score`` is its words' mean
    probability."""

    start: int
    end: int
    label: str
    text: str
    score: float


@dataclass(frozen=True)
class TokensPrediction(Prediction):
    """The ``spans`` of a text; ``tags`` of its words where these were given; ``unread`` is where the text was cut."""

    spans: tuple[TokenSpan, ...] = ()
    tags: tuple[str, ...] | None = None
    unread: int | None = None
    of_words: Any = field(default=None, compare=False, repr=False)  # (logits [w, C], whether each word was read)

    @property
    def value(self) -> list[str]:
        """Each span, as text and label."""
        return [f"{span.text} ({span.label})" for span in self.spans]

    @property
    def facts(self) -> dict[str, Any]:
        """The spans; ``tags`` of given words, and where a cut text was left."""
        found: dict[str, Any] = {"spans": [span._asdict() for span in self.spans]}
        found |= {} if self.tags is None else {"tags": list(self.tags)}
        return found | ({} if self.unread is None else {"unread": self.unread})


@dataclass(frozen=True)
class Tokens(TaskType):
    """loss = mean over the words of -log softmax(logits at the first piece)[tag]."""

    name = "tokens"
    title = "a tagging of words"
    answers = "spans"
    metrics = _tags.ENTITY_SCORES
    default_metric = "entity_f1"
    has_labels = True
    needs_names = True
    per_token = True
    head = "tokens"
    model = "ForTokenClassification"
    sample_label = '{"spans":[]}'
    sample_labels = ("B-X", "I-X", _tags.OUTSIDE)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(sorted({_tags.type_of(tag) for tag in self.labels or ()} - {""}))

    @property
    def described(self) -> str:
        return f"spans of {len(self.types)} types"

    # Rows.

    @classmethod
    def label_text(cls, value: Any, where: str) -> str:
        return _tags.tagged_label(value, where)

    @classmethod
    def labels_of(cls, rows: Sequence[Row]) -> tuple[str, ...]:
        """Return the tags of the rows' scheme; spans are tagged as BIO."""
        read, counts = [_tags.tagged_row(row) for row in rows], Counter[str]()
        for each in read:
            counts.update(each.tags(None))
        if not {*counts} - {_tags.OUTSIDE}:
            raise DataError(f"{rows[0].file}: no row has an entity: every word is O. Give rows with some too.")
        try:
            _tags.require_told(counts)
            tags = _tags.complete(counts)
        except ValueError as error:
            raise DataError(f"{rows[0].file}: {error}.") from error
        check_names(rows, [[entity.label for entity in each.found] for each in read])
        widened = [each.widened for each in read if each.widened]
        if widened:
            warnings.warn(
                f"{counted(len(widened), 'row has')} spans that end within a word, such as {widened[0]}; whole words "
                "are tagged.",
                stacklevel=2,
            )
        return tags

    @classmethod
    def check_labels(cls, labels: Sequence[str]) -> None:
        try:
            _tags.complete(labels)
        except ValueError as error:
            raise UsageError(f"the head's tags are {', '.join(labels)}, and {error}; name them: --labels.") from error

    def unknown_label(self, row: Row) -> str | None:
        """Return the first type of a span, or tag, that is none of these; a head trained elsewhere may lack some."""
        read, known = _tags.tagged_row(row), self.labels or ()
        odd = None if read.given else next((each.label for each in read.found if each.label not in self.types), None)
        return odd or next((tag for tag in read.tags(known) if tag not in known), None)

    def expected(self, row: Row) -> list[str]:
        return _in_words(row, _tags.tagged_row(row).found)

    def names_in(self, row: Row) -> list[str]:
        return [entity.label for entity in _tags.tagged_row(row).found]

    def targets(self, rows: Sequence[Row]) -> Values:
        """Return tags and places, [n] of [2, w], as if each word were a token."""
        return self._targets(rows, (np.arange(len(words_of(row.sentence1))) for row in rows))

    def targets_at_tokens(self, rows: Sequence[Row], tokens: TokenBatch) -> Values:
        pairs = zip(rows, tokens.of_texts, strict=True)
        return self._targets(rows, (places_of(words_of(row.sentence1), each) for row, each in pairs))

    def _targets(self, rows: Sequence[Row], places: Iterable[NDArray[np.int64]]) -> Values:
        index = {tag: i for i, tag in enumerate(self.labels or ())}
        tagged = ([index[tag] for tag in _tags.tagged_row(row).tags(self.labels)] for row in rows)
        return np.fromiter(map(np.stack, zip(tagged, places, strict=True)), object, len(rows))

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        """Return the tags in turn, as if each token were a word: [B, S]."""
        return np.where(mask > 0, np.arange(mask.shape[1]) % self.n_outputs, NO_TARGET)

    def prediction_context(self, given: Sequence[Any], texts: Sequence[Text], tokens: TokenBatch) -> list[Read]:
        return [read_words(text.first, encoding) for text, encoding in zip(texts, tokens.of_texts, strict=True)]

    # Losses.

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """Return the mean over each row's words that are read, of [B, S, C]."""
        at = at_tokens(targets, logits.shape[1]) if targets.dtype == object else targets
        known = at >= 0
        each = np.take_along_axis(log_softmax(logits), np.where(known, at, 0)[..., None], -1)[..., 0]
        return -np.where(known, each, 0.0).sum(1) / np.maximum(known.sum(1), 1)

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        """Return the mean over all rows' words, of [B, S, C] and [B, S]."""
        return token_loss(logits, targets)

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Read packed tokens, (T, C) and (T)."""
        return LossGraph(cross_entropy(graph, logits, labels, 1), integers=True, dims=("tokens",))

    def terms(self, targets: Values) -> Values:
        return (targets >= 0).sum(1)

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        return math.log(self.n_outputs)

    # Scores.

    def outputs(self, logits: NDArray[Any]) -> Values:
        """Return each row's best tags, [B] of [S]."""
        return np.fromiter(logits.argmax(-1), object, len(logits))

    def _given(self, target: Values, output: Any) -> list[str]:
        """Return the tags given to a row's words; ``output`` may be one tag for all."""
        names, places = self.labels or (), target[1]
        best = np.full(len(places), output) if np.ndim(output) == 0 else np.append(output, 0)[places]
        return [_tags.OUTSIDE if place == NOWHERE else names[i] for i, place in zip(best, places, strict=True)]

    def both(self, targets: Values, outputs: Values) -> list[tuple[list[str], list[str]]]:
        """Return the right tags of each row's words, and the given ones."""
        names = self.labels or ()
        return [([names[i] for i in t[0]], self._given(t, output)) for t, output in zip(targets, outputs, strict=True)]

    def plain_answers(self, rows: Sequence[Row], targets: Values, outputs: Values) -> list[list[str]]:
        given = (self._given(target, output) for target, output in zip(targets, outputs, strict=True))
        return [_in_words(row, _tags.entities(tags)) for row, tags in zip(rows, given, strict=True)]

    def row_errors(self, targets: Values, outputs: Values) -> Values:
        """Return 1 less each row's own F1, which is 1 if there is no entity and none is found."""
        sets = [({*_tags.entities(has)}, {*_tags.entities(given)}) for has, given in self.both(targets, outputs)]
        return np.array([1 - (2 * len(a & b) / (len(a) + len(b)) if a or b else 1.0) for a, b in sets])

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Return ``by_class`` and ``macro``, each type for itself; ``figures``: every metric, and entities not read."""
        from edgepeft.data.by_class import by_class

        columns = _tags.entity_counts(self, targets, outputs).sum(0).tolist()
        figures = {name: self.score(name, targets, outputs) for name in self.metrics}
        unread = sum(
            any(target[1][i] == NOWHERE for i in range(first, last + 1))
            for target in targets
            for _, first, last in _tags.entities([(self.labels or ())[i] for i in target[0]])
        )
        more = {"entities_not_read": float(unread)} if unread else {}
        return {**by_class(self.types, *columns), "figures": {**figures, **more}}

    # Baselines.

    def majority(self, targets: Values) -> Values:
        return np.asarray(np.bincount(np.concatenate([target[0] for target in targets])).argmax())

    def least_squares_targets(self, targets: Values) -> NDArray[np.float64]:
        """Return 1 in the tag's column, [words that are read, C]."""
        tagged = np.concatenate([tags[places != NOWHERE] for tags, places in targets])
        return np.eye(self.n_outputs)[tagged]

    def baseline_features(self, states: Sequence[Values], targets: Values) -> Values:
        """Read words at their first pieces, [words that are read, d]."""
        return np.concatenate([s[places[places != NOWHERE]] for s, (_, places) in zip(states, targets, strict=True)])

    def logits_by_row(self, logits: Values, targets: Values) -> Values:
        """Spread [words that are read, C] over their tokens, [n, S, C]."""
        return spread(logits, [places for _, places in targets])

    # Answers of a deployed task.

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Read] = ()) -> list[Prediction]:
        """Answer entities as spans of characters; probabilities are the softmax at a word's first piece."""
        return [self._predicted(task, *of_row) for of_row in zip(logits, read, notes, strict=True)]

    def _predicted(self, task: str, logits: NDArray[np.float32], read: Read, note: str) -> TokensPrediction:
        names, known = self.labels or (), read.places != NOWHERE
        of_words = np.where(known[:, None], logits[read.places], 0.0).astype(np.float64)
        best = softmax(of_words).max(-1)
        tags = [names[i] if ok else _tags.OUTSIDE for i, ok in zip(of_words.argmax(-1), known, strict=True)]
        spans = []
        for label, first, last in _tags.entities(tags):
            start, end = read.words[first][0], read.words[last][1]
            score = round(float(best[first : last + 1].mean()), 6)
            spans.append(TokenSpan(start, end, label, cleaned(read.text[start:end]), score))
        after = int(np.flatnonzero(known).max(initial=-1)) + 1
        unread = read.words[after][0] if read.cut and after < len(read.words) else None
        given = tuple(tags) if isinstance(read.text, Words) else None
        least = min((span.score for span in spans), default=0.0)
        more: dict[str, Any] = {"tags": given, "unread": unread, "of_words": (of_words, known)}
        return TokensPrediction(task, None, least, {}, (), note, spans=tuple(spans), **more)

    def logits_and_targets(self, answers: Sequence[Any], rows: Sequence[Row]) -> tuple[Values, Values]:
        """Return the logits of the rows' words, [n, w, C], and their tags."""
        of_words, targets = [answer.of_words for answer in answers], self.targets(rows)
        logits = np.zeros((len(rows), max(len(known) for _, known in of_words), self.n_outputs), np.float32)
        for row, target, (found, known) in zip(logits, targets, of_words, strict=True):
            row[: len(found)] = found
            target[1][~known] = NOWHERE
        return logits, targets

    def agreement(self, reference: NDArray[Any], logits: NDArray[Any], tolerance: float | None) -> Agreement:
        """Return the mean share of a row's tokens that have the same best tag, of [n, S, C]; a row is undecided if all
        of its tokens are.  Padding, 0 throughout, is."""
        decided = Agreement.decided(reference, tolerance, axis=-1)
        same = decided & (reference.argmax(-1) == logits.argmax(-1))
        counts = decided.sum(1)
        shares = same.sum(1)[counts > 0] / counts[counts > 0]
        return Agreement(float(shares.mean()) if len(shares) else 1.0, int((counts == 0).sum()))


def _in_words(row: Row, found: Sequence[_tags.Entity]) -> list[str]:
    words = words_of(row.sentence1)
    return [f"{row.sentence1[words[first][0] : words[last][1]]} ({label})" for label, first, last in found]
