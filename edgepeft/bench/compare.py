"""Two benchmark results: is the new one slower beyond noise?  The rule of the CI gate.

The ratio is new throughput over base throughput, of medians, with a 95 % bootstrap interval; where
batches differ in length, of the sums over the same batches.  A result has regressed when the whole
interval lies below 1 - max_regression.  The same code moves by 7 % between runs minutes apart on a
shared host, so where both files hold the host's GEMM rate, the ratio per unit of that rate must lie
below as well: a host that was slower for everything is not a regression (it is said).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgepeft.bench.result_file import Result, ResultFile
from edgepeft.bench.statistics import Ratio, ratio_of_medians, ratio_of_totals
from edgepeft.errors import UsageError

__all__ = ["Comparison", "Verdict", "compare"]

# Facts of which a difference makes throughputs incomparable: (where, key).
_MUST_AGREE = (
    ("host", "cpu"),
    ("host", "isa"),
    ("host", "cores"),
    ("profile", "name"),
    ("profile", "limits"),
)
_HOST_MOVED = 0.03  # a GEMM rate that differs by less is not worth a line


@dataclass(frozen=True)
class Verdict:
    """One row of both files; ``per_gemm`` is the ratio per unit of the host's GEMM rate, if known."""

    result: Result
    ratio: Ratio
    per_gemm: Ratio | None
    regressed: bool


@dataclass(frozen=True)
class Comparison:
    """All rows, what only one file has, and what a reader should know."""

    verdicts: tuple[Verdict, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Verdict, ...]:
        """The rows that are slower beyond noise and threshold."""
        return tuple(verdict for verdict in self.verdicts if verdict.regressed)


def compare(base: ResultFile, new: ResultFile, max_regression: float) -> Comparison:
    """Match rows by what they measured and judge each.

    Args:
        max_regression: the loss of throughput that is let pass, a fraction in [0, 1).

    Raises:
        UsageError: measured on different hosts, under different limits, or nothing in common.
    """
    if not 0.0 <= max_regression < 1.0:
        raise UsageError(f"--max-regression must be from 0 % to under 100 %, got {max_regression:.0%}.")
    _refuse_other_conditions(base, new)
    old, fresh = base.by_key(), new.by_key()
    common = [key for key in old if key in fresh and old[key].samples_s and fresh[key].samples_s]
    if not common:
        raise UsageError(
            f"{base.path} and {new.path} have no measured result in common; run both with the same options."
        )
    verdicts = tuple(_verdict(old[key], fresh[key], base, new, max_regression) for key in common)
    measured_before = [key for key in old if old[key].samples_s and key not in common]
    measured_now = [key for key in fresh if fresh[key].samples_s and key not in common]
    return Comparison(
        verdicts,
        tuple(old[key].label for key in measured_before),
        tuple(fresh[key].label for key in measured_now),
        tuple(_notes(base, new, verdicts)),
    )


def _refuse_other_conditions(base: ResultFile, new: ResultFile) -> None:
    before, now = (file.document.get("mode") for file in (base, new))
    if before != now:
        raise UsageError(
            f"{base.path} and {new.path} cannot be compared: mode was {before} and is {now}, which are different "
            "kinds of figures. Give both with the same --mode."
        )
    if now == "predicted":
        raise UsageError(f"{new.path} was predicted: nothing was measured that could have become slower.")
    for section, key in _MUST_AGREE:
        before, now = (_fact(file.document, section, key) for file in (base, new))
        if before != now:
            raise UsageError(
                f"{base.path} and {new.path} cannot be compared: {section} {key} was {before} and is {now}. "
                "Measure both on the same host under the same limits."
            )


def _fact(document: Mapping[str, Any], section: str, key: str) -> Any:
    found = document.get(section)
    fact = found.get(key) if isinstance(found, Mapping) else None
    if key == "limits" and document.get("mode") == "calibrated":
        return _without_quotas(fact)  # found anew each time, so that the host's speed drops out
    return fact


def _without_quotas(limits: Any) -> Any:
    if not isinstance(limits, Mapping):
        return limits
    return {name: _without_quotas(value) for name, value in limits.items() if name != "cpu_quota"}


def _verdict(old: Result, fresh: Result, base: ResultFile, new: ResultFile, max_regression: float) -> Verdict:
    least = 1.0 - max_regression
    ratio = _ratio(old, fresh)
    speeds = base.gemm_gflops(old.workload), new.gemm_gflops(fresh.workload)
    per_gemm = None
    if all(speeds):
        per_gemm = _scaled(ratio, ratio_of_medians((1.0,), (1.0,), *speeds)) if old.mixed else None
        per_gemm = per_gemm or ratio_of_medians(old.samples_s, fresh.samples_s, *speeds)
    judged = [ratio] if per_gemm is None else [ratio, per_gemm]
    return Verdict(fresh, ratio, per_gemm, all(one.high < least for one in judged))


def _ratio(old: Result, fresh: Result) -> Ratio:
    """Of medians; of sums over the same batches where batches are not alike."""
    if not old.mixed:
        return ratio_of_medians(old.samples_s, fresh.samples_s)
    common = min(len(old.samples_s), len(fresh.samples_s))
    return ratio_of_totals(fresh.samples_s[:common], old.samples_s[:common])


def _scaled(ratio: Ratio, by: Ratio) -> Ratio:
    """Both uncertainties added: an interval that is rather too wide than too narrow."""
    return Ratio(ratio.value * by.value, ratio.low * by.low, ratio.high * by.high, ratio.rounds)


def _notes(base: ResultFile, new: ResultFile, verdicts: Sequence[Verdict]) -> list[str]:
    notes = []
    for workload in dict.fromkeys(verdict.result.workload for verdict in verdicts):
        speeds = base.gemm_gflops(workload), new.gemm_gflops(workload)
        if not all(speeds):
            notes.append(f"{workload}: no GEMM rate in both files; a slower host cannot be told from slower code")
            continue
        host = 1.0 / ratio_of_medians((1.0,), (1.0,), *speeds).value
        if abs(host - 1.0) > _HOST_MOVED:
            notes.append(f"{workload}: the host's GEMM rate was {host - 1.0:+.1%} against the base run")
    before, now = (_fact(file.document, "host", "versions") for file in (base, new))
    if before != now:
        notes.append("package versions differ between the runs")
    return notes
