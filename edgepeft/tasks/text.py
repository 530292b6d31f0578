"""Text: words that the model's own decoder writes, by the cross entropy of their tokens (Raffel et al., 2020).

The head stands in ``heads.text``, training in ``training.text_engine``, writing in ``runtime.generation``, the
check in ``deploy.verify``.

Metrics are higher the better, 1 at best; a row counts by the best of its references.  exact_match and f1 are SQuAD's
(Rajpurkar et al., 2016): letters are lowered, punctuation and articles left out; f1 is of the words that answer and
reference have in common.  rouge_1 and rouge_2 are the F1 of the words and pairs of words in common, rouge_l that of the
longest common subsequence of words (Lin, 2004); bleu is the corpus' BLEU (Papineni et al., 2002), chrf its F2 of 1 to 6
characters (Popovic, 2015), both by sacrebleu, imported when used.

Letters: B rows, T tokens of the longest target, v vocabulary.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import UsageError, requiring
from edgepeft.data.columns import NO_TARGET
from edgepeft.data.rows import Row
from edgepeft.tasks._answers import Prediction
from edgepeft.tasks._losses import GraphWriter, LossGraph, Metric, Values, cross_entropy, mean, token_loss
from edgepeft.tasks.base import TaskType

References = Sequence[Sequence[str]]  # of each row, one or more


@dataclass(frozen=True)
class TextGeneration(TaskType):
    """loss = mean over the tokens of -log softmax(logits)[token]; targets are tokens [B, T], NO_TARGET past their ends.

    To be scored, targets are the references of each row, and outputs are texts.
    """

    name = "text"
    title = "text"
    answers = "text"
    default_metric = "f1"
    has_baselines = False  # neither a most frequent text nor a linear head on hidden states is a rival
    writes = True
    head = "text"
    possible = "text"
    sample_label = "a"

    @classmethod
    def is_of(cls, labels: Sequence[str] | None, head_reads: str) -> bool:
        return head_reads == "text"

    def targets(self, rows: Sequence[Row]) -> NoReturn:
        """Refuse: tokens take an encoder, so ``data.batches`` makes them."""
        raise UsageError("rows whose answer is text are encoded together with it.")

    def synthetic_targets(self, mask: NDArray[np.int64]) -> Values:
        """Return as many tokens as the row reads: words of any tokenizer, the second and third of a T5's."""
        return np.where(mask > 0, 3 + np.arange(mask.shape[1]) % 2, NO_TARGET)

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """Return the mean over each row's tokens, of [B, T, v] and [B, T]; in float64 row by row, for v is large."""
        losses = np.empty(len(targets))
        for i, (of_row, tokens) in enumerate(zip(logits, targets, strict=True)):
            known = np.flatnonzero(tokens >= 0)
            exact = of_row[known].astype(np.float64)
            exact -= exact.max(-1, keepdims=True)
            each = exact[np.arange(len(known)), tokens[known]]
            losses[i] = (np.log(np.exp(exact, out=exact).sum(-1)) - each).mean()
        return losses

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        return token_loss(logits, targets)

    def loss_graph(self, graph: GraphWriter, logits: str, labels: str) -> LossGraph:
        """Read (B, T, v) and (B, T); NO_TARGET is no column."""
        of_rows = graph.op("ReduceSum", cross_entropy(graph, logits, labels, 2), graph.ints(-1), keepdims=0)
        return LossGraph(of_rows, integers=True, dims=("batch", "target"))

    def terms(self, targets: Values) -> Values:
        return (targets >= 0).sum(1)

    def constant_loss(self, targets: Values, words: int = 0) -> float:
        return math.log(words)

    def outputs(self, logits: NDArray[Any]) -> NoReturn:
        """Refuse: texts are decoded token by token."""
        raise UsageError("text is written token by token.")

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """Return ``texts``: the scores by which rows are averaged, and the share of answers without a word."""
        n = len(outputs)
        texts = {name: sum(_rows(score, self, targets, outputs)) / n for name, score in _OF_ROWS.items()}
        texts["empty_answers"] = sum(not answer.strip() for answer in outputs) / n
        return {"texts": texts}

    def predictions(self, task: str, logits: Values, notes: list[str], read: Sequence[Any] = ()) -> list[Prediction]:
        """Refuse: texts are written by ``Runtime.write``."""
        raise UsageError(f"task {task} writes text; ask it with write.")


def exact_match(answer: str, reference: str) -> float:
    """Return 1 if both are the same words, else 0."""
    return float(_squad_words(answer) == _squad_words(reference))


def f1(answer: str, reference: str) -> float:
    """Return F1 of the words in common, as often as both have them; of two empty texts 1."""
    one, other = _squad_words(answer), _squad_words(reference)
    if not one or not other:
        return float(one == other)
    return _f1(sum((Counter(one) & Counter(other)).values()), len(one), len(other))


def rouge_l(answer: str, reference: str) -> float:
    """Return F1 of the longest common subsequence of words: ASCII's letters and digits, as in Google's rouge."""
    one, other = _rouge_words(answer), _rouge_words(reference)
    row = [0] * (len(other) + 1)
    for word in one:
        above, row = row, [0]
        for i, another in enumerate(other):
            row.append(above[i] + 1 if word == another else max(above[i + 1], row[i]))
    return _f1(row[-1], len(one), len(other))


def rouge_n(n: int, answer: str, reference: str) -> float:
    """Return F1 of runs of ``n`` words, as often as both have them."""
    words = _rouge_words(answer), _rouge_words(reference)
    one, other = (Counter(tuple(each[i : i + n]) for i in range(len(each) - n + 1)) for each in words)
    return _f1((one & other).total(), one.total(), other.total())


def _rouge_words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.lower())


def _f1(common: int, one: int, other: int) -> float:
    return 2 * common / (one + other) if common else 0.0


def _squad_words(text: str) -> list[str]:
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _rows(
    score: Callable[[str, str], float], _: TextGeneration, references: References, answers: Sequence[str]
) -> list[float]:
    """Score each row by its best reference."""
    return [max(score(answer, known) for known in of_row) for answer, of_row in zip(answers, references, strict=True)]


def _corpus(name: str, _: TextGeneration, references: References, answers: Sequence[str]) -> float:
    with requiring("train", f"the metric {name}"):
        import sacrebleu
    most = max(map(len, references))
    columns: Any = [[known[k] if k < len(known) else None for known in references] for k in range(most)]
    return float(getattr(sacrebleu, f"corpus_{name}")(list(answers), columns).score) / 100


_OF_ROWS: Mapping[str, Callable[[str, str], float]] = {
    "exact_match": exact_match,
    "f1": f1,
    "rouge_1": partial(rouge_n, 1),
    "rouge_2": partial(rouge_n, 2),
    "rouge_l": rouge_l,
}
"""Name -> score of an answer and a reference; that of a part is the mean over rows."""

_BEST = "mean over rows, each by its best reference"
TextGeneration.metrics = {
    **{name: Metric(partial(_rows, score), _BEST, mean) for name, score in _OF_ROWS.items()},
    "bleu": Metric(partial(_corpus, "bleu"), "over all words of all rows", resampled=False),
    "chrf": Metric(partial(_corpus, "chrf"), "over all characters of all rows", resampled=False),
}
