"""What a result opens with, of every kind of task: which figures, and their intervals."""

import numpy as np
import pytest
from scipy import stats

from edgepeft.data.by_class import headline, wilson
from edgepeft.tasks.classification import Classification
from edgepeft.tasks.embedding import Embedding
from edgepeft.tasks.labels import Labels
from edgepeft.tasks.regression import Regression
from edgepeft.tasks.text import TextGeneration

NAMES = ("a", "b", "c")


def names_of(kind, targets, outputs, asked=None):
    return [each["metric"] for each in headline(kind, targets, outputs, asked)]


def test_a_rare_label_puts_the_macro_f1_beside_the_accuracy():
    even, rare = np.repeat([0, 1, 2], 20), np.array([0] * 25 + [1] * 25 + [2] * 5)
    kind = Classification(NAMES)
    assert names_of(kind, even, even) == ["accuracy"]
    assert names_of(kind, rare, rare) == ["accuracy", "macro_f1"]
    assert names_of(kind, rare[:50], rare[:50]) == ["accuracy"]  # a label that no row has is not a rare one
    assert names_of(kind, even, even, "f1:b") == ["f1:b", "accuracy"]


def test_the_accuracy_has_wilsons_interval_and_the_macro_f1_that_of_resampled_rows():
    source = np.random.default_rng(0)
    targets = np.array([0] * 100 + [1] * 80 + [2] * 20)
    outputs = np.where(source.random(200) < 0.8, targets, source.integers(0, 3, 200))
    accuracy, macro = headline(Classification(NAMES), targets, outputs, None)
    right = int((targets == outputs).sum())
    assert (accuracy["score"], accuracy["low"], accuracy["high"]) == pytest.approx(
        (right / 200, *wilson(right, 200)[:2])
    )
    metrics = pytest.importorskip("sklearn.metrics")

    def f1(places):
        return metrics.f1_score(targets[places], outputs[places], average="macro", zero_division=0)

    theirs = np.percentile([f1(source.integers(200, size=200)) for _ in range(300)], (2.5, 97.5))
    assert macro["score"] == pytest.approx(f1(np.arange(200)))
    assert (macro["low"], macro["high"]) == pytest.approx(theirs, abs=0.02)


def test_numbers_have_the_correlation_of_their_ranks_first():
    source = np.random.default_rng(0)
    targets = source.random(60)
    outputs = targets + source.normal(scale=0.4, size=60)
    spearman, pearson = headline(Regression(), targets, outputs, None)
    assert spearman["metric"] == "spearman" and pearson["metric"] == "pearson"
    assert spearman["score"] == pytest.approx(stats.spearmanr(targets, outputs).statistic)
    theirs = stats.bootstrap(
        (targets, outputs), lambda a, b: stats.spearmanr(a, b).statistic, paired=True, vectorized=False,
        method="percentile", n_resamples=500, rng=1,
    ).confidence_interval  # fmt: skip
    assert (spearman["low"], spearman["high"]) == pytest.approx((theirs.low, theirs.high), abs=0.05)


def test_vectors_are_scored_by_their_neighbours_among_all_rows():
    source = np.random.default_rng(0)
    first = source.normal(size=(50, 8))
    outputs = np.stack([first, first + source.normal(scale=1.0, size=first.shape)], 1).astype(np.float32)
    kind = Embedding(chosen={"dims": 8, "scored": False})
    found = headline(kind, np.full(50, np.nan), outputs, None)
    assert [each["metric"] for each in found] == ["recall@1", "recall@5", "recall@10"]
    unit = outputs / np.linalg.norm(outputs, axis=-1, keepdims=True)
    right = int(((unit[:, 0] @ unit[:, 1].T).argmax(1) == np.arange(50)).sum())
    assert (found[0]["low"], found[0]["high"]) == pytest.approx(wilson(right, 50)[:2])  # ranks stay those of all rows


def test_labels_are_scored_together_and_alike():
    source = np.random.default_rng(0)
    targets = (source.random((40, 3)) < 0.4).astype(np.float32)
    micro, macro = headline(Labels(NAMES), targets, source.normal(size=(40, 3)), None)
    assert (micro["metric"], macro["metric"]) == ("micro_f1", "macro_f1")
    assert micro["low"] < micro["score"] < micro["high"] and micro["interval"] == "bootstrap"


def test_texts_have_an_interval_where_rows_are_scored_one_by_one():
    answers, known = ["w7 w8", "w9"] * 10, [("w7",), ("w9",)] * 10
    f1, bleu = (
        headline(TextGeneration(), known, answers, None)[0],
        headline(TextGeneration(), known, answers, "bleu")[0],
    )
    each = np.array([2 / 3, 1.0] * 10)
    drawn = np.random.default_rng(5).choice(each, (2_000, 20)).mean(1)
    assert f1["score"] == pytest.approx(each.mean())
    assert (f1["low"], f1["high"]) == pytest.approx(np.percentile(drawn, (2.5, 97.5)), abs=0.02)
    assert bleu["low"] is None and bleu["interval"] is None
