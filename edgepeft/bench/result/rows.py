"""The rows of a result: raw samples of every unit, and what follows from them.

The energy of an instance is from the board's sensor, else from the profile's power, where times are the device's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgepeft.backbones.base import Architecture, Attention
from edgepeft.bench.measuring.emulation import Setting
from edgepeft.bench.measuring.measure import Measured
from edgepeft.bench.measuring.sampler import Series, throttled_samples
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import Unit, UnitRole
from edgepeft.bench.planning.resolve import ResolvedRequest
from edgepeft.bench.planning.scenario import Lengths
from edgepeft.bench.result.schema import (
    BenchRow,
    BoardRecord,
    EnergyRecord,
    LatencyRecord,
    LengthsRecord,
    PairedRatio,
    RatioRecord,
)
from edgepeft.bench.result.statistics import (
    CONFIDENCE,
    Ratio,
    instances_per_minute,
    paired_ratio,
    percentile,
    ratio_of_totals,
    summarised,
)
from edgepeft.bench.result.warnings import comparable, warnings_of
from edgepeft.bench.workloads.probes import GEMM_FLOPS
from edgepeft.device.host.sensors import Meter
from edgepeft.device.profile_schema import Profile

__all__ = ["energy_from_power", "energy_of", "flops_per_instance", "result_rows", "row_of"]


def result_rows(
    measured: Sequence[Measured], work: ResolvedRequest, setting: Setting, *, meter: Meter | None, rounds: int
) -> tuple[BenchRow, ...]:
    """One row per unit, ratios to the others of the same workload included.

    ``meter``: the board's energy sensor; ``rounds``: those that were asked for.
    """
    rows = (_row(one, work, setting, meter, rounds) for one in measured)
    return tuple(
        row.model_copy(update={"ratio_to": _ratios(one, measured)}) for row, one in zip(rows, measured, strict=True)
    )


def _row(one: Measured, work: ResolvedRequest, setting: Setting, meter: Meter | None, rounds: int) -> BenchRow:
    unit, series, architecture = one.unit, one.series, work.subject.architecture
    seconds, sizes = series.seconds, [len(unit.job.batches[index]) for index in series.batches] if unit.job else []
    # Of single steps; under a quota a sample is the mean of several.
    single = [step for sample in series.samples for step in sample.each or (sample.seconds,)]
    latency = {f"p{p}": percentile(single, p) for p in (50, 90, 99)} if setting.percentiles else {}
    flops = None
    if (job := _counted(one)) is not None:
        rows = [n for batch in job.batches for n in _tokens(one, batch)]
        flops = flops_per_instance(architecture, rows, unit.workload, full=unit.role is UnitRole.FULL)
    return row_of(
        work,
        unit,
        setting.threads,
        samples_s=tuple(seconds),
        warmup_s=tuple(sample.seconds for sample in series.warmup),
        sample_batches=tuple(series.batches),
        instances_per_minute=instances_per_minute(sizes, seconds) if seconds else None,
        statistics=summarised(seconds, alike=bool(comparable(one))),
        latency_s=LatencyRecord(**latency),
        peak_rss_bytes=one.peak_rss_bytes,
        cpu_s=sum(sample.cpu_seconds for sample in series.samples) if seconds else None,
        flops_per_instance=flops,
        gemm_fraction=_gemm_fraction(one, architecture),
        warnings=tuple(warnings_of(one, rounds)),
        conditions=_board_conditions(series),
        throttled=bool(throttled_samples(series)),
        energy=energy_of(series, sizes, setting.profile if setting.times_are_the_devices else None, meter),
    )


def row_of(work: ResolvedRequest, unit: Unit, threads: int, **figures: Any) -> BenchRow:
    """The row of a unit, with these ``figures``."""
    return BenchRow(
        scenario=work.scenario.name,
        workload=unit.workload,
        engine=unit.engine,
        method=unit.method,
        task=unit.task.name if unit.task else None,
        peer=unit.peer,
        prompt_length=unit.prompt_length or None,
        variant=unit.variant,
        batch_size=len(work.batches[0]),
        sequence_length=work.lengths.values[0] if work.lengths.uniform else round(work.lengths.mean, 2),
        new_tokens=work.new_tokens or None,
        lengths=_lengths_record(work.lengths, work.batches),
        threads=threads,
        **figures,
    )


def _lengths_record(lengths: Lengths, batches: Sequence[Sequence[int]]) -> LengthsRecord:
    """Where the lengths come from, and how much of the padded batches is text."""
    used = [n for batch in batches for n in batch]
    padded = sum(len(batch) * max(batch) for batch in batches)
    return LengthsRecord(
        source=lengths.source,
        described=lengths.described,
        n_batches=len(batches),
        mean=lengths.mean,
        max=max(lengths.values),
        real_token_share=sum(used) / padded if padded else None,
    )


def _board_conditions(series: Series) -> BoardRecord | None:
    """The board at the end of each sample; None where it reports nothing."""
    readings = [sample.conditions for sample in series.samples]
    if not any(readings):
        return None
    return BoardRecord(
        temperature_c=tuple(one.temperature_c if one else None for one in readings),
        frequency_mhz=tuple(one.frequency_mhz if one else None for one in readings),
        throttled=tuple(one.throttled if one else None for one in readings),
    )


def _counted(one: Measured) -> Job | None:
    """Its job, where the operations of a text are known: a text that is written takes many passes."""
    job = one.unit.job
    return None if job is None or job.new_tokens or one.unit.role is UnitRole.REQUESTS else job


def _tokens(one: Measured, texts: Sequence[int]) -> list[int]:
    """Tokens that the backbone sees of each text: a task's prompt is put before it."""
    prompt = one.unit.prompt_length if one.unit.task else 0
    return [n + prompt for n in texts]


