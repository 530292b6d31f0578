"""The result as JSON, schema ``edgepeft.bench/1`` (design.md, "CLI"): raw samples and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from edgepeft.backbones.base import Architecture
from edgepeft.bench.measuring.measure import Measured
from edgepeft.bench.measuring.modes import Setting
from edgepeft.bench.measuring.sampler import Series
from edgepeft.bench.measuring.watch import board_conditions, energy_of, throttled_samples
from edgepeft.bench.planning.lengths import Lengths
from edgepeft.bench.planning.plan import UnitRole
from edgepeft.bench.result.checks import comparable, warnings_of
from edgepeft.bench.result.flops import flops_per_instance
from edgepeft.bench.result.robust import summarised
from edgepeft.bench.result.statistics import (
    CONFIDENCE,
    instances_per_minute,
    paired_ratio,
    percentile,
    ratio_of_totals,
)
from edgepeft.bench.workloads.gemm import FLOPS_PER_STEP
from edgepeft.host.energy import Meter

__all__ = ["gemm_gflops", "result_rows"]


def result_rows(
    measured: Sequence[Measured],
    *,
    scenario: str,
    lengths: Lengths,
    architecture: Architecture,
    batches: Sequence[Sequence[int]],
    setting: Setting,
    meter: Meter | None,
    rounds: int,
) -> list[dict[str, Any]]:
    """One row per unit, ratios to the others of the same workload included; ``meter``: the board's energy sensor."""
    rows = []
    for one in measured:
        shape = {
            "batch_size": len(batches[0]),
            "sequence_length": lengths.values[0] if lengths.uniform else round(lengths.mean, 2),
            "lengths": _described(lengths, batches),
            "threads": setting.threads,
        }
        figures = _figures(one, architecture, rounds, percentiles=setting.percentiles)
        row = {"scenario": scenario, **_subject(one), **shape, **figures, **_board(one, setting, meter)}
        rows.append({**row, "ratio_to": _ratios(one, measured)})
    return rows


def _subject(one: Measured) -> dict[str, Any]:
    """What the row is about."""
    unit = one.unit
    task = unit.task.name if unit.task else None
    return {
        "workload": unit.workload,
        "engine": unit.engine,
        "method": unit.method,
        "task": task,
        "peer": unit.peer,
        "prompt_length": unit.prompt_length or None,
        "variant": unit.variant,
    }


def _board(one: Measured, setting: Setting, meter: Meter | None) -> dict[str, Any]:
    """How the board was meanwhile, and what energy it took; None where nobody can say."""
    profile = setting.profile if setting.times_are_the_devices else None
    return {
        "conditions": board_conditions(one.series),
        "throttled": bool(throttled_samples(one.series)),
        "energy": energy_of(one.series, _sizes(one), profile, meter),
    }


def _sizes(one: Measured) -> list[int]:
    """Rows of each sample's batch."""
    job = one.unit.job
    return [len(job.batches[index]) for index in one.series.batches] if job else []


def _figures(one: Measured, architecture: Architecture, rounds: int, *, percentiles: bool) -> dict[str, Any]:
    """What the unit's samples say by themselves; None where it was not measured."""
    seconds, sizes = _seconds(one.series), _sizes(one)
    return {
        "samples_s": seconds,
        "warmup_s": [sample.seconds for sample in one.series.warmup],
        "sample_batches": one.series.batches,
        "instances_per_minute": instances_per_minute(sizes, seconds) if seconds else None,
        "statistics": summarised(seconds, alike=bool(comparable(one))),
        "latency_s": {f"p{p}": percentile(_single(one.series), p) if percentiles else None for p in (50, 90, 99)},
        "peak_rss_bytes": one.peak_rss_bytes,
        "cpu_s": sum(sample.cpu_seconds for sample in one.series.samples) if seconds else None,
        "flops_per_instance": _flops(one, architecture),
        "gemm_fraction": _gemm_fraction(one, architecture),
        "warnings": warnings_of(one, rounds),
    }


def _flops(one: Measured, architecture: Architecture) -> float | None:
    if one.unit.job is None or one.unit.role is UnitRole.REQUESTS:
        return None
    rows = [n for batch in one.unit.job.batches for n in _tokens(one, batch)]
    return flops_per_instance(architecture, rows, one.unit.workload, full=one.unit.role is UnitRole.FULL)


def _tokens(one: Measured, texts: Sequence[int]) -> list[int]:
    """Tokens that the backbone sees of each text: a task's prompt is put before it."""
    prompt = one.unit.prompt_length if one.unit.task else 0
    return [n + prompt for n in texts]


