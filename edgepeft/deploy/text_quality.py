"""The quality of text beside a reference's: divergence, perplexity, and equal greedy tokens.

    KL = mean over tokens of sum over c of p(c) log(p(c) / q(c))        perplexity = exp(-mean of log q(written))

c are a token's known candidates and all others in one, so that this KL is at most that of the whole distributions.
Letters: R rows, T tokens, k candidates, n tokens of all texts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgepeft.bundle.manifest import OnText

_MOST = 1 - 1e-6  # of the candidates' probabilities in sum, beyond which float32 tells nothing of the others


def text_quality(reference: NDArray[np.float32], found: NDArray[np.float32], ends: NDArray[np.bool_]) -> OnText:
    """Compare log-probabilities [R, T, k] of the same candidates, the first of which is the token written.

    ``ends`` [R, T] says which tokens end a text; tokens past an end are left out.
    """
    written = ends.cumsum(axis=1) - ends == 0
    p, q = (_with_others(values[written].astype(np.float64)) for values in (reference, found))  # (n, k + 1)
    return OnText(
        tokens=len(p),
        kl=float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        perplexity=float(np.exp(-q[:, 0].mean())),
        reference_perplexity=float(np.exp(-p[:, 0].mean())),
        agreement=float((q[:, :-1].argmax(axis=1) == 0).mean()),
    )


def _with_others(likely: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, k) -> (n, k + 1): the logarithm of what is left for all other tokens."""
    known = np.exp(likely).sum(axis=1, keepdims=True).clip(max=_MOST)
    return np.concatenate([likely, np.log1p(-known)], axis=1)
