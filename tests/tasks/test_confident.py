"""Rows that are likely mislabelled, against the rule written out, and labels that were turned round."""

import numpy as np

from edgepeft.tasks.choice import Choice
from edgepeft.tasks.classification import Classification

KIND = Classification(("a", "b", "c"))


def drawn(n=400, flipped=20):
    """Labels of which the first ``flipped`` are wrong, and logits that mostly tell the right ones."""
    source = np.random.default_rng(0)
    right = source.integers(0, 3, n)
    logits = source.normal(size=(n, 3)) + 5 * np.eye(3)[right]
    labels = right.copy()
    labels[:flipped] = (right[:flipped] + 1) % 3
    return labels, logits


def test_it_is_the_rule_of_the_paper_row_by_row():
    labels, logits = drawn()
    shares = KIND.shares(logits)
    thresholds = [np.mean([p[j] for p, y in zip(shares, labels, strict=True) if y == j]) for j in range(3)]
    expected = {}
    for i, (p, y) in enumerate(zip(shares, labels, strict=True)):
        above = [j for j in range(3) if p[j] >= thresholds[j]]
        best = max(above, key=lambda j: p[j], default=y)
        if best != y and int(p.argmax()) != y:
            expected[i] = KIND.labels[best]
    found = KIND.doubted(labels, logits)
    assert {row: said["likely"] for row, said in found} == expected and len(expected) > 10
    margins = [said["label_probability"] - said["likely_probability"] for _, said in found]
    np.testing.assert_allclose(margins, sorted(margins), atol=2e-6)  # each is rounded


def test_most_labels_that_were_turned_round_are_found_first():
    labels, logits = drawn()
    first = [row for row, _ in KIND.doubted(labels, logits)][:20]
    assert sum(row < 20 for row in first) >= 16


def test_a_label_that_no_row_has_is_never_the_likely_one():
    shares = np.array([[0.1, 1e-30, 0.9], [0.6, 1e-30, 0.4], [0.7, 1e-30, 0.3]])
    assert KIND.doubted(np.array([0, 0, 0]), np.log(shares)) == []


def test_names_and_probabilities_are_told_and_a_choice_has_none():
    kind = Classification(("a", "b", "c"), chosen={"temperature": 2.0})
    labels, logits = drawn()
    row, said = kind.doubted(labels, logits)[0]
    p = np.exp(logits[row] / 2) / np.exp(logits[row] / 2).sum()
    names = ("a", "b", "c")
    assert said["label"] == names[labels[row]] and said["likely"] == names[int(p.argmax())]
    np.testing.assert_allclose(
        [said["label_probability"], said["likely_probability"]], [p[labels[row]], p.max()], atol=1e-6
    )
    told = kind.probabilities(labels, logits)[row]
    np.testing.assert_allclose([*told.values()], [p[labels[row]], p.max()], atol=1e-6)
    assert Choice().doubted(np.array([[0, 2]]), np.zeros((1, 2, 1))) == []
