"""Two versions side by side in one run, the only way to a sure verdict on a host whose speed moves.

Every unit has a worker of each version; both do the same batch in every round, in an order shuffled anew, so what
the host does meanwhile hits both alike.  A process keeps the luck of its start (where its pages lie), so rounds are
split over several launches.  The verdict is of the paired ratios: slower where the whole 95 % interval lies below 1
and the median is below 1 - max_regression, the smallest loss that matters.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edgepeft.bench.measure import Measured, Progress, Schedule, Start, measure
from edgepeft.bench.plan import Unit
from edgepeft.bench.revision import Revision, open_revision
from edgepeft.bench.sampler import Series
from edgepeft.bench.statistics import CONFIDENCE, Ratio, paired_ratio
from edgepeft.errors import EdgepeftError, UsageError

__all__ = ["LAUNCHES", "SideBySide", "verdict"]

LAUNCHES = 2  # each loads every model twice; more of them cost more than they teach
_PROBE_EVERY = 10  # rounds: the ratio is what counts, and a probe can take longer than all steps of its round


def verdict(ratio: Ratio, max_regression: float) -> str:
    """``slower``, ``faster`` or ``same``: beyond noise, and by more than the smallest change that matters."""
    if ratio.high < 1.0 and ratio.value < 1.0 - max_regression:
        return "slower"
    return "faster" if ratio.low > 1.0 and ratio.value > 1.0 / (1.0 - max_regression) else "same"


@dataclass(frozen=True)
class BaseUnit(Unit):
    """A unit of the other version."""

    @property
    def label(self) -> str:
        """The same unit's, marked."""
        return f"{super().label} of the base"


@dataclass
class SideBySide:
    """What takes the place of ``measure`` in a run: it measures both versions, and remembers the other one's samples.

    ``bundles``: where the other version's own bundle lies, by this one's.
    """

    revision: Revision
    launches: int = LAUNCHES
    bundles: dict[str, str] = field(default_factory=dict)
    base: dict[str, Series] = field(default_factory=dict)

    @classmethod
    def open(cls, asked: str, stack: ExitStack, *, launches: int = LAUNCHES) -> SideBySide:
        """Get the other version; what is made for it is removed when ``stack`` closes.

        Raises:
            UsageError: there is no such version, or it cannot be measured.
        """
        if launches < 1:
            raise UsageError(f"--launches must be at least 1, got {launches}.")
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepeft-against-")))
        return cls(open_revision(asked, work), launches)

    def make_random(self, folder: Path, stack: ExitStack, name: str, **options: Any) -> None:
        """The other version's own bundle beside the random one in ``folder``."""
        work = stack.enter_context(tempfile.TemporaryDirectory(prefix="edgepeft-base-"))
        self.revision.random_bundle(Path(work), name, **options)
        for file in folder.glob("tokenizer*.json"):
            shutil.copy(file, work)
        self.bundles[str(folder)] = work

    def __call__(
        self,
        units: Sequence[Unit],
        schedule: Schedule,
        start: Start,
        *,
        threads: int,
        progress: Progress = lambda what, done, total: None,
        **options: Any,
    ) -> list[Measured]:
        """As ``measure``: this version's units, with the samples of all launches.

        Raises:
            EdgepeftError: a worker ended for another reason than memory.
        """
        found: dict[str, Measured] = {}
        launches = min(self.launches, schedule.rounds)
        for launch in range(launches):
            share = schedule.rounds // launches + (launch < schedule.rounds % launches)
            part = replace(
                schedule,
                rounds=share,
                max_seconds=schedule.max_seconds / launches,
                seed=schedule.seed + launch,
                probe_every=_PROBE_EVERY,
            )
            bases = [self._other(unit) for unit in units if unit.job]
            both = measure(
                [*units, *bases],
                part,
                start,
                threads=threads,
                progress=lambda what, done, total: progress(f"launch {launch + 1}, {what}", done, total),  # noqa: B023
                **options,
            )
            for one in both:
                self._keep(one, found)
        return [one for one in found.values() if not isinstance(one.unit, BaseUnit)]

    def _other(self, unit: Unit) -> BaseUnit:
        assert unit.job is not None
        job = replace(unit.job, package=str(self.revision.path), bundle=self._bundle(unit.job.bundle))
        fields = {name: getattr(unit, name) for name in Unit.__dataclass_fields__}
        return BaseUnit(**{**fields, "job": job.known_to(self.revision.fields, self.revision.asked)})

    def _bundle(self, folder: str) -> str:
        return self.bundles.get(folder, folder)

    def _keep(self, one: Measured, found: dict[str, Measured]) -> None:
        """Samples of a later launch go behind those of the first."""
        label = one.unit.label
        if isinstance(one.unit, BaseUnit):
            if one.failure is not None:
                raise EdgepeftError(f"{self.revision.described} cannot be measured: {one.failure}")
            _append(self.base.setdefault(label, Series()), one.series)
            return
        if label not in found:
            found[label] = one
            return
        first = found[label]
        for name in ("series", "gemm", "pytorch_gemm", "reference"):
            _append(getattr(first, name), getattr(one, name))
        first.failure = first.failure or one.failure
        first.peak_rss_bytes = max(filter(None, (first.peak_rss_bytes, one.peak_rss_bytes)), default=None)

    def annotate(self, document: dict[str, Any], measured: Sequence[Measured], max_regression: float) -> list[str]:
        """Put each row's verdict beside it; the labels of those that are slower."""
        slower = []
        document["against"] = {"asked": self.revision.asked, "base": self.revision.described, "launches": self.launches}
        document["against"] |= {"max_regression": max_regression, "confidence": CONFIDENCE}
        for row, one in zip(document["results"], measured, strict=True):
            base = self.base.get(f"{one.unit.label} of the base")
            own = [sample.seconds for sample in one.series.samples]
            theirs = [sample.seconds for sample in base.samples] if base else []
            if not own or len(own) != len(theirs):
                row["against"] = None
                continue
            ratio = paired_ratio(own, theirs)
            said = verdict(ratio, max_regression)
            row["against"] = {**asdict(ratio), "verdict": said, "base_samples_s": theirs}
            if said == "slower":
                slower.append(one.unit.label)
        return slower


def _append(to: Series, more: Series) -> None:
    to.warmup += more.warmup
    to.samples += more.samples
    to.batches += more.batches
