"""How far a task may be from PyTorch, by how its weights and the backbone's are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgepeft.bundle.manifest import Verification

LOGIT_TOLERANCE = 1e-4  # largest absolute difference of a logit


@dataclass(frozen=True)
class Tolerance:
    """``difference`` of a logit (None: any), and the share of decided rows whose decision may change.

    With ``kl``, text is held to that divergence (nats a token), and not to decisions.
    """

    difference: float | None
    changed: float = 0.0
    kl: float | None = None

    def at_least(self, stated: Verification) -> Tolerance:
        """This, or what a task's manifest entry states where that is more: one taken with ``--accept-error``."""
        kl = None if self.kl is None else max(self.kl, stated.kl_tolerance or 0.0)
        return replace(self, changed=max(self.changed, stated.changed_tolerance), kl=kl)


EXACT = Tolerance(LOGIT_TOLERANCE)
_ROUNDED = Tolerance(2e-2)  # half precision keeps 11 bits of a weight: each product is off by up to 5e-4 of itself
_QUANTISED = {"int8": Tolerance(None, 0.02), "int4": Tolerance(None, 0.05)}
_MOST_KL = 0.05  # two tasks of SmolLM2-135M have 0.005 and 0.012 in 8 bits, 0.58 and 0.87 in 4 (docs/decoders.md)


def allowed_for(backbone: str, delta: str, *, goes_on: bool = False) -> Tolerance:
    """What a bundle's ``weights_dtype`` and a task's allow; ``goes_on`` is of a backbone that is a decoder alone.

    About a tenth of a decoder's tokens are near ties, which rounding turns without making the text worse: so it is held
    to its divergence, not to decisions.
    """
    if backbone in _QUANTISED:
        return replace(_QUANTISED[backbone], kl=_MOST_KL) if goes_on else _QUANTISED[backbone]
    return _ROUNDED if delta == "fp16" else EXACT
