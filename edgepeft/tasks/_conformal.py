"""Probabilities that can be believed, and when an answer is none: temperature, calibration error, conformal prediction.

Temperature (Guo et al., 2017, arXiv:1706.04599, section 4.2): probabilities are softmax(logits / T), of the T > 0 with
the least mean negative log-likelihood of the evaluation rows.  Expected calibration error (their eq. 3): of rows in
M = 15 bins of equal width by the probability of their answer, sum of |bin| / n * |accuracy - mean probability|.

Coverage c, split conformal prediction (Vovk et al., 2005; Angelopoulos and Bates, 2021, arXiv:2107.07511, section 1):
with the nonconformity s = 1 - p(true label) of n rows and q its ceil((n + 1) c)-th smallest, the set
{y : 1 - p(y) <= q} of a row exchangeable with them holds its true label with a probability of at least c, over that row
and the draw of the n.

Risk r, Learn then Test by a fixed sequence (Angelopoulos et al., 2021, arXiv:2110.01052): thresholds are lowered, so
that first m = m0 and then 5, 10, ... 100 % of the n rows are above, as long as P(Binomial(m, r) <= k) <= d of the k of
these m that are wrong; m0 is the fewest of which k = 1 may be.  With a probability of at least 1 - d, which is 0.9,
over the draw of the n rows, at most the share r of the answers above the last threshold is wrong, if a lower threshold
lets no smaller share of wrong answers pass.

Where a coverage is guaranteed, an answer is sure if its conformal set holds one label, which then is the best; where a
risk, if its probability is above the threshold.

Letters: n rows, C labels.
"""

import math
import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import UsageError
from edgepeft.tasks._losses import Values
from edgepeft.tasks._reading import Reading

Guarantee = Mapping[str, float]
"""Nothing, or ``coverage``, or ``risk``."""


def guarantee_of(coverage: float | None, risk: float | None) -> Guarantee:
    """Return what ``--coverage`` or ``--risk`` asks for."""
    given = {name: value for name, value in (("coverage", coverage), ("risk", risk)) if value is not None}
    if len(given) > 1:
        raise UsageError("--coverage and --risk exclude each other: an answer is unsure by one threshold.")
    for name, value in given.items():
        if not (math.isfinite(value) and 0 < value < 1):
            usual = {"coverage": 0.95, "risk": 0.05}[name]
            raise UsageError(f"--{name} is a share between 0 and 1, such as {usual}; found {value:g}.")
    return given


Shares = NDArray[np.float64]

BINS = 15  # as Guo et al. have it
COLDEST, HOTTEST = 0.05, 20.0  # temperatures that are looked at
DOUBT = 0.1  # the probability of evaluation rows for which a risk's guarantee does not hold
_STEPS_DOWN = 20  # thresholds tested for a risk: fewer stop later by chance, more follow the rows more closely
_STEPS, _NEAR = 100, 1e-12


class Temperature(NamedTuple):
    """``value``, and the ``bound`` at which the likelihood is highest, where it is highest at one."""

    value: float
    bound: float | None = None


def softmax(logits: Values, temperature: float = 1.0) -> Shares:
    """Return softmax(logits / temperature), [n, C] in float64."""
    with np.errstate(over="ignore", invalid="ignore"):  # by the least temperatures: NaN, which is looked for in answers
        return _in_place(logits.astype(np.float64) / temperature)


def _in_place(logits: Values) -> Values:
    logits -= np.maximum.reduce(logits, 1, keepdims=True)  # quicker than max() on few numbers, as add.reduce is
    np.exp(logits, logits)
    logits /= np.add.reduce(logits, 1, keepdims=True)
    return logits


def fitted_temperature(logits: Values, targets: Values) -> Temperature:
    """Find the likeliest by Newton's steps on 1 / T, in which the negative log-likelihood is convex; bisect where a
    step leads out of what is left.

    At the lower bound, where every row is right, the rows only say that no probability is too high: it stays 1.
    """
    exact = logits.astype(np.float64)
    exact -= exact.max(1, keepdims=True)
    true = exact[np.arange(len(targets)), targets]
    low, high = 1 / HOTTEST, 1 / COLDEST
    if _slopes(exact, true, high)[0] <= 0:
        return Temperature(1.0, COLDEST)
    if _slopes(exact, true, low)[0] >= 0:
        return Temperature(HOTTEST, HOTTEST)
    beta = 1.0
    for _ in range(_STEPS):
        slope, curvature = _slopes(exact, true, beta)
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else low
        new = step if low < step < high else (low + high) / 2
        if abs(new - beta) <= _NEAR * beta:
            break
        beta = new
    return Temperature(1 / beta)


def _slopes(exact: Shares, true: Shares, beta: float) -> tuple[float, float]:
    """Return the first and second derivative of the mean negative log-likelihood by ``beta``."""
    p = softmax(exact, 1 / beta)
    means = (p * exact).sum(1)
    return float((means - true).mean()), float(((p * exact**2).sum(1) - means**2).mean())


