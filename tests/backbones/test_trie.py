"""The labels' trie against what it stands for: each label by itself, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgepeft.backbones.trie import EDGES, SEES, TOKENS, Trie
from edgepeft.heads.labels import Labels

END = 1
CASES = {
    "one token decides": ((7, END), (8, END), (9, 5, END)),
    "a shared beginning": ((7, 8, END), (7, 9, END), (6, END)),
    "one label begins another": ((7, END), (7, 8, END), (7, 8, 9, END)),
    "deep and single": ((3, 4, 5, END), (3, 4, 6, END)),
    "the same token in two places": ((7, 8, 7, END), (8, 7, 8, END), (7, 8, 8, END)),
}


def logits_after(prefix: tuple[int, ...], vocabulary: int = 12) -> np.ndarray:
    """What some model gives the next token: a function of all tokens before."""
    return np.random.default_rng([len(prefix), *prefix]).normal(size=vocabulary)


def by_hand(targets: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """Each label's log-probability: at each token, among the tokens by which a label goes on."""
    scores = []
    for target in targets:
        score = 0.0
        for length, token in enumerate(target):
            going_on = sorted({other[length] for other in targets if other[:length] == target[:length]})
            among = logits_after(target[:length])[going_on]
            score += logits_after(target[:length])[token] - np.log(np.exp(among).sum())
        scores.append(score)
    return np.array(scores)


@pytest.mark.parametrize("targets", CASES.values(), ids=CASES)
def test_scores_are_exact_probabilities_of_the_labels(targets):
    trie = Trie(targets, start=0)
    edges = trie.values[EDGES]
    given = torch.tensor(np.array([[logits_after(node)[edges] for node in trie.nodes]]))
    (found,) = Labels(4, len(targets), 0.1, trie)(given).numpy()
    expected = by_hand(targets)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.exp(found).sum(), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("targets", CASES.values(), ids=CASES)
def test_a_node_sees_its_own_beginnings_and_stands_for_its_last_token(targets):
    trie = Trie(targets, start=0)
    values = trie.values
    tokens, sees = values[TOKENS], values[SEES]
    for i, node in enumerate(trie.nodes):
        seen = sorted((j for j in range(len(tokens)) if sees[i, j]), key=lambda j: len(trie.nodes[j]))
        assert [int(tokens[j]) for j in seen] == [0, *node]


@pytest.mark.parametrize("targets", CASES.values(), ids=CASES)
def test_side_by_side_each_node_sees_the_same_tokens_in_the_same_order(targets):
    trie = Trie(targets, start=0)
    tokens, sees, places = trie.side_by_side()
    for node, place in zip(trie.nodes, places, strict=True):
        seen = np.flatnonzero(sees[place])
        assert tokens[seen].tolist() == [0, *node]
        assert (np.diff(seen) == 1).all(), "a model that counts places must see the distances of the label alone"


def test_labels_that_part_at_once_need_a_single_step():
    assert Trie(CASES["one token decides"], start=0).nodes == ((),)


def test_a_beginning_that_labels_share_is_a_node_once():
    nodes = Trie(CASES["deep and single"], start=0).nodes
    assert nodes == ((), (3,), (3, 4))