def gemm_gflops(measured: Sequence[Measured], engine: str = "onnxruntime") -> dict[str, list[float]]:
    """The host's GEMM rate through an engine in every round of each workload, GFLOP/s."""
    probes = [(one.unit.workload, one.pytorch_gemm if engine == "pytorch" else one.gemm) for one in measured]
    return {
        workload: [FLOPS_PER_STEP / sample.seconds / 1e9 for sample in probe.samples]
        for workload, probe in probes
        if probe.samples
    }


def _seconds(series: Series) -> list[float]:
    return [sample.seconds for sample in series.samples]


def _single(series: Series) -> list[float]:
    """Seconds of single steps, where a sample is the mean of several."""
    return [seconds for sample in series.samples for seconds in sample.each or (sample.seconds,)]


def _described(lengths: Lengths, batches: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Where the lengths come from, and how much of the padded batches is text."""
    used = [n for batch in batches for n in batch]
    padded = sum(len(batch) * max(batch) for batch in batches)
    return {
        "source": lengths.source,
        "described": lengths.described,
        "n_batches": len(batches),
        "mean": lengths.mean,
        "max": max(lengths.values),
        "real_token_share": sum(used) / padded if padded else None,
    }


def _gemm_fraction(one: Measured, architecture: Architecture) -> float | None:
    """Median over the rounds of (achieved FLOP/s) / (the GEMM probe's FLOP/s in that round, or the last before it)."""
    job = one.unit.job
    if job is None or one.unit.role is UnitRole.REQUESTS or not 0 < len(one.gemm.samples) <= len(one.series.samples):
        return None
    fractions = []
    full = one.unit.role is UnitRole.FULL
    share = len(one.gemm.samples) / len(one.series.samples)
    for number, (sample, batch) in enumerate(zip(one.series.samples, one.series.batches, strict=True)):
        gemm = one.gemm.samples[int(number * share)]
        lengths = _tokens(one, job.batches[batch])
        work = len(lengths) * flops_per_instance(architecture, lengths, one.unit.workload, full=full)
        fractions.append(work / sample.seconds / (FLOPS_PER_STEP / gemm.seconds))
    return float(np.median(fractions))


def _ratios(one: Measured, measured: Sequence[Measured]) -> dict[str, Any]:
    """Throughput over each peer's, with its interval: the median of paired rounds, and of all rounds' sums."""
    own = _seconds(one.series)
    if not own or one.failure:
        return {}
    found = {}
    for other in measured:
        name = _peer_name(one, other)
        if name is not None and len(other.series.samples) == len(own):
            theirs = _seconds(other.series)
            found[name] = {
                **_as_json(asdict(paired_ratio(own, theirs))),
                "of_totals": _as_json(asdict(ratio_of_totals(own, theirs))),
                "confidence": CONFIDENCE,
                "peak_rss": _peak_over(one, other),
            }
    return found


def _peak_over(one: Measured, other: Measured) -> float | None:
    """Peak memory over the other's: below 1 is less."""
    own, theirs = one.peak_rss_bytes, other.peak_rss_bytes
    return own / theirs if own and theirs else None


def _peer_name(one: Measured, other: Measured) -> str | None:
    """What ``other`` is to ``one``; None where a ratio would mean nothing."""
    mine, theirs = one.unit, other.unit
    if one is other or mine.workload != theirs.workload:
        return None
    if theirs.role in (UnitRole.PEER, UnitRole.REQUESTS):
        return f"peer:{theirs.peer}" if theirs.role is UnitRole.PEER else f"variant:{theirs.variant}"
    if theirs.engine != mine.engine:
        same = (theirs.role, theirs.task, theirs.prompt_length) == (mine.role, mine.task, mine.prompt_length)
        if not same and theirs.role is UnitRole.FULL:
            return f"{theirs.engine}:full"
        return theirs.engine if same else None
    if theirs.role is UnitRole.LENGTHENED:
        return f"backbone+{theirs.prompt_length}" if mine.task and mine.prompt_length == theirs.prompt_length else None
    return str(theirs.role) if theirs.role in (UnitRole.BACKBONE, UnitRole.FULL) else None


def _as_json(ratio: Mapping[str, Any]) -> dict[str, Any]:
    return {"ratio": ratio["value"], "interval": [ratio["low"], ratio["high"]], "rounds": ratio["rounds"]}