def binned(confidences: Shares, right: NDArray[np.bool_]) -> list[dict[str, float]]:
    """Return each bin's ``rows``, and their mean ``confidence`` and ``accuracy``, 0 if there are none; bins are open
    below and closed above."""
    places = np.clip(np.ceil(confidences * BINS).astype(int) - 1, 0, BINS - 1)
    rows = np.bincount(places, minlength=BINS)
    sums = (np.bincount(places, of, minlength=BINS) / np.maximum(rows, 1) for of in (confidences, right))
    columns = zip(rows.tolist(), *(each.tolist() for each in sums), strict=True)
    return [{"rows": n, "confidence": confidence, "accuracy": accuracy} for n, confidence, accuracy in columns]


def calibration_error(bins: list[dict[str, float]]) -> float:
    """Return the expected calibration error."""
    n = sum(each["rows"] for each in bins)
    return sum(each["rows"] * abs(each["accuracy"] - each["confidence"]) for each in bins) / n


def needed_for_coverage(coverage: float) -> int:
    """Return the fewest rows n of which ceil((n + 1) coverage) is at most n."""
    exact = Fraction(repr(coverage))
    return math.ceil(exact / (1 - exact))


def coverage_threshold(true: Shares, coverage: float) -> float:
    """Return 1 - q of the n true labels' probabilities: a row's set has the labels of at least this probability."""
    rank = math.ceil((len(true) + 1) * Fraction(repr(coverage)))  # exactly: 0.55 x 100 is 55
    return float(np.sort(true)[len(true) - rank])


def needed_for_risk(risk: float) -> int:
    """Return m0."""
    possible = range(2, math.ceil(4 / risk) + 2)
    return possible[bisect_left(possible, True, key=lambda m: _binomial(1, m, risk) <= DOUBT)]


def risk_threshold(confidences: Shares, right: NDArray[np.bool_], risk: float) -> float | None:
    """Return the probability above which an answer is sure; None if the first rows are wrong too often."""
    descending, n, found = np.sort(confidences)[::-1], len(confidences), None
    first = needed_for_risk(risk)
    later = {rows for step in range(1, _STEPS_DOWN + 1) if (rows := math.ceil(n * step / _STEPS_DOWN)) > first}
    for rows in sorted({first, *later} & {*range(n + 1)}):
        # Rows above an order statistic are independent, given it; the row that it is of is not among them.
        cut = 0.0 if rows == n else float(descending[rows])
        above = confidences > cut
        if _binomial(int((~right & above).sum()), int(above.sum()), risk) > DOUBT:
            break
        found = cut
    return found


def _binomial(k: int, m: int, p: float) -> float:
    """Return P(Binomial(m, p) <= k)."""
    odds, log_all = math.log(p) - math.log1p(-p), m * math.log1p(-p) + math.lgamma(m + 1)
    return math.fsum(math.exp(log_all - math.lgamma(j + 1) - math.lgamma(m - j + 1) + j * odds) for j in range(k + 1))


_NEEDED = {"coverage": needed_for_coverage, "risk": needed_for_risk}
_OWN = ("temperature", "temperature_bound", "ece", "threshold", *_NEEDED)  # of what is chosen; others are not its


