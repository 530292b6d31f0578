"""What a suite measures with: bundles and peers made once, workers under the profile's limits, races between them."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.peers import PEERS
from bench.suites._random_bundle import Structure, config_in, write_bundle
from edgepeft.backbones.base import Architecture, family_of
from edgepeft.bench.measuring.measure import ProgressCallback, WorkerProcess
from edgepeft.bench.measuring.sampler import Sample, Schedule, Series, sample_rounds
from edgepeft.bench.planning.job import Batches, Job, batches_of
from edgepeft.bench.planning.scenario import load_lengths
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import DeltaDtype, WeightsDtype
from edgepeft.common.errors import EdgepeftError
from edgepeft.device.placement import InForce, Limits
from edgepeft.runtime.session_pool import SessionPool

SETS = ("sst2", "mrpc", "rte")  # whose texts' lengths are measured


@dataclass(frozen=True)
class Racer:
    """A worker's job, and which of its requests or batches stands for this side of a comparison.

    ``python``: the interpreter that has what it needs, where that is not ours.
    """

    job: Job
    batches: Sequence[int] = (0,)
    python: str = ""


@dataclass
class SuiteRun:
    """One run of a suite.  ``work`` is a folder for bundles and peers; ``rounds`` are those of each comparison.

    ``cases`` are those to measure, of a suite that has any, all if there is none; ``pythons`` the interpreters of peers
    that are installed apart from us.
    """

    work: Path
    architecture: str
    limits: Limits
    threads: int
    rounds: int
    max_seconds: float
    seed: int = 0
    cases: Sequence[str] = ()
    pythons: Mapping[str, str] = field(default_factory=dict)
    progress: ProgressCallback = lambda what, done, total: None
    in_force: InForce | None = None
    gemm: list[float] = field(default_factory=list)  # seconds of every step of the yardstick
    peaks: dict[str, int] = field(default_factory=dict)  # resident bytes of each side of the last race
    again: dict[str, list[float]] = field(default_factory=dict)  # seconds of each turn's second step, of that race
    versions: dict[str, str] = field(default_factory=dict)  # of peers' packages, by the peer's name in the rows

    @property
    def sizes(self) -> Architecture:
        """The architecture's sizes."""
        config = config_in(self.architecture)
        return family_of(config).architecture(config)

    def bundle(
        self,
        name: str,
        structures: Sequence[Structure] = (),
        *,
        weights: WeightsDtype = "fp32",
        delta_weights: DeltaDtype = "fp32",
    ) -> Path:
        """Make a bundle of random weights, or those of a folder, at the first call and pack its weights in the cache;
        return its folder."""
        folder = self.work / name
        if not folder.exists():
            self.progress(f"making {name}", 0, 1)
            part = _fresh(folder)
            write_bundle(
                part, self.architecture, structures, weights=weights, delta_weights=delta_weights, seed=self.seed
            )
            part.rename(folder)
            packed = SessionPool(Bundle(folder), cache=True, threads=None)
            packed.prepare()
            packed.close()
        return folder

    def peer(self, name: str, *, of: Path | None = None, task: str = "") -> Path | str:
        """A peer's model of the same weights as ``bundle``'s, or as that task's of the bundle ``of``; a string is the
        reason why there is none."""
        peer, own = PEERS[name], [task] if task else []
        out = self.work / "-".join(["peer", name, *own])
        result = out / peer.result
        python = self.pythons.get(name, "")
        if not installed(peer.module, python):
            where = f"for {python}" if python else "(pip install 'edgepeft[peers]')"
            return f"{peer.module} is not installed {where}"
        if result.is_file():
            return result
        self.progress(" ".join(["exporting with", name, *own]), 0, 1)
        part = _fresh(out)
        command = [python or sys.executable, "-m", "bench.peers", name, str(of or self.plain()), str(part), *own]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_offline())
        if not (part / peer.result).is_file():
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            return f"{name} did not export the model: {last[:300]}"
        part.rename(out)
        return result

    def note_versions(self, name: str, packages: Sequence[str], python: str = "") -> None:
        """Keep the versions of a peer's packages, of its own interpreter if it has one, for the result."""
        code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
        command = [python or sys.executable, "-c", code, *packages]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        self.versions[name] = ", ".join(" ".join(pair) for pair in zip(packages, found, strict=True))

    def plain(self) -> Path:
        """Config and weights of ``bundle``'s bare model alone, as a model's publisher has them."""
        bundle, folder = self.bundle("bare"), self.work / "plain"
        folder.mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            if not (folder / name).exists():
                os.link(bundle / name, folder / name)
        return folder

    def real_batches(self, name: str, rows: int) -> Batches:
        """The lengths of a data set's texts in order of arrival, so many rows a batch."""
        return batches_of(load_lengths(name, seed=self.seed).clamped(self.sizes.max_length).values, rows)

    def job(self, workload: str, bundle: Path, **more: object) -> Job:
        """A worker's job on that bundle."""
        sizes = self.sizes
        given = {"vocab_size": sizes.vocab_size, "pad_id": sizes.pad_token_id, "seed": self.seed, **more}
        return Job(workload, self.threads, bundle=str(bundle), **given)  # type: ignore[arg-type]

    @contextmanager
    def worker(self, label: str, job: Job, python: str = "") -> Iterator[WorkerProcess]:
        """Start a worker, of another interpreter if one is named, and wait until it is loaded."""
        with WorkerProcess(label, job, self.limits, python=python) as worker:
            worker.ready()
            self.in_force = worker.in_force
            yield worker

    def race(
        self,
        what: str,
        racers: Mapping[str, Racer],
        *,
        rounds: int | None = None,
        warmup: int = 2,
        together: int = 1,
        slowest: float = math.inf,
        twice: bool = False,
    ) -> dict[str, list[float]]:
        """Measure all sides in the same rounds, in a new order each; seconds by side, "gemm" is the yardstick.

        Time ends it after whole groups of ``together`` rounds, so that forms that take turns have as many each.
        With ``twice`` each does its step once more in its turn, with the caches as the first has left them: ``again``.
        A side whose last step to warm up takes ``slowest`` times the first one's has that single sample, for it would
        take most of every round.
        """
        everyone = {**racers, "gemm": Racer(Job("gemm", self.threads))}
        self.peaks = {}
        with ExitStack() as stack:
            sides: dict[str, _Side] = {}
            for number, (label, racer) in enumerate(everyone.items()):
                self.progress(f"{what}: loading {label}", number, len(everyone))
                sides[label] = _Side(stack.enter_context(self.worker(label, racer.job, racer.python)), racer.batches)
            self.progress(f"{what}: warming up", 0, 1)
            # The first step may open a session; the last one says how slow a side is.
            warm = {label: [side.step(batch).seconds for batch in range(warmup)][-1] for label, side in sides.items()}
            for side in sides.values():
                side.again = [] if twice else None
            slow = {label: [warm[label]] for label in racers if warm[label] > slowest * warm[next(iter(racers))]}
            series = sample_rounds(
                {label: side for label, side in sides.items() if label not in slow},
                Schedule(
                    n_batches=max(len(racer.batches) for racer in everyone.values()),
                    warmup_batches=(),
                    rounds=rounds or self.rounds,
                    max_seconds=self.max_seconds,
                    seed=self.seed,
                    together=together,
                ),
                progress=lambda done, total: self.progress(what, done, total),
            )
            seconds = {label: _seconds(one) for label, one in series.items()} | slow
            self.again = {label: side.again or [] for label, side in sides.items()}
            if not any(one.interrupted for one in series.values()):  # then one may still be in its step
                self.peaks = {label: side.worker.finish() for label, side in sides.items()}
        self.gemm += seconds["gemm"]
        return seconds

    def command(self, arguments: Sequence[str]) -> float:
        """Run ``edgepeft ARGUMENTS``; return the wall seconds from its start to its end."""
        started = time.perf_counter()
        code = "from edgepeft.cli._main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=_offline()
        )
        took = time.perf_counter() - started
        if done.returncode:
            raise EdgepeftError(f"edgepeft {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
        return took


def _fresh(folder: Path) -> Path:
    """Where it is made: what was stopped before it was whole is begun anew."""
    part = folder.with_name(f"{folder.name}.part")
    for stale in (part, folder):
        shutil.rmtree(stale, ignore_errors=True)
    return part


class _Side:
    """A worker in a race: batch i of the race is its i-th batch, modulo their number."""

    def __init__(self, worker: WorkerProcess, batches: Sequence[int]) -> None:
        self.worker, self._batches = worker, batches
        self.again: list[float] | None = None

    def step(self, batch: int) -> Sample:
        number = self._batches[batch % len(self._batches)]
        sample = self.worker.step(number, rest=self.again is None)
        if self.again is not None:
            self.again.append(self.worker.step(number).seconds)
        return sample


def _seconds(series: Series) -> list[float]:
    if series.failure is not None:
        raise series.failure
    return [sample.seconds for sample in series.samples]


def proportional_bytes(pid: int) -> int:
    """Proportional memory (PSS) of a living process: a page that n processes map counts 1/n for each."""
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except (psutil.Error, AttributeError) as error:  # Linux 4.14 and later tell
        raise EdgepeftError(f"the proportional memory of process {pid} cannot be read here ({error}).") from error


def installed(module: str, python: str = "") -> bool:
    """Whether that package is there, found without importing it."""
    if python:
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        command = [python, "-c", code, module]
        return not subprocess.run(command, capture_output=True, check=False).returncode
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it lies in
        return False


def _offline() -> dict[str, str]:
    repository = str(Path(__file__).resolve().parents[2])  # another interpreter does not have it installed
    paths = os.pathsep.join([repository, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "HF_HUB_OFFLINE": "1",
        "ORT_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "",  # set, it has every start compile edgepeft anew, which no installation does
    }
