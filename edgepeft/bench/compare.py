"""Two benchmark results: is the new one slower beyond noise?  The rule of the CI gate.

The ratio is new throughput over base throughput, of medians, with a 95 % bootstrap interval; where
batches differ in length, of the sums over the same batches.  A result has regressed when the whole
interval lies below 1 - max_regression.  The same code moves by 7 % between runs minutes apart on a
shared host, so where both files hold the host's GEMM rate, the ratio per unit of that rate must lie
below as well: a host that was slower for everything is not a regression, but noted.  Of two samples
and two, chance puts the new ones last in one case of six: so few are not judged, but noted.

Results of other processors, cores, limits or versions are refused, unless ``normalise``: then the ratio
per unit of the GEMM rate alone is judged.  Figures that do not depend on time gate hard: what grows
beyond its allowance has regressed, without statistics.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import comb
from pathlib import Path
from typing import Any

from edgepeft.bench.result.parts import read_document, schema_of
from edgepeft.bench.result.schema import RESULT_SCHEMA, BenchResult, BenchRow, RowKey
from edgepeft.bench.result.statistics import CONFIDENCE, Ratio, ratio_of_medians, ratio_of_totals
from edgepeft.common.errors import DataError, UsageError

_HOST_MOVED = 0.03  # a GEMM rate that differs by less is not worth a line
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
class ResultFile:
    """A result that was read, with the file's name for messages."""

    path: Path
    document: BenchResult

    @classmethod
    def open(cls, path: Path) -> ResultFile:
        """Read and check."""
        if (schema := schema_of(path)) != RESULT_SCHEMA:
            ours, known = RESULT_SCHEMA.split("/")
            name, _, version = str(schema).partition("/")
            which = "a newer" if version.isdigit() and int(version) > int(known) else "another"
            anew = "take the baseline anew with this version (bench/baselines/README.md)"
            advice = f", which {which} edgepeft wrote; {anew}" if name == ours else ""
            raise DataError(f"{path}: schema {RESULT_SCHEMA!r} is needed, found {schema!r}{advice}.")
        document = read_document(path, BenchResult)
        if not document.results and not document.metrics:
            raise DataError(f"{path} holds no results; it must come from `edgepeft bench --json`.")
        return cls(path, document)

    def by_key(self, *, with_threads: bool = True) -> dict[RowKey, BenchRow]:
        """Rows by what they measured."""
        rows = {row.key(with_threads=with_threads): row for row in self.document.results}
        self._require_each_once(len(rows), len(self.document.results), "results of one kind")
        return rows

    def metrics(self) -> dict[str, dict[str, float]]:
        """Figures that do not depend on time, by what they are of and their name."""
        entries = {entry.of: entry.values for entry in self.document.metrics}
        self._require_each_once(len(entries), len(self.document.metrics), "metrics of one thing")
        return entries

    def _require_each_once(self, different: int, found: int, what: str) -> None:
        if different != found:
            raise DataError(f"{self.path} holds two {what}; it was put together by hand.")

    def gemm_gflops(self, workload: str) -> tuple[float, ...]:
        """The host's GEMM rate in each round, GFLOP/s; empty where it was not measured."""
        return self.document.host.gemm_samples_gflops.get(workload, ())


@dataclass(frozen=True)
class Verdict:
    """One row of both files; ``per_gemm`` is the ratio per unit of the host's GEMM rate, if known."""

    result: BenchRow
    ratio: Ratio
    per_gemm: Ratio | None
    regressed: bool
    too_few: bool = False  # samples: nothing counts as slower


