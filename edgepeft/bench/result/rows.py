"""The rows of a result: raw samples of every unit, what follows from them, and what makes them doubtful.

The energy of an instance is from the board's sensor, else from the profile's power, where times are the device's.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgepeft.backbones.base import Architecture, Attention
from edgepeft.bench.measuring.emulation import Setting
from edgepeft.bench.measuring.measure import Measured
from edgepeft.bench.measuring.sampler import Series, throttled_samples
from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import PlannedRequest, Unit, UnitRole
from edgepeft.bench.result import schema, statistics
from edgepeft.bench.workloads.probes import GEMM_FLOPS
from edgepeft.device.profiles import Profile
from edgepeft.device.sensors import Meter


def result_rows(
    measured: Sequence[Measured], work: PlannedRequest, setting: Setting, *, meter: Meter | None, rounds: int
) -> tuple[schema.BenchRow, ...]:
    """One row per unit, ratios to the others of its workload included; ``rounds`` were asked for."""
    made, architecture = [], work.subject.architecture
    for one in measured:
        unit, series = one.unit, one.series
        seconds, sizes = series.seconds, [len(unit.job.batches[index]) for index in series.batches] if unit.job else []
        # Of single steps; under a quota a sample is the mean of several.
        single = [step for sample in series.samples for step in sample.each or (sample.seconds,)]
        latency: dict[str, float | None] = {}
        if setting.calibrated is None or setting.calibrated.percentiles:
            latency = {f"p{p}": statistics.percentile(single, p) for p in (50, 90, 99)}
        board, readings = None, [sample.conditions for sample in series.samples]
        if any(readings):
            names = schema.BoardRecord.model_fields
            board = schema.BoardRecord(**{name: tuple(getattr(x, name, None) for x in readings) for name in names})
        flops = None
        if (job := _counted(one)) is not None:
            lengths = [n for batch in job.batches for n in _tokens(one, batch)]
            flops = flops_per_instance(architecture, lengths, unit.workload, full=unit.role is UnitRole.FULL)
        row = row_of(
            work,
            unit,
            setting.threads,
            samples_s=tuple(seconds),
            warmup_s=tuple(sample.seconds for sample in series.warmup),
            sample_batches=tuple(series.batches),
            instances_per_minute=statistics.instances_per_minute(sizes, seconds) if seconds else None,
            statistics=statistics.summarised(seconds, alike=bool(comparable(one))),
            latency_s=schema.LatencyRecord(**latency),
            peak_rss_bytes=one.peak_rss_bytes,
            cpu_s=sum(sample.cpu_seconds for sample in series.samples) if seconds else None,
            flops_per_instance=flops,
            gemm_fraction=_gemm_fraction(one, architecture),
            warnings=tuple(warnings_of(one, rounds)),
            conditions=board,
            throttled=bool(throttled_samples(series)),
            energy=energy_of(series, sizes, None if setting.mode == "limits" else setting.profile, meter),
            ratio_to=_ratios(one, measured),
        )
        made.append(row)
    return tuple(made)


def row_of(work: PlannedRequest, unit: Unit, threads: int, **figures: Any) -> schema.BenchRow:
    """The row of a unit, with these ``figures``."""
    used = [n for batch in work.batches for n in batch]
    padded = sum(len(batch) * max(batch) for batch in work.batches)
    return schema.BenchRow(
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
        lengths=schema.LengthsRecord(
            source=work.lengths.source,
            described=work.lengths.described,
            n_batches=len(work.batches),
            mean=work.lengths.mean,
            max=max(work.lengths.values),
            real_token_share=sum(used) / padded if padded else None,
        ),
        threads=threads,
        **figures,
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
    fractions, full = [], one.unit.role is UnitRole.FULL
    share = len(one.gemm.samples) / len(one.series.samples)
    for number, (sample, batch) in enumerate(zip(one.series.samples, one.series.batches, strict=True)):
        gemm = one.gemm.samples[int(number * share)]
        lengths = _tokens(one, job.batches[batch])
        work = len(lengths) * flops_per_instance(architecture, lengths, one.unit.workload, full=full)
        fractions.append(work / sample.seconds / (GEMM_FLOPS / gemm.seconds))
    return float(np.median(fractions))


def _ratios(one: Measured, measured: Sequence[Measured]) -> dict[str, schema.PairedRatio]:
    """Throughput over each peer's, with its interval: the median of paired rounds, and of all rounds' sums."""
    ratios, own = {}, one.series.seconds
    for other in () if one.series.failure else measured:
        theirs, name = other.series.seconds, _peer_name(one, other)
        if own and name is not None and len(theirs) == len(own):
            peak, peer_peak = one.peak_rss_bytes, other.peak_rss_bytes
            ratios[name] = schema.PairedRatio(
                **_plain(statistics.paired_ratio(own, theirs)),
                of_totals=schema.RatioRecord(**_plain(statistics.ratio_of_totals(own, theirs))),
                confidence=statistics.CONFIDENCE,
                peak_rss=peak / peer_peak if peak and peer_peak else None,
            )
    return ratios


def _plain(ratio: statistics.Ratio) -> dict[str, Any]:
    return {"ratio": ratio.value, "interval": (ratio.low, ratio.high), "rounds": ratio.rounds}


def _peer_name(one: Measured, other: Measured) -> str | None:
    """Name what ``other`` is to ``one``; None where a ratio would mean nothing."""
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


def energy_of(
    series: Series, rows: Sequence[int], profile: Profile | None, meter: Meter | None
) -> schema.EnergyRecord | None:
    """Joules an instance; ``rows`` are those of each sample's batch, ``profile`` is None where times are the host's."""
    if not series.samples:
        return None
    joules = [sample.joules for sample in series.samples if sample.joules is not None]
    seconds = sum(series.seconds)
    if meter is not None and meter.source and len(joules) == len(series.samples):
        each, watts = sum(joules) / sum(rows), sum(joules) / seconds
        return schema.EnergyRecord(joules_per_instance=each, watts=watts, kind="sensor", source=meter.source)
    return energy_from_power(profile, seconds, sum(rows)) if profile is not None else None


def energy_from_power(profile: Profile, seconds: float, instances: int) -> schema.EnergyRecord | None:
    """The profile's power for so long; None where it states none."""
    if (watts := profile.amount(_POWER, "W")) is None:
        return None
    power = profile.figures[_POWER]
    source = f"{_POWER} of profile {profile.name}: {watts:g} W, {power.title} ({power.source or power.kind})"
    joules = watts * seconds / instances
    return schema.EnergyRecord(joules_per_instance=joules, watts=watts, kind="estimated", source=source)


