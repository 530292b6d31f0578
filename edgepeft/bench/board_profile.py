"""Measures a profile of the board that this runs on: ``edgepeft profiles new NAME --measure``.

Rates are medians of a few steps, each in a worker of its own with nothing limited. The board's sensors
are read meanwhile: the profile of a board that throttles says so in its ``about``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from pydantic import JsonValue

from edgepeft.bench.measuring.measure import ProgressCallback, Start, WorkerProcess
from edgepeft.bench.measuring.sampler import Sample, Series, Watched, throttled_samples
from edgepeft.bench.planning.job import Job
from edgepeft.bench.workloads.probes import CHAINS, COPIED_BYTES, GEMM_FLOPS, MORE_OPERATORS
from edgepeft.common.errors import UsageError
from edgepeft.device import machine
from edgepeft.device.cgroups import ROOT
from edgepeft.device.machine import memory_bytes, usable_cores
from edgepeft.device.placement import Limits
from edgepeft.device.profiles import Profile, ReferenceEncoder, known_profiles
from edgepeft.device.sensors import Meter, Sensors, number

TomlTable = dict[str, JsonValue]  # of the profile's TOML
_ROUNDS = 5
_LOOK_SECONDS, _BUSY = 0.5, 0.15
_DECIDING = ("atomics", "asimddp", "asimdhp", "fphp")  # what an Arm processor may lack, by the kernel's names
_RUNTIME = "onnxruntime"

# The reference: BERT-base's shapes where they fit (weights, ONNX Runtime's copy and its packed one), else MiniLM's.
_BASE = {"n_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "n_heads": 12, "n_tokens": 128}
_SMALL = {"n_layers": 6, "hidden_size": 384, "intermediate_size": 1536, "n_heads": 12, "n_tokens": 128}
_BASE_NEEDS = 1_600_000_000


@dataclass
class _Bench:
    """Starts workers, and keeps their samples with the board's condition."""

    start: Start
    sensors: Sensors
    meter: Meter
    seen: Series = field(default_factory=Series)

    def samples(self, label: str, job: Job, batches: Sequence[int] = (0,)) -> Iterator[list[Sample]]:
        """Samples of the steps on each of ``batches``, after one that does not count."""
        with self.start(label, job) as worker:
            worker.ready()
            watched = Watched(worker, self.sensors, self.meter)
            for batch in batches:
                watched.step(batch)
                taken = [watched.step(batch) for _ in range(_ROUNDS)]
                self.seen.samples += taken
                yield taken

    def seconds(self, label: str, job: Job) -> float:
        """The median of a step."""
        (taken,) = self.samples(label, job)
        return _median(taken)


def measured_profile(
    name: str,
    *,
    start: Start | None = None,
    root: Path = ROOT,
    progress: ProgressCallback = lambda what, done, total: None,
) -> tuple[TomlTable, list[str]]:
    """Measure this board; the profile's document, and notes on it."""
    if name in known_profiles():
        raise UsageError(f"a profile {name!r} is shipped with edgepeft; give yours another name.")
    machine.refuse_bad_wheels("onnxruntime")
    proc, versions = root / "proc", machine.versions()
    flags, memory, board = machine.isa_flags(proc), memory_bytes(proc), machine.board_name(root)
    absent: list[JsonValue] = [flag for flag in _DECIDING if flag not in flags] if "asimd" in flags else []
    cores, busy = usable_cores(), psutil.cpu_percent(interval=_LOOK_SECONDS) / 100
    bench = _Bench(start or partial(WorkerProcess, limits=Limits()), Sensors(root), Meter(root))
    made = f"measured by edgepeft {versions['edgepeft']} on {datetime.now(UTC):%Y-%m-%d}"
    with_runtime = f"{made} with ONNX Runtime {versions.get(_RUNTIME, '?')}"
    figures = dict(_figures(bench, cores, root, (made, with_runtime), progress))
    title, about = board or machine.cpu_model(proc), f"Written by `edgepeft profiles new {name} --measure`."
    # The rate of products, which predictions start from; bytes and operators take time of their own.
    rate, overhead = figures["gemm_all_cores"]["value"], figures["operator_overhead"]["value"]
    calibration: TomlTable = {"runtime": _RUNTIME, "precision": "fp32", "operators": "matrix", "value": rate}
    calibration |= {"unit": "GFLOP/s", "operator_us": overhead, "whole": False}
    document: TomlTable = {
        **{"name": name, "title": title, "about": about, "boards": [title]},
        "cores": _figure(cores, "cores", f"{made}: processors that can be kept busy"),
        "memory": _figure(memory, "B", f"{made}: what the kernel has, or a control group allows"),
        "isa": {**_figure([*flags], "flags", f"{made}: /proc/cpuinfo"), **({"absent": absent} if absent else {})},
        "figures": {**figures},
        **_reference(bench, cores, with_runtime, progress),
        "calibrations": [{**calibration, "kind": "measured", "source": with_runtime}],
    }
    notes = []
    if throttled := throttled_samples(bench.seen):
        reasons = ", ".join(dict.fromkeys(reason for sample in throttled for reason in sample))
        samples = f"{len(throttled)} of {len(bench.seen.samples)} samples ({reasons})"
        notes.append(f"The board throttled in {samples}; cooled, it is faster.")
    if busy > _BUSY:
        notes.append(f"Other programs kept the processors {busy:.0%} busy when it began: the rates are too low.")
    document["about"] = " ".join([about, *notes])
    Profile.model_validate(document, strict=False)  # that what is written can be read
    return document, notes