@dataclass(frozen=True)
class Comparison:
    """All rows, figures that do not depend on time, what only one file has, and what a reader should know."""

    verdicts: tuple[Verdict, ...]
    metrics: tuple[MetricVerdict, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Verdict, ...]:
        """The rows that are slower beyond noise and threshold."""
        return tuple(verdict for verdict in self.verdicts if verdict.regressed)

    @property
    def grown(self) -> tuple[MetricVerdict, ...]:
        """The figures that do not depend on time and grew beyond what they may."""
        return tuple(verdict for verdict in self.metrics if verdict.grown)

    @property
    def failed(self) -> bool:
        """Whether a gate stays shut."""
        return bool(self.regressions or self.grown)

    def to_json(self, max_regression: float) -> dict[str, Any]:
        """Plain data, as ``compare --json`` prints it."""
        results = [
            {
                "result": verdict.result.label,
                "ratio": asdict(verdict.ratio),
                "ratio_per_gemm": asdict(verdict.per_gemm) if verdict.per_gemm else None,
                "regressed": verdict.regressed,
            }
            for verdict in self.verdicts
        ]
        judged = {"schema": "edgepeft.compare/1", "max_regression": max_regression, "regressed": self.failed}
        metrics = [{**asdict(each), "grown": each.grown} for each in self.metrics]
        others = {"missing": list(self.missing), "added": list(self.added), "notes": list(self.notes)}
        return {**judged, "results": results, "metrics": metrics, **others}


def compare_results(
    base: ResultFile, new: ResultFile, max_regression: float, *, normalise: bool = False, partial: bool = False
) -> Comparison:
    """Match rows by what they measured and judge each; a loss of throughput of ``max_regression`` in [0, 1) may pass.

    ``normalise`` judges throughput per unit of the GEMM rate of the same run, also of other hosts; ``partial`` what
    both files hold, though the new one lacks rows of the base.
    """
    if not 0.0 <= max_regression < 1.0:
        raise UsageError(f"--max-regression must be from 0 % to under 100 %, got {max_regression:.0%}.")
    before, now = (file.document.mode for file in (base, new))
    if before != now:
        raise UsageError(
            f"{base.path} and {new.path} cannot be compared: mode was {before} and is {now}, which are different "
            "kinds of figures. Give both with the same --mode."
        )
    if now == "predicted":
        raise UsageError(f"{new.path} was predicted: nothing was measured that could have become slower.")
    # Per unit of GEMM rate, the number of threads drops out.
    both = (file.by_key(with_threads=not normalise) for file in (base, new))
    old, fresh = ({key: row for key, row in rows.items() if row.samples_s} for rows in both)
    common = [key for key in old if key in fresh]
    missing = tuple(old[key].label for key in old if key not in fresh)
    added = tuple(fresh[key].label for key in fresh if key not in old)
    metrics, lacking = _judge_metrics(base, new)
    listed = "".join(f"\n  only in {base.path}: {label}" for label in (*missing, *lacking))
    listed += "".join(f"\n  only in {new.path}: {label}" for label in added)
    if not (common or metrics):
        raise UsageError(
            f"{base.path} and {new.path} have no measured result in common; run both with the same options.{listed}"
        )
    if (missing or lacking) and not partial:  # a gate that silently judged less than the baseline holds would be none
        raise UsageError(
            f"{new.path} lacks results that {base.path} has; measure the same tasks and lengths, take a new baseline, "
            f"or judge what both hold with --partial.{listed}"
        )
    notes = _conditions(base, new, normalise) if common else []
    verdicts = tuple(_verdict(old[key], fresh[key], base, new, max_regression, normalise=normalise) for key in common)
    notes += [f"{v.result.label}: too few samples to judge; measure more rounds" for v in verdicts if v.too_few]
    for workload in dict.fromkeys(verdict.result.workload for verdict in verdicts):
        speeds = base.gemm_gflops(workload), new.gemm_gflops(workload)
        if not all(speeds):
            notes.append(f"{workload}: no GEMM rate in both files; a slower host would look like slower code")
        elif abs((host := 1.0 / ratio_of_medians((1.0,), (1.0,), *speeds).value) - 1.0) > _HOST_MOVED:
            notes.append(f"{workload}: the host's GEMM rate was {host - 1.0:+.1%} against the base run")
    return Comparison(verdicts, tuple(metrics), (*missing, *lacking), added, tuple(notes))