def _gemm_fraction(one: Measured, architecture: Architecture) -> float | None:
    """Median over the rounds of (achieved FLOP/s) / (the GEMM probe's FLOP/s in that round, or the last before it)."""
    job = _counted(one)
    if job is None or not 0 < len(one.gemm.samples) <= len(one.series.samples):
        return None
    fractions = []
    full = one.unit.role is UnitRole.FULL
    share = len(one.gemm.samples) / len(one.series.samples)
    for number, (sample, batch) in enumerate(zip(one.series.samples, one.series.batches, strict=True)):
        gemm = one.gemm.samples[int(number * share)]
        lengths = _tokens(one, job.batches[batch])
        work = len(lengths) * flops_per_instance(architecture, lengths, one.unit.workload, full=full)
        fractions.append(work / sample.seconds / (GEMM_FLOPS / gemm.seconds))
    return float(np.median(fractions))


def _ratios(one: Measured, measured: Sequence[Measured]) -> dict[str, PairedRatio]:
    """Throughput over each peer's, with its interval: the median of paired rounds, and of all rounds' sums."""
    own = one.series.seconds
    if not own or one.failure:
        return {}
    ratios = {}
    for other in measured:
        name = _peer_name(one, other)
        if name is not None and len(other.series.samples) == len(own):
            theirs = other.series.seconds
            peak, peer_peak = one.peak_rss_bytes, other.peak_rss_bytes
            ratios[name] = PairedRatio(
                **_plain(paired_ratio(own, theirs)),
                of_totals=RatioRecord(**_plain(ratio_of_totals(own, theirs))),
                confidence=CONFIDENCE,
                peak_rss=peak / peer_peak if peak and peer_peak else None,
            )
    return ratios


def _plain(ratio: Ratio) -> dict[str, Any]:
    return {"ratio": ratio.value, "interval": (ratio.low, ratio.high), "rounds": ratio.rounds}


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


_POWER = "power_load"


def energy_of(series: Series, rows: Sequence[int], profile: Profile | None, meter: Meter | None) -> EnergyRecord | None:
    """Joules an instance; ``rows`` are those of each sample's batch, ``profile`` is None where times are the host's."""
    if not series.samples:
        return None
    joules = [sample.joules for sample in series.samples if sample.joules is not None]
    seconds = sum(series.seconds)
    if meter is not None and meter.source and len(joules) == len(series.samples):
        total = sum(joules)
        return EnergyRecord(
            joules_per_instance=total / sum(rows), watts=total / seconds, kind="sensor", source=meter.source
        )
    return energy_from_power(profile, seconds, sum(rows)) if profile is not None else None


def energy_from_power(profile: Profile, seconds: float, instances: int) -> EnergyRecord | None:
    """The profile's power for so long; None where it states none."""
    if (watts := profile.amount(_POWER, "W")) is None:
        return None
    power = profile.figures[_POWER]
    source = f"{_POWER} of profile {profile.name}: {watts:g} W, {power.title} ({power.source or power.kind})"
    joules = watts * seconds / instances
    return EnergyRecord(joules_per_instance=joules, watts=watts, kind="estimated", source=source)


_PASSES = {"infer": (1, 1), "finetune": (2, 3), "finetune-full": (3, 3)}  # (matrices, attention)


def flops_per_instance(
    architecture: Architecture, lengths: Sequence[int], workload: str = "infer", *, full: bool = False
) -> float:
    """Mean operations of one text (or training row) over ``lengths`` (tokens each).

    ``full``: every weight is trained, so weight gradients are computed as well.
    """
    matrices, attention = _PASSES["finetune-full" if full and workload == "finetune" else workload]
    layers = {f"{site.reads}.weight": site.call[1] for site in architecture.sites}  # that share a tensor
    shapes = {name: shape for name, shape in architecture.tensors.items() if not name.endswith("_embeddings.weight")}
    attention *= 2 if architecture.distances else 1  # a pair's query and key each meet the other's distance, too
    matrices_of = (layers.get(name, 1) * math.prod(shape) for name, shape in shapes.items() if len(shape) == 2)
    per_token = 2 * sum(matrices_of)
    per_pair, everything = 4 * architecture.hidden_size, [Attention(1.0, None)] * architecture.n_layers
    pairs = [sum(layer.pairs(n) for layer in architecture.attention or everything) for n in lengths]
    total = sum(matrices * per_token * n + attention * per_pair * seen for n, seen in zip(lengths, pairs, strict=True))
    return total / len(lengths)
