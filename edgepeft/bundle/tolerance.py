"""Tolerances of a task against PyTorch, by the dtypes of its weights and the backbone's; divergence of its text.

    KL = mean over tokens of sum over c of p(c) log(p(c) / q(c))        perplexity = exp(-mean of log q(written))

c are a token's known candidates and all others in one, so that this KL is at most that of the whole distributions.
Letters: R rows, T tokens, k candidates, n tokens of all texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgepeft.bundle.manifest import OnText, Verification

LOGIT_TOLERANCE = 1e-4  # largest absolute difference of a logit
_MAX = 1 - 1e-6  # of the candidates' probabilities in sum, beyond which float32 tells nothing of the others


@dataclass(frozen=True)
class Tolerance:
    """What may differ."""

    difference: float | None  # of a logit; None: any
    changed: float = 0.0  # share of decided rows whose decision may change
    kl: float | None = None  # nats a token, to which text is held, and not to decisions

    def at_least(self, stated: Verification) -> Tolerance:
        """This, or what a task's manifest entry states where that is more: one taken with ``--accept-error``."""
        kl = None if self.kl is None else max(self.kl, stated.kl_tolerance or 0.0)
        return replace(self, changed=max(self.changed, stated.changed_tolerance), kl=kl)


EXACT = Tolerance(LOGIT_TOLERANCE)
_ROUNDED = Tolerance(2e-2)  # half precision keeps 11 bits of a weight: each product is off by up to 5e-4 of itself
_QUANTISED = {"int8": Tolerance(None, 0.02), "int4": Tolerance(None, 0.05)}
_MAX_KL = 0.05  # two tasks of SmolLM2-135M have 0.005 and 0.012 in 8 bits, 0.58 and 0.87 in 4 (docs/decoders.md)


def allowed_for(backbone: str, delta: str, *, decoder_only: bool = False) -> Tolerance:
    """What a bundle's ``weights_dtype`` and a task's allow; ``decoder_only`` is of a backbone that is a decoder alone.

    About a tenth of a decoder's tokens are near ties, which rounding turns without making the text worse: so it is held
    to its divergence, not to decisions.
    """
    if backbone in _QUANTISED:
        return replace(_QUANTISED[backbone], kl=_MAX_KL) if decoder_only else _QUANTISED[backbone]
    return _ROUNDED if delta == "fp16" else EXACT


def text_quality(reference: NDArray[np.float32], found: NDArray[np.float32], ends: NDArray[np.bool_]) -> OnText:
    """Compare log-probabilities [R, T, k] of the same candidates, the first of which is the token written.

    ``ends`` [R, T] says which tokens end a text; tokens past an end are left out.
    """
    written = ends.cumsum(axis=1) - ends == 0

    def with_others(likely: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, k) -> (n, k + 1): the logarithm of what is left for all other tokens."""
        known = np.exp(likely).sum(axis=1, keepdims=True).clip(max=_MAX)
        return np.concatenate([likely, np.log1p(-known)], axis=1)

    p, q = (with_others(values[written].astype(np.float64)) for values in (reference, found))
    return OnText(
        tokens=len(p),
        kl=float((np.exp(p) * (p - q)).sum(axis=1).mean()),
        perplexity=float(np.exp(-q[:, 0].mean())),
        reference_perplexity=float(np.exp(-p[:, 0].mean())),
        agreement=float((q[:, :-1].argmax(axis=1) == 0).mean()),
    )
