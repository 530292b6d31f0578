"""Probabilities of one label each: softmax(logits / temperature), and when the best of them is ``unsure``.

Where a coverage is guaranteed, an answer is sure if its conformal set holds one label, which then is the best; where a
risk, if its probability is above the threshold.  Equations and sources are in ``_conformal``.

Letters: n rows, C labels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import UsageError
from edgepeft.tasks import _conformal as fit
from edgepeft.tasks._conformal import Calibration, Guarantee

__all__ = ["OneOfSeveral", "Softmax"]

Values = NDArray[Any]
_NEEDED = {"coverage": fit.needed_for_coverage, "risk": fit.needed_for_risk}
_OWN = ("temperature", "temperature_bound", "ece", "threshold", *_NEEDED)  # of what is chosen; others are not its


@dataclass(frozen=True)
class Softmax:
    """``chosen`` is a task's: ``temperature`` (and ``temperature_bound``, where the likelihood is highest at one),
    ``ece`` of the evaluation rows, and ``threshold`` with the ``coverage`` or the ``risk`` that it is for."""

    chosen: Mapping[str, Any]

    def check(self) -> None:
        """See that the temperature and a threshold with its one guarantee can be used."""
        names = ("temperature", "threshold", *_NEEDED)
        for name, value in ((name, self.chosen[name]) for name in names if name in self.chosen):
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not (number and value >= 0 and (value > 0 if name == "temperature" else value <= 1)):
                raise ValueError(f"the {name} of its probabilities is {value!r}")
        if len(self.guarantee) > 1 or ("threshold" in self.chosen and not self.guarantee):
            raise ValueError("a threshold of its probabilities is that of one guarantee, a coverage or a risk")

    @property
    def guarantee(self) -> Guarantee:
        """What sure answers keep."""
        return {name: float(self.chosen[name]) for name in _NEEDED if name in self.chosen}

    def with_guarantee(self, guarantee: Guarantee, n: int) -> dict[str, Any]:
        """``chosen`` with another guarantee, whose threshold is not known yet."""
        for name, value in guarantee.items():
            if n < (least := _NEEDED[name](value)):
                raise UsageError(
                    f"--{name} {value:g} needs at least {least:,} evaluation rows; there are {n:,}. Give more to "
                    f"--eval, or another --{name}."
                )
        others = {name: value for name, value in self.chosen.items() if name not in ("threshold", *_NEEDED)}
        return {**others, **guarantee}

    def calibrated(self, targets: Values, logits: Values) -> dict[str, Any]:
        """``chosen`` anew, by these rows."""
        temperature, bound = fit.fitted_temperature(logits, targets)
        before, after = (_bins(targets, fit.shares(logits, each)) for each in (1.0, temperature))
        others = {name: value for name, value in self.chosen.items() if name not in _OWN}
        found: dict[str, Any] = {**others, **self.guarantee, "temperature": temperature}
        found |= {} if bound is None else {"temperature_bound": bound}
        found["ece"] = {"before": fit.calibration_error(before), "after": fit.calibration_error(after)}
        shares = fit.shares(logits, temperature)
        if "coverage" in found:
            found["threshold"] = fit.coverage_threshold(shares[np.arange(len(shares)), targets], found["coverage"])
        if "risk" in found:
            found["threshold"] = _risk_threshold(shares, targets, found["risk"])
        return found

    def calibration(self, targets: Values, logits: Values) -> dict[str, Any]:
        """``temperature``, ``ece`` and ``bins`` of these rows, both ``before`` it and ``after``; and of a ``promise``
        what comes out: the share ``unsure``, ``accuracy_of_sure``, the share ``covered``."""
        shares, temperature = self.shares(logits), self.chosen.get("temperature", 1.0)
        bins = {"before": _bins(targets, fit.shares(logits)), "after": _bins(targets, fit.shares(logits, temperature))}
        errors = {name: fit.calibration_error(each) for name, each in bins.items()}
        found = {"temperature": temperature, "ece": errors, "bins": bins}
        if "threshold" not in self.chosen:
            return found
        sure, right = ~np.array(self.unsure(shares), bool), shares.argmax(1) == targets
        kept: dict[str, Any] = {
            **self.guarantee,
            "threshold": self.chosen["threshold"],
            "unsure": float((~sure).mean()),
        }
        kept["accuracy_of_sure"] = float(right[sure].mean()) if sure.any() else None
        if "coverage" in kept:
            kept["covered"] = float((shares[np.arange(len(shares)), targets] >= kept["threshold"]).mean())
        return {**found, "promise": kept}

    def shares(self, logits: Values) -> Values:
        """[n, C]; where no temperature is known in the logits' own precision, as before there were any."""
        if "temperature" in self.chosen:
            return fit.shares(logits, self.chosen["temperature"])
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares: Values = shifted / shifted.sum(axis=1, keepdims=True)
        return shares

    def unsure(self, shares: Values) -> Sequence[bool | None]:
        """[n] of these probabilities; None where there is no threshold."""
        cut = self.chosen.get("threshold")
        if cut is None:
            return [None] * len(shares)
        unsure = (shares >= cut).sum(1) != 1 if "coverage" in self.chosen else shares.max(1) <= cut
        found: list[bool | None] = unsure.tolist()
        return found


class OneOfSeveral(Calibration):
    """Base of kinds of which one answer of several is right, with probabilities that are the logits' softmax."""

    calibrates: ClassVar[bool] = True
    chosen: Mapping[str, Any]

    def __post_init__(self) -> None:
        """See that what was chosen of its probabilities can be used."""
        self.softmax.check()

    @property
    def softmax(self) -> Softmax:
        """What was chosen of its probabilities."""
        return Softmax(self.chosen)

    @property
    def guarantee(self) -> Guarantee:
        """A coverage, or a risk."""
        return self.softmax.guarantee

    def with_guarantee(self, guarantee: Guarantee, n: int) -> Self:
        """See that ``n`` rows can keep it, were every one of them right."""
        return replace(self, chosen=self.softmax.with_guarantee(guarantee, n))  # type: ignore[type-var]

    def calibrated(self, targets: Values, logits: Values) -> Self:
        """The temperature, the calibration error before it and with it, and the threshold of what is guaranteed."""
        return replace(self, chosen=self.softmax.calibrated(*self.right_of(targets, logits)))  # type: ignore[type-var]

    def calibration(self, targets: Values, logits: Values) -> dict[str, Any]:
        """Bins and their error before and with the temperature, and how the guarantee is kept."""
        return {"calibration": self.softmax.calibration(*self.right_of(targets, logits))}

    def probabilities(self, targets: Values, logits: Values) -> list[dict[str, float]]:
        """By the softmax."""
        right, of = self.right_of(targets, logits)
        shares = self.softmax.shares(of)
        pairs = zip(shares[np.arange(len(right)), right].tolist(), shares.max(1).tolist(), strict=True)
        return [{"label_probability": round(own, 6), "answer_probability": round(best, 6)} for own, best in pairs]


def _bins(targets: Values, shares: Values) -> list[dict[str, float]]:
    return fit.binned(shares.max(1), shares.argmax(1) == targets)


def _risk_threshold(shares: Values, targets: Values, risk: float) -> float:
    found = fit.risk_threshold(shares.max(1), shares.argmax(1) == targets, risk)
    if found is None:
        warnings.warn(
            f"no threshold keeps a risk of {risk:g} on the {len(shares):,} evaluation rows: too many of their most "
            "probable answers are wrong. Every answer is unsure.",
            stacklevel=2,
        )
    return 1.0 if found is None else found