def _figure(value: JsonValue, unit: str, source: str, title: str = "") -> TomlTable:
    titled: TomlTable = {"title": title} if title else {}
    return {"value": value, "unit": unit, "kind": "measured", **titled, "source": source}


def _figures(
    bench: _Bench, cores: int, root: Path, sources: tuple[str, str], progress: ProgressCallback
) -> Iterator[tuple[str, TomlTable]]:
    """Each figure as it is measured; ``sources``: wording without and with ONNX Runtime's version."""
    made, with_runtime = sources
    for done, (key, threads) in enumerate((("gemm_one_core", 1), ("gemm_all_cores", cores))):
        progress(f"products on {threads} core(s)", done, 6)
        (taken,) = bench.samples("products", Job("gemm", threads))
        rate = GEMM_FLOPS / _median(taken) / 1e9
        title = f"product [1024, 768] x [768, 3072], fp32, {threads} core{'s' * (threads > 1)}"
        yield key, _figure(_round(rate), "GFLOP/s", with_runtime, title)
    joules = [sample.joules for sample in taken if sample.joules is not None]
    if bench.meter.source and len(joules) == len(taken):
        watts = sum(joules) / sum(sample.seconds for sample in taken)
        yield "power_load", _figure(_round(watts), "W", f"{made}: {bench.meter.source}", "power, products on all cores")
    progress("memory", 2, 6)
    one = COPIED_BYTES / bench.seconds("memory copies", Job("copy", 1)) / 1e9
    yield "copy_one_thread", _figure(_round(one), "GB/s", f"{made}: bytes copied", "memory copy, one thread")
    every = 2 * COPIED_BYTES / bench.seconds("memory copies", Job("copy", cores)) / 1e9
    title = "memory copy, all cores, read and written"
    yield "copy_all_cores", _figure(_round(every), "GB/s", f"{made}: bytes read and written", title)
    progress("operators", 4, 6)
    short, long = bench.samples("operators", Job("operators", 1), batches=(0, 1))
    overhead = (_median(long) - _median(short)) / CHAINS / MORE_OPERATORS * 1e6
    title = "ONNX Runtime's time for an operator besides its work"
    yield "operator_overhead", _figure(_round(max(overhead, 0.0)), "us", with_runtime, title)
    if (khz := number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")) is not None:
        yield "clock", _figure(khz / 1e6, "GHz", f"{made}: cpufreq", "highest clock")


def _reference(bench: _Bench, cores: int, source: str, progress: ProgressCallback) -> TomlTable:
    """The whole encoder that `bench --mode calibrated` will run on other hosts, measured here."""
    shapes = _BASE if memory_bytes() >= 2 * _BASE_NEEDS else _SMALL
    progress("a whole encoder", 5, 6)
    seconds = bench.seconds("the reference", Job("reference", cores, settings=shapes))
    model = "encoder, {n_layers} layers, {hidden_size} wide, {n_tokens} tokens".format(**shapes)
    which: TomlTable = {"model": model, "runtime": _RUNTIME, "precision": "fp32", "threads": cores}
    ReferenceEncoder.model_validate({**which, **shapes})
    latency: TomlTable = {**which, "value": _round(1000 * seconds), "unit": "ms", "kind": "measured", "source": source}
    return {"reference": {**which, **shapes}, "latencies": [latency]}


def _median(taken: Sequence[Sample]) -> float:
    return float(np.median([sample.seconds for sample in taken]))


def _round(value: float) -> float:
    return float(f"{value:.4g}")