_PASSES = {"infer": (1, 1), "finetune": (2, 3), "finetune-full": (3, 3)}  # (matrices, attention)


def flops_per_instance(
    architecture: Architecture, lengths: Sequence[int], workload: str = "infer", *, full: bool = False
) -> float:
    """Mean operations of one text, or training row, of ``lengths`` tokens; ``full``: of training every weight."""
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


_MIN_SAMPLES = 5  # under it a bootstrap interval is a guess
_NOISY = 0.15  # spread between the quartiles, of the median
_DRIFT = 0.10  # from the first sample to the last
_MIN_FOR_DRIFT = 15
_OUTLIERS = 0.10  # share of samples: fewer are any host's
_CLOCK = 0.10  # spread between the quartiles of the GEMM rate, of its median
_LOAD = 0.25  # cores; an idle desktop uses less
_STOLEN = 0.02  # cores
# The closed set of warnings: each kind, which opens its text, and what to do about it unless the text says it.
HINTS = {
    "not available": "",
    "does not fit": "",
    "left out": "raise --max-seconds, or ask for less: --engine, --workload, --task",
    "interrupted": "run the same command with --resume, or anew where it has --against",
    "cut short": "raise --max-seconds",
    "too few samples": "raise --rounds",
    "no percentile": "raise --rounds; a percentile needs a sample above it",
    "noisy": "close what else runs, or judge by ratios within rounds (--against)",
    "outliers": "they are kept in samples_s; the median does not feel them",
    "drift": "let the machine reach its temperature first, then measure again",
    "throttled": "cool the processor or raise the quota; throughput is lower than it could be",
    "unsteady clock": "set the performance governor or turn turbo off; ratios within rounds hold all the same",
    "other load": "close what else runs; on a shared machine compare with --against only",
    "spinning oversubscribed": "threads wait for each other in a loop: give as many as there are cores",
    "swap": "free some memory, or take a smaller --batch-size",
}


