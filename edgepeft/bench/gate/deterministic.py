"""Figures that do not depend on time gate hard: what grows beyond its allowance has regressed, without statistics."""

from __future__ import annotations

from dataclasses import dataclass

from edgepeft.bench.result.result_file import ResultFile
from edgepeft.bench.result.schema import MetricsRecord
from edgepeft.common.errors import DataError

__all__ = ["ALLOWED", "MetricVerdict", "judge_metrics"]

# How much each may grow, as a share.  Counts may not; a file's size moves with the texts in it; instructions repeat
# within half a per cent.  What is not named here may not grow either.
ALLOWED = {
    "backbone_graph_bytes": 0.005,
    "bundle_bytes": 0.005,
    "delta_bytes": 0.005,
    "instructions": 0.005,
    "peak_activation_bytes": 0.005,
}


@dataclass(frozen=True)
class MetricVerdict:
    """One figure in both files."""

    of: str
    name: str
    before: float
    now: float

    @property
    def change(self) -> float:
        """As a share of what it was; from nothing to something is infinite."""
        if self.before == 0:
            return 0.0 if self.now == 0 else float("inf")
        return self.now / self.before - 1.0

    @property
    def grown(self) -> bool:
        """Beyond what it may."""
        return self.change > ALLOWED.get(self.name, 0.0)

    @property
    def shrunk(self) -> bool:
        """So much that a new baseline should hold it."""
        return self.change < -ALLOWED.get(self.name, 0.0)


def judge_metrics(base: ResultFile, new: ResultFile) -> tuple[list[MetricVerdict], list[str]]:
    """Every figure that both hold, and the names of those that the new one lacks.

    Raises:
        DataError: two entries of one file are of the same thing.
    """
    old, fresh = _by_label(base), _by_label(new)
    verdicts, lacking = [], []
    for label, entry in old.items():
        now = fresh[label].values if label in fresh else {}
        for name, before in entry.values.items():
            if name in now:
                verdicts.append(MetricVerdict(label, name, before, now[name]))
            elif name != "instructions":  # counted where QEMU is; elsewhere the rest is judged
                lacking.append(f"{name} of {label}")
    return verdicts, lacking


def _by_label(file: ResultFile) -> dict[str, MetricsRecord]:
    entries = {entry.of: entry for entry in file.document.metrics}
    if len(entries) != len(file.document.metrics):
        raise DataError(f"{file.path} holds two metrics of one thing; it was put together by hand.")
    return entries
