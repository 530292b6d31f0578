"""What a suite measures with: bundles and peers made once, workers under the profile's limits, races between them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import openvino, optimum
from bench.suites._random_bundle import Structure, write_bundle
from edgepeft.backbones.base import Architecture, family_of
from edgepeft.backbones.config import config_of
from edgepeft.bench.measuring.measure import ProgressCallback
from edgepeft.bench.measuring.process import WorkerProcess
from edgepeft.bench.measuring.sampler import Sample, Schedule, Series, sample_rounds
from edgepeft.bench.planning.job import Job
from edgepeft.errors import EdgepeftError
from edgepeft.limits.limited_process import InForce, Limits
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.manifest import DeltaDtype, WeightsDtype
from edgepeft.runtime.weights import Weights

__all__ = ["Racer", "SuiteRun"]

# The module that exports, the package that it needs, the file that it writes.
_PEERS: dict[str, tuple[str, str, str]] = {
    "optimum": (optimum.__name__, optimum.MODULE, optimum.RESULT),
    "openvino": (openvino.__name__, openvino.MODULE, openvino.RESULT),
}


@dataclass(frozen=True)
class Racer:
    """A worker's job, and which of its requests or batches stands for this side of a comparison."""

    job: Job
    batches: Sequence[int] = (0,)


@dataclass
class SuiteRun:
    """One run of a suite.  ``work`` is a folder for bundles and peers; ``rounds`` are those of each comparison."""

    work: Path
    architecture: str
    limits: Limits
    threads: int
    rounds: int
    max_seconds: float
    seed: int = 0
    progress: ProgressCallback = lambda what, done, total: None
    in_force: InForce | None = None
    gemm: list[float] = field(default_factory=list)  # seconds of every step of the yardstick
    peaks: dict[str, int] = field(default_factory=dict)  # resident bytes of each side of the last race

    @property
    def sizes(self) -> Architecture:
        """The architecture's sizes."""
        config = config_of(self.architecture)
        return family_of(config).architecture(config)

    def bundle(
        self,
        name: str,
        structures: Sequence[Structure] = (),
        *,
        weights: WeightsDtype = "fp32",
        delta_weights: DeltaDtype = "fp32",
    ) -> Path:
        """Make a bundle of random weights at the first call and pack its weights in the cache; return its folder."""
        folder = self.work / name
        if not folder.exists():
            self.progress(f"making {name}", 0, 1)
            write_bundle(
                folder, self.architecture, structures, weights=weights, delta_weights=delta_weights, seed=self.seed
            )
            packed = Weights(Bundle(folder), cache=True, threads=None)
            packed.prepare()
            packed.close()
        return folder

    def peer(self, name: str) -> Path | str:
        """A peer's model of the same weights as ``bundle``'s; a string is the reason why there is none."""
        module, package, file = _PEERS[name]
        out = self.work / f"peer-{name}"
        result = out / file
        if result.is_file():
            return result
        if not _installed(package):
            return f"{name} is not installed (pip install 'edgepeft[peers]')"
        self.progress(f"exporting with {name}", 0, 1)
        source = _plain(self.bundle("bare"), self.work / "plain")
        command = [sys.executable, "-m", module, str(source), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_offline())
        if not result.is_file():
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            return f"{name} did not export the model: {last[:300]}"
        return result

    @staticmethod
    def installed(module: str) -> bool:
        """Whether that package is there, found without importing it."""
        return _installed(module)

    def job(self, workload: str, bundle: Path, **more: object) -> Job:
        """A worker's job on that bundle."""
        sizes = self.sizes
        given = {"vocab_size": sizes.vocab_size, "pad_id": sizes.pad_token_id, "seed": self.seed, **more}
        return Job(workload, self.threads, bundle=str(bundle), **given)  # type: ignore[arg-type]

    @contextmanager
    def worker(self, label: str, job: Job) -> Iterator[WorkerProcess]:
        """Start a worker and wait until it is loaded."""
        with WorkerProcess(label, job, self.limits) as worker:
            worker.ready()
            self.in_force = worker.in_force
            yield worker

    def race(
        self, what: str, racers: Mapping[str, Racer], *, rounds: int | None = None, warmup: int = 2
    ) -> dict[str, list[float]]:
        """Measure all sides in the same rounds, in a new order each; seconds by side, "gemm" is the yardstick."""
        everyone = {**racers, "gemm": Racer(Job("gemm", self.threads))}
        self.peaks = {}
        with ExitStack() as stack:
            sides: dict[str, _Side] = {}
            for number, (label, racer) in enumerate(everyone.items()):
                self.progress(f"{what}: loading {label}", number, len(everyone))
                sides[label] = _Side(stack.enter_context(self.worker(label, racer.job)), racer.batches)
            series = sample_rounds(
                sides,
                Schedule(
                    n_batches=max(len(racer.batches) for racer in everyone.values()),
                    warmup_batches=tuple(range(warmup)),
                    rounds=rounds or self.rounds,
                    max_seconds=self.max_seconds,
                    seed=self.seed,
                ),
                progress=lambda done, total: self.progress(what, done, total),
            )
            seconds = {label: _seconds(one) for label, one in series.items()}
            self.peaks = {label: side.finish() for label, side in sides.items()}
        self.gemm += seconds["gemm"]
        return seconds

    def command(self, arguments: Sequence[str]) -> float:
        """Run ``edgepeft ARGUMENTS``; return the wall seconds from its start to its end.

        Raises:
            EdgepeftError: it failed.
        """
        started = time.perf_counter()
        code = "from edgepeft.cli._main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=_offline()
        )
        took = time.perf_counter() - started
        if done.returncode:
            raise EdgepeftError(f"edgepeft {' '.join(arguments)} failed: {done.stderr.strip()[-300:]}")
        return took


class _Side:
    """A worker in a race: batch i of the race is its i-th batch, modulo their number."""

    def __init__(self, worker: WorkerProcess, batches: Sequence[int]) -> None:
        self._worker, self._batches = worker, batches

    def finish(self) -> int:
        return self._worker.finish()

    def step(self, batch: int) -> Sample:
        return self._worker.step(self._batches[batch % len(self._batches)])


def _seconds(series: Series) -> list[float]:
    if series.failure is not None:
        raise series.failure
    return [sample.seconds for sample in series.samples]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it lies in
        return False


def _plain(bundle: Path, folder: Path) -> Path:
    """Config and weights alone, as a model's publisher has them."""
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).exists():
            os.link(bundle / name, folder / name)
    return folder


def _offline() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