class Calibration(Reading):
    """How far a kind's probabilities can be believed; a part of ``TaskType``.

    Kinds that calibrate have one right answer of several, whose probabilities are the logits' softmax; every answer of
    any other is sure.

    ``chosen`` has the ``temperature`` (and ``temperature_bound``, where the likelihood is highest at one), ``ece`` of
    the evaluation rows, and ``threshold`` with the ``coverage`` or the ``risk`` that it is for.
    """

    calibrates: ClassVar[bool] = False  # the evaluation rows' logits say how far probabilities can be believed

    def __post_init__(self) -> None:
        """Refuse a temperature, or a threshold with its one guarantee, that cannot be."""
        if not self.calibrates:
            return
        names = ("temperature", "threshold", *_NEEDED)
        for name, value in ((name, self.chosen[name]) for name in names if name in self.chosen):
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not (number and value >= 0 and (value > 0 if name == "temperature" else value <= 1)):
                raise ValueError(f"the {name} of its probabilities is {value!r}")
        if len(self.guarantee) > 1 or ("threshold" in self.chosen and not self.guarantee):
            raise ValueError("a threshold of its probabilities is that of one guarantee, a coverage or a risk")

    @property
    def guarantee(self) -> Guarantee:
        """The coverage or the risk that answers keep which are not ``unsure``."""
        return {name: float(self.chosen[name]) for name in _NEEDED if self.calibrates and name in self.chosen}

    def with_guarantee(self, guarantee: Guarantee, n: int) -> Self:
        """Bind a guarantee, its threshold not known yet; refuse what ``n`` evaluation rows could not keep, were all
        right."""
        if not self.calibrates:
            if guarantee:
                raise UsageError(
                    f"--{next(iter(guarantee))} is for a classification or a choice, whose answers have probabilities; "
                    f"this task is {self.title}. Leave it out."
                )
            return self
        for name, value in guarantee.items():
            if n < (least := _NEEDED[name](value)):
                raise UsageError(
                    f"--{name} {value:g} needs at least {least:,} evaluation rows; there are {n:,}. Give more to "
                    f"--eval, or another --{name}."
                )
        return self.bind_chosen("threshold", *_NEEDED, **guarantee)

    def right_of(self, targets: Values, logits: Values) -> tuple[Values, Values]:
        """Return the right answer of each row, int64 [n], and the logits [n, C] of all answers."""
        return targets, logits

    def calibrated(self, targets: Values, logits: Values) -> Self:
        """Bind what the evaluation rows say: the temperature, the calibration error before it and with it, and the
        threshold of a guarantee."""
        right, of = self.right_of(targets, logits)
        temperature, bound = fitted_temperature(of, right)
        shares = softmax(of, temperature)
        found: dict[str, Any] = {**self.guarantee, "temperature": temperature}
        found |= {} if bound is None else {"temperature_bound": bound}
        errors = (calibration_error(binned(each.max(1), each.argmax(1) == right)) for each in (softmax(of), shares))
        found["ece"] = dict(zip(("before", "after"), errors, strict=True))
        if "coverage" in found:
            found["threshold"] = coverage_threshold(shares[np.arange(len(shares)), right], found["coverage"])
        if "risk" in found:
            cut = risk_threshold(shares.max(1), shares.argmax(1) == right, found["risk"])
            if cut is None:
                warnings.warn(
                    f"no threshold keeps a risk of {found['risk']:g} on the {len(shares):,} evaluation rows: too many "
                    "of their most probable answers are wrong. Every answer is unsure.",
                    stacklevel=1,
                )
            found["threshold"] = 1.0 if cut is None else cut
        return self.bind_chosen(*_OWN, **found)

    def calibration(self, targets: Values, logits: Values) -> dict[str, Any]:
        """Return ``calibration`` of these rows: ``temperature``, ``ece`` and ``bins``, ``before`` it and ``after``; and
        of a ``promise`` what comes out: the share ``unsure``, ``accuracy_of_sure``, the share ``covered``."""
        right, of = self.right_of(targets, logits)
        shares, temperature = self.shares(of), self.chosen.get("temperature", 1.0)
        both = {"before": softmax(of), "after": softmax(of, temperature)}
        bins = {name: binned(each.max(1), each.argmax(1) == right) for name, each in both.items()}
        errors = {name: calibration_error(each) for name, each in bins.items()}
        found: dict[str, Any] = {"temperature": temperature, "ece": errors, "bins": bins}
        if "threshold" in self.chosen:
            sure, hits = ~np.array(self.unsure(shares), bool), shares.argmax(1) == right
            kept: dict[str, Any] = {**self.guarantee, "threshold": self.chosen["threshold"]}
            kept["unsure"] = float((~sure).mean())
            kept["accuracy_of_sure"] = float(hits[sure].mean()) if sure.any() else None
            if "coverage" in kept:
                kept["covered"] = float((shares[np.arange(len(shares)), right] >= kept["threshold"]).mean())
            found["promise"] = kept
        return {"calibration": found}

    def shares(self, logits: Values) -> Values:
        """Return probabilities [n, C]; without a temperature, as older tasks are, in the logits' own precision."""
        if "temperature" in self.chosen:
            return softmax(logits, self.chosen["temperature"])
        return _in_place(logits.copy())

    def unsure(self, shares: Values) -> Sequence[bool | None]:
        """Say of each row [n] whether its answer is unsure; None without a threshold."""
        cut = self.chosen.get("threshold")
        if cut is None:
            return [None] * len(shares)
        unsure = (shares >= cut).sum(1) != 1 if "coverage" in self.chosen else shares.max(1) <= cut
        return unsure.tolist()

    def likely(self, logits: NDArray[np.float32]) -> tuple[list[list[float]], Sequence[bool | None]]:
        """Return each row's ``shares`` in float64, and whether it is ``unsure``."""
        if "threshold" in self.chosen:  # which was taken from such shares, to the bit
            shares = self.shares(logits)
            return shares.tolist(), self.unsure(shares)
        temperature, found = self.chosen.get("temperature", 1.0), []
        # Python's own numbers: between two texts, with cold caches, NumPy takes 30 microseconds more for a few labels.
        for row in logits.tolist():
            scaled = [logit / temperature for logit in row]
            highest = max(scaled)
            raised = [math.exp(each - highest) for each in scaled]
            total = sum(raised)
            found.append([each / total for each in raised])
        return found, [None] * len(logits)

    def probabilities(self, targets: Values, logits: Values) -> list[dict[str, float]]:
        """Return ``label_probability`` and ``answer_probability`` of each row, if answers have one."""
        if not self.calibrates:
            return [{} for _ in logits]
        right, of = self.right_of(targets, logits)
        shares = self.shares(of)
        pairs = zip(shares[np.arange(len(right)), right].tolist(), shares.max(1).tolist(), strict=True)
        return [{"label_probability": round(own, 6), "answer_probability": round(best, 6)} for own, best in pairs]

    def doubted(self, targets: Values, logits: Values) -> list[tuple[int, dict[str, Any]]]:
        """Return the places of rows that are likely mislabelled, the likeliest first, each with its ``label`` and the
        ``likely`` one, and their ``_probability``."""
        return []
