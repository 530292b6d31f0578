"""Losses of pairs of vectors against each other, as sentence-transformers has them, with their slopes.

CoSENT (Su, 2022, "CoSENT"; ``CoSENTLoss``), of pairs with a number y, c their cosine and s = 20:

    L = log(1 + sum over i, j with y_i < y_j of exp(s (c_i - c_j)))

In-batch negatives (Henderson et al., 2017, arXiv:1705.00652; ``MultipleNegativesRankingLoss``), where every other row's
second text, and every row's further ones, are wrong answers to a row's first:

    L = mean over i of -log softmax over j of (s cos(a_i, b_j)) [j = i]

Letters: B rows, n rows of a part, K texts of a row, M = B (K - 1) candidates, d dims.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgepeft.tasks._facts import Values

SCALE = 20.0  # of a cosine; sentence-transformers' for both losses
_BLOCK = 1024  # rows whose pairs with all others are computed at once


def unit(vectors: Values) -> Values:
    """[..., d] of length 1, in float64; zeros stay zeros."""
    exact = vectors.astype(np.float64)
    return exact / np.maximum(_lengths(exact), 1e-12)


def cosines(vectors: Values) -> Values:
    """[n, K, d] -> [n], of each row's first two."""
    first, second = unit(vectors[:, 0]), unit(vectors[:, 1])
    return (first * second).sum(-1)


def cosent(vectors: Values, numbers: Values) -> tuple[float, Values]:
    """[B, 2, d] and [B] -> the loss, and its derivatives [B, 2, d]."""
    units, found = unit(vectors[:, :2]), cosines(vectors)
    terms = np.exp(SCALE * (found[:, None] - found)) * (numbers[:, None] < numbers)
    total = 1 + terms.sum()
    slopes = SCALE * (terms.sum(1) - terms.sum(0)) / total  # by the cosines
    back = np.zeros(vectors.shape)
    back[:, :2] = _back(slopes[:, None, None] * units[:, ::-1], units, vectors[:, :2])
    return float(np.log(total)), back


def negatives(vectors: Values) -> tuple[float, Values]:
    """[B, K, d] -> the loss, and its derivatives [B, K, d]."""
    units = unit(vectors)
    firsts, others = units[:, 0], _candidates(units)
    losses, shares = _softmax(SCALE * firsts @ others.T, np.arange(len(units)))
    shares[np.arange(len(units)), np.arange(len(units))] -= 1
    shares *= SCALE / len(units)  # by the cosines [B, M]
    slopes = np.empty_like(units)
    slopes[:, 0] = shares @ others
    slopes[:, 1:] = (shares.T @ firsts).reshape(units.shape[1] - 1, len(units), -1).swapaxes(0, 1)
    return float(losses.mean()), _back(slopes, units, vectors)


def row_losses(vectors: Values, numbers: Values | None) -> Values:
    """[n]: what each row has of the loss of all of them together, n times, so that their mean is the loss."""
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
    """[n]: where each row's second text stands among those of all rows, from 1, the nearest to its first first; of
    equally near ones the earlier row's."""
    return np.concatenate([ranks for ranks, _ in _blocks(vectors)])


def _blocks(vectors: Values) -> Any:
    """Ranks and losses [rows of a block], of in-batch negatives with all rows as the batch."""
    units = unit(vectors)
    others, n = _candidates(units), len(units)
    for start in range(0, n, _BLOCK):
        right = np.arange(start, min(start + _BLOCK, n))
        near = units[right, 0] @ others.T
        own = near[np.arange(len(right)), right][:, None]
        before = (near[:, :n] > own) | ((near[:, :n] == own) & (np.arange(n) < right[:, None]))
        yield 1 + before.sum(1), _softmax(SCALE * near, right)[0]


def _candidates(units: Values) -> Values:
    """[B, K, d] -> [M, d]: all second texts, then all third ones, and so on."""
    return units[:, 1:].swapaxes(0, 1).reshape(-1, units.shape[-1])


def _softmax(scores: Values, right: Values) -> tuple[Values, Values]:
    """[B, M] and [B] -> -log softmax of the right ones [B], and the softmax."""
    shifted = scores - scores.max(1, keepdims=True)
    exps = np.exp(shifted)
    sums = exps.sum(1, keepdims=True)
    return np.log(sums[:, 0]) - shifted[np.arange(len(scores)), right], exps / sums


def _back(slopes: Values, units: Values, vectors: Values) -> Values:
    """By vectors [..., d] from those by their ``units``: what points along a vector changes no cosine."""
    across: Values = slopes - (slopes * units).sum(-1, keepdims=True) * units
    return across / np.maximum(_lengths(vectors.astype(np.float64)), 1e-12)


def _lengths(vectors: Values) -> Values:
    return np.linalg.norm(vectors, axis=-1, keepdims=True)
