"""Two versions side by side in one run, the only reliable verdict on a host whose speed drifts.

Every unit has a worker of each version; both do the same batch in every round, in shuffled order, so the host's drift
affects both alike.  Speed also depends on a process's memory layout, so rounds are
split over several launches.  The verdict is of the paired ratios: slower where the whole 95 % interval lies below 1
and the median is below 1 - max_regression, the smallest loss that matters.

The other version is a git revision, or a folder that holds the package.  Its workers have it first on their path, and
everything else as it is here: the same Python, ONNX Runtime and NumPy, so that edgepeft alone differs.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from edgepeft.bench.measuring.measure import Measured, Measuring, measure_units, worse
from edgepeft.bench.measuring.sampler import Schedule, Series
from edgepeft.bench.planning.plan import Unit
from edgepeft.bench.result.conditions import REPOSITORY, git, in_force_of
from edgepeft.bench.result.schema import AgainstRatio, AgainstRecord, BenchResult, BenchRow
from edgepeft.bench.result.statistics import CONFIDENCE, Ratio, paired_ratio
from edgepeft.common.errors import EdgepeftError, UsageError

LAUNCHES = 2  # each loads every model twice; more of them cost more than they teach
_SERIES = ("series", "gemm", "pytorch_gemm", "reference")  # the fields of Measured that hold samples
_PROBE_EVERY = 10  # rounds: the ratio is what counts, and a probe can take longer than all steps of its round
_PROBE = """
import dataclasses, json, edgepeft
from edgepeft.bench.measuring import worker
from edgepeft.bench.planning.job import Job
print(json.dumps({"file": edgepeft.__file__, "version": edgepeft.__version__,
                  "fields": [field.name for field in dataclasses.fields(Job)]}))
"""
_RANDOM = """
import json, sys
from pathlib import Path
from edgepeft.bench.planning.target import random_subject
asked = json.loads(sys.argv[1])
random_subject(asked.pop("name"), Path(asked.pop("folder")), **asked)
"""


def verdict(ratio: Ratio, max_regression: float) -> Literal["slower", "same", "faster"]:
    """``slower``, ``faster`` or ``same``: beyond noise, and by more than the smallest change that matters."""
    if ratio.high < 1.0 and ratio.value < 1.0 - max_regression:
        return "slower"
    return "faster" if ratio.low > 1.0 and ratio.value > 1.0 / (1.0 - max_regression) else "same"


@dataclass
class SideBySide:
    """Takes the place of ``measure_units`` in a run: measures both versions, and keeps the other one's samples."""

    revision: Revision
    launches: int = LAUNCHES
    bundles: dict[str, str] = field(default_factory=dict)  # the other version's own, by this one's
    base: dict[str, Measured] = field(default_factory=dict)  # by the label of this one's unit

    @classmethod
    def open(cls, asked: str, stack: ExitStack, *, launches: int = LAUNCHES) -> SideBySide:
        """Get the other version; what is made for it is removed when ``stack`` closes."""
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

    def __call__(self, units: Sequence[Unit], schedule: Schedule, how: Measuring) -> list[Measured]:
        """As ``measure_units``: this version's units, with the samples of all launches."""
        launches, done, revision = min(self.launches, schedule.rounds), list[list[Measured]](), self.revision
        everyone = list(units)
        for unit in units:
            if unit.job:
                bundle = self.bundles.get(unit.job.bundle, unit.job.bundle)
                job = replace(unit.job, package=str(revision.path), bundle=bundle)
                everyone.append(replace(unit, job=job.known_to(revision.fields, revision.asked), base=True))
        for launch in range(launches):
            share = schedule.rounds // launches + (launch < schedule.rounds % launches)
            seconds, seed = schedule.max_seconds / launches, schedule.seed + launch
            part = replace(schedule, rounds=share, max_seconds=seconds, seed=seed, probe_every=_PROBE_EVERY)
            own_part = replace(
                how,
                progress=lambda what, *n, of=f"launch {launch + 1}": how.progress(f"{of}, {what}", *n),
                budget=how.budget.part(launches - launch),
            )
            done.append(measure_units(everyone, part, own_part))
            if failed := next((one.series.failure for one in done[-1] if one.unit.base and one.series.failure), None):
                raise EdgepeftError(f"{revision.described} cannot be measured: {failed}")
            if any(one.series.interrupted for one in done[-1]):
                break
        joined = [_joined(launched) for launched in zip(*done, strict=True)]
        self.base = {replace(one.unit, base=False).label: one for one in joined if one.unit.base}
        own = [one for one in joined if not one.unit.base]
        for one in own:  # those that were done before Ctrl-C lack a launch too
            one.series.interrupted = one.series.interrupted or len(done) < launches
            if (base := self.base.get(one.unit.label)) is not None:
                # Limits that the other version lost make the pair unequal too.
                one.in_force = in_force_of([one, base])
                one.series.left_out = one.series.left_out or base.series.left_out  # then it has no verdict
                one.notes += tuple(f"{revision.asked}: {note}" for note in base.notes if note not in one.notes)
        return own

    def annotate(
        self, result: BenchResult, measured: Sequence[Measured], max_regression: float
    ) -> tuple[BenchResult, list[str]]:
        """The result with each row's verdict beside it, and the labels of the rows that are slower."""
        rows, slower = list[BenchRow](), list[str]()
        for row, one in zip(result.results, measured, strict=True):
            base, own, judged = self.base.get(one.unit.label), one.series.seconds, None
            theirs = base.series.seconds if base else []
            if own and len(own) == len(theirs):  # else it has no samples of the same rounds
                ratio = paired_ratio(own, theirs)
                said = "interrupted" if one.series.interrupted else verdict(ratio, max_regression)
                judged = AgainstRatio(**asdict(ratio), verdict=said, base_samples_s=tuple(theirs))
                if said == "slower":
                    slower.append(one.unit.label)
            rows.append(row.model_copy(update={"against": judged}))
        record = AgainstRecord(
            asked=self.revision.asked,
            base=self.revision.described,
            launches=self.launches,
            max_regression=max_regression,
            confidence=CONFIDENCE,
        )
        return result.model_copy(update={"results": tuple(rows), "against": record}), slower