def warnings_of(one: Measured, rounds: int) -> list[str]:
    """Every warning that applies to a unit of which ``rounds`` rounds were asked: ``kind: what (hint)``."""
    found = (*_of_rounds(one, rounds), *_of_samples(one), *_of_host(one))
    return [*(f"{kind}: {text}" + (f" ({HINTS[kind]})" if HINTS[kind] else "") for kind, text in found), *one.notes]


def _of_rounds(one: Measured, rounds: int) -> Iterator[tuple[str, str]]:
    """Warn of what could not be measured, or not as often as was asked."""
    done = len(one.series.samples)
    if one.unit.unavailable:
        yield "not available", one.unit.unavailable
    elif one.series.failure:
        yield "does not fit", str(one.series.failure)
    if one.series.left_out:
        yield "left out", "no time was left to measure it"
    if one.series.interrupted:
        yield "interrupted", f"{done} rounds were done before"
    elif 0 < done < rounds and not one.series.enough:
        yield "cut short", f"{done} of {rounds} rounds were done before the time was up"
    if 0 < done < _MIN_SAMPLES:
        yield "too few samples", f"{done} samples: intervals need at least {_MIN_SAMPLES}"


def _of_samples(one: Measured) -> Iterator[tuple[str, str]]:
    """Warn of what is odd about the samples themselves."""
    taken, seconds = one.series.seconds, comparable(one)
    if not any(sample.each for sample in one.series.samples):  # else more steps than samples, or no percentiles at all
        lacking = [f"p{p}" for p in (50, 90, 99) if taken and statistics.percentile(taken, p) is None]
        if lacking:
            yield "no percentile", f"{len(taken)} samples do not support {', '.join(lacking)}"
    if (spread := _spread(seconds)) > _NOISY:
        yield "noisy", f"half of the samples spread over {spread:.0%} of the median"
    if len(places := statistics.outliers(seconds)) > _OUTLIERS * len(seconds):
        yield "outliers", f"{len(places)} of {len(seconds)} samples lie far from the median"
    change = statistics.drift(seconds) if len(seconds) >= _MIN_FOR_DRIFT else None
    if change is not None and abs(change) > _DRIFT:
        yield "drift", f"a step took {change:+.0%} at the end against the beginning"


def _of_host(one: Measured) -> Iterator[tuple[str, str]]:
    """Warn of what the host did meanwhile; the board's sensors tell of throttling, else the processor's counters."""
    job, kept, load, samples = one.unit.job, one.in_force, one.load, one.series.samples
    if throttled := throttled_samples(one.series):
        reasons = ", ".join(dict.fromkeys(reason for sample in throttled for reason in sample))
        yield "throttled", f"the board held itself back in {len(throttled)} of {len(samples)} samples ({reasons})"
    elif load and load.heat_events:
        yield "throttled", f"the processor held back for heat {load.heat_events} times"
    if (spread := _spread(one.gemm.seconds)) > _CLOCK:
        yield "unsteady clock", f"half of the host's GEMM rates spread over {spread:.0%} of their median"
    if load and (load.other_cores > _LOAD or load.stolen_cores > _STOLEN):
        stolen = f", a hypervisor's other guests {load.stolen_cores:.2f}" if load.stolen_cores > _STOLEN else ""
        yield "other load", f"others used {load.other_cores:.2f} cores meanwhile{stolen}"
    if job and kept and samples and not any(sample.each for sample in samples):  # threads do not spin under a quota
        cores = min(kept.cores, kept.cpu_quota) if kept.cpu_quota else kept.cores
        if job.threads > cores:
            yield "spinning oversubscribed", f"{job.threads} threads on {cores:g} cores"
    if load and load.swapped_bytes:
        yield "swap", f"{load.swapped_bytes / 1e6:,.0f} MB were swapped meanwhile"


def _spread(seconds: Sequence[float]) -> float:
    """Between the quartiles, of the median; 0 where there are too few."""
    if len(seconds) < _MIN_SAMPLES:
        return 0.0
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    return float((high - low) / middle)


def comparable(one: Measured) -> Sequence[float]:
    """Samples that should be equal: none where batches differ in length."""
    job = one.unit.job
    shapes = {(len(batch), max(batch)) for batch in job.batches} if job else set()
    return one.series.seconds if len(shapes) == 1 else []
