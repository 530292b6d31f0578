"""Metrics of written text, higher is better for all, 1 is best; a row counts by the best of its references.

exact_match and f1 are SQuAD's (Rajpurkar et al., 2016): letters are lowered, punctuation and articles left out; f1 is
of the words that answer and reference have in common.  rouge_1 and rouge_2 are the F1 of the words and pairs of words
in common, rouge_l that of the longest common subsequence of words (Lin, 2004); bleu is the corpus' BLEU (Papineni et
al., 2002), chrf its F2 of 1 to 6 characters (Popovic, 2015), both by sacrebleu, imported when used.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from edgepeft.common.errors import named, requiring

DEFAULT = "f1"

References = Sequence[Sequence[str]]  # of each row, one or more


def text_score(metric: str, answers: Sequence[str], references: References) -> float:
    """Score answers against the references of each."""
    return named("metric of text", metric, TEXT_METRICS)(answers, references)


def text_rows(metric: str, answers: Sequence[str], references: References) -> list[float]:
    """The score of each row by its best reference, of one of ``OF_ROWS``."""
    score = OF_ROWS[metric]
    return [max(score(a, r) for r in known) for a, known in zip(answers, references, strict=True)]


def text_averaged(metric: str) -> str:
    """How a metric comes to one number."""
    if metric in OF_ROWS:
        return "mean over rows, each by its best reference"
    return f"over all {'words' if metric == 'bleu' else 'characters'} of all rows"


def text_errors(answers: Sequence[str], references: References) -> dict[str, dict[str, float]]:
    """``texts``: the scores by which rows are averaged, and the share of answers without a word."""
    scores = {name: text_score(name, answers, references) for name in OF_ROWS}
    return {"texts": {**scores, "empty_answers": sum(not answer.strip() for answer in answers) / len(answers)}}


def exact_match(answer: str, reference: str) -> float:
    """1 where both are the same words, else 0."""
    return float(_squad_words(answer) == _squad_words(reference))


def f1(answer: str, reference: str) -> float:
    """Of the words in common, as often as both have them; of two empty texts 1."""
    one, other = _squad_words(answer), _squad_words(reference)
    if not one or not other:
        return float(one == other)
    return _f1(sum((Counter(one) & Counter(other)).values()), len(one), len(other))


def rouge_l(answer: str, reference: str) -> float:
    """F1 of the longest common subsequence of words; words are of ASCII's letters and digits, as in Google's rouge."""
    one, other = _rouge_words(answer), _rouge_words(reference)
    row = [0] * (len(other) + 1)
    for word in one:
        above, row = row, [0]
        for i, another in enumerate(other):
            row.append(above[i] + 1 if word == another else max(above[i + 1], row[i]))
    return _f1(row[-1], len(one), len(other))


def rouge_n(n: int, answer: str, reference: str) -> float:
    """F1 of runs of ``n`` words, as often as both have them."""
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


def _mean(metric: str, answers: Sequence[str], references: References) -> float:
    best = text_rows(metric, answers, references)
    return sum(best) / len(best)


def _corpus(name: str, answers: Sequence[str], references: References) -> float:
    with requiring("train", f"the metric {name}"):
        import sacrebleu
    most = max(map(len, references))
    columns: Any = [[known[k] if k < len(known) else None for known in references] for k in range(most)]
    return float(getattr(sacrebleu, f"corpus_{name}")(list(answers), columns).score) / 100


OF_ROWS: dict[str, Callable[[str, str], float]] = {
    "exact_match": exact_match,
    "f1": f1,
    "rouge_1": partial(rouge_n, 1),
    "rouge_2": partial(rouge_n, 2),
    "rouge_l": rouge_l,
}
"""By name those of which a score is the mean over rows; of an answer and a reference."""
TEXT_METRICS: dict[str, Callable[[Sequence[str], References], float]] = {
    **{name: partial(_mean, name) for name in OF_ROWS},
    **{name: partial(_corpus, name) for name in ("bleu", "chrf")},
}
"""By name; of the answers and the references of each row."""