def _verdict(
    old: BenchRow, fresh: BenchRow, base: ResultFile, new: ResultFile, max_regression: float, *, normalise: bool
) -> Verdict:
    n_old, n_fresh, ratio = len(old.samples_s), len(fresh.samples_s), ratio_of_medians(old.samples_s, fresh.samples_s)
    if old.mixed:  # of sums over the same batches where these are not alike
        common = min(n_old, n_fresh)
        ratio = ratio_of_totals(fresh.samples_s[:common], old.samples_s[:common])
    speeds = base.gemm_gflops(old.workload), new.gemm_gflops(fresh.workload)
    per_gemm = None
    if all(speeds):
        per_gemm = ratio_of_medians(old.samples_s, fresh.samples_s, *speeds)
        if old.mixed:  # both uncertainties added: an interval that is rather too wide than too narrow
            by = ratio_of_medians((1.0,), (1.0,), *speeds)
            per_gemm = Ratio(ratio.value * by.value, ratio.low * by.low, ratio.high * by.high, ratio.rounds)
    if normalise and per_gemm is None:
        raise UsageError(
            f"--normalise needs the host's GEMM rate beside {fresh.label}; {base.path} or {new.path} has none. "
            "Measure it again with this version."
        )
    slower = all(one.high < 1.0 - max_regression for one in (None if normalise else ratio, per_gemm) if one)
    # Whether chance puts all of one run's samples above the other's more often than the confidence allows.
    too_few = 1 / comb(n_old + n_fresh, n_old) > 1 - CONFIDENCE + 1e-9
    return Verdict(fresh, ratio, per_gemm, slower and not too_few, too_few)


def _conditions(base: ResultFile, new: ResultFile, normalise: bool) -> list[str]:
    """List what differs around the two runs; refuse to compare where times would mean nothing."""
    before, now = _facts(base.document), _facts(new.document)
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    differences = [f"{name} was {before.get(name)} and is {now.get(name)}" for name in names]
    if differences and not normalise:
        raise UsageError(
            f"{base.path} and {new.path} cannot be compared: {'; '.join(differences)}. Measure both on the "
            "same host under the same limits with the same packages, or judge per unit of the GEMM rate: --normalise."
        )
    return [f"{difference} (per unit of the GEMM rate it is judged all the same)" for difference in differences]


def _facts(result: BenchResult) -> dict[str, str]:
    """Return what must agree for throughputs to be comparable; edgepeft's own version need not."""
    host, limits = result.host, result.profile.limits
    if result.mode == "calibrated":  # another quota each time, so that the host's speed drops out
        without = {"cpu_quota": None}
        parts = {"requested": limits.requested, "in_force": limits.in_force}
        limits = limits.model_copy(update={k: part and part.model_copy(update=without) for k, part in parts.items()})
    return {
        "host cpu": str(host.cpu),
        "host isa": str(host.isa and list(host.isa)),
        "host cores": str(host.cores and host.cores.to_json()),
        "profile name": str(result.profile.name),
        "profile limits": str(limits.to_json()),
        **{f"{name}'s version": host.versions[name] for name in sorted(host.versions) if name != "edgepeft"},
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
        """Change as a share of the old figure; infinite from nothing to something."""
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


def _judge_metrics(base: ResultFile, new: ResultFile) -> tuple[list[MetricVerdict], list[str]]:
    """Every figure that both hold, and the names of those that the new one lacks."""
    fresh, verdicts, lacking = new.metrics(), [], []
    for label, values in base.metrics().items():
        now = fresh.get(label, {})
        for name, before in values.items():
            if name in now:
                verdicts.append(MetricVerdict(label, name, before, now[name]))
            elif name != "instructions":  # counted where QEMU is; elsewhere the rest is judged
                lacking.append(f"{name} of {label}")
    return verdicts, lacking