def _joined(launches: Sequence[Measured]) -> Measured:
    """What several launches measured of a unit, as one."""
    joined = {name: Series.joined([getattr(one, name) for one in launches]) for name in _SERIES}
    return Measured(
        launches[0].unit,
        **joined,
        peak_rss_bytes=max(filter(None, (one.peak_rss_bytes for one in launches)), default=None),
        in_force=in_force_of(launches),
        notes=tuple(dict.fromkeys(note for one in launches for note in one.notes)),
        load=reduce(worse, (one.load for one in launches)),
    )


@dataclass(frozen=True)
class Revision:
    """A version of edgepeft: the folder that goes on the path, and the fields of a job that its workers know."""

    asked: str
    described: str
    path: Path
    fields: frozenset[str]

    def random_bundle(self, folder: Path, name: str, **options: Any) -> None:
        """Random weights of a named architecture, written by that version's own code."""
        asked = {"name": name, "folder": str(folder), **options}
        _run(self.path, self.asked, ["-c", _RANDOM, json.dumps(asked)])


def open_revision(asked: str, work: Path) -> Revision:
    """Find it, and unpack or install it into ``work`` where it is not a folder already."""
    path, described = _found(asked, work)
    facts = json.loads(_run(path, asked, ["-c", _PROBE]))
    if not Path(facts["file"]).resolve().is_relative_to(path.resolve()):
        raise EdgepeftError(f"--against {asked}: {facts['file']} was imported instead of {path}.")
    return Revision(asked, f"{described} (edgepeft {facts['version']})", path, frozenset(facts["fields"]))


def _found(asked: str, work: Path) -> tuple[Path, str]:
    folder = Path(asked)
    if asked and (folder / "edgepeft" / "__init__.py").is_file():
        return folder.resolve(), f"the package in {asked}"
    for place in (REPOSITORY, Path.cwd()) if asked else ():
        # --end-of-options: a name that begins with a dash must not become one.
        named = git(place, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{asked}^{{commit}}")
        commit = named.stdout.decode().strip()
        # Another project's folder has revisions too.
        if named.returncode or git(place, "cat-file", "-e", f"{commit}:edgepeft/__init__.py").returncode:
            continue
        top = git(place, "rev-parse", "--show-toplevel").stdout.decode().rstrip("\n")  # else git packs a folder
        done = git(Path(top), "archive", "--format=tar", commit)
        if done.returncode:
            raise EdgepeftError(f"git cannot unpack {commit}: {done.stderr.decode().strip()}.")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # which Python 3.11.3 has not
            archive.extractall(work)
        return work, f"commit {commit[:12]}"
    # Never from a package index: nobody of us holds the name there.
    raise UsageError(
        f"--against {asked}: neither a git revision of {REPOSITORY} or of this folder, nor a folder that holds the "
        "package edgepeft. Of a release give its tag (after git fetch --tags), or where its wheel is unpacked: pip "
        "install --no-deps --target FOLDER edgepeft-VERSION-py3-none-any.whl."
    )


def _run(path: Path, asked: str, arguments: list[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path), "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}
    # -P: a checkout in the current folder must not come before the version that was asked for.
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        raise UsageError(f"--against {asked}: that version cannot be measured beside this one ({last[:300]}).")
    return done.stdout
