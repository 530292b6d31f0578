"""``bench --mode predicted``: nothing runs; graphs are counted, and the profile's roofline says how long they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.lengths import Lengths
from edgepeft.bench.planning.plan import BenchedTask
from edgepeft.bench.planning.scenario import SampleKind, Scenario
from edgepeft.bench.planning.subject import BenchSubject
from edgepeft.bench.result.flops import flops_per_instance
from edgepeft.bench.result.profile_facts import arithmetic_notes, profile_facts
from edgepeft.bench.result.result_file import RESULT_SCHEMA
from edgepeft.errors import UsageError
from edgepeft.graph.cost import count_run
from edgepeft.host.machine import host_facts
from edgepeft.limits.placement import Limits
from edgepeft.prediction.roofline import Predicted, predict_seconds
from edgepeft.profiles.schema import Profile

__all__ = ["predicted_document"]

_WORKLOAD, _ENGINE = "infer", "onnxruntime"
_POWER = "power_load"
_NOTHING_RAN = "predicted from the graph's operators and the profile's rates: nothing ran, and this is no measurement"


def predicted_document(
    subject: BenchSubject, profile: Profile, *, scenario: Scenario, lengths: Lengths, batches: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """The result's document: a row for each task and for the bare backbone, without samples.

    Raises:
        UsageError: a scenario that is not of batches.
    """
    if scenario.kind is not SampleKind.BATCHES:
        raise UsageError(f"scenario {scenario.name} is not of batches; --mode predicted predicts those only.")
    shape = {
        "batch_size": len(batches[0]),
        "sequence_length": lengths.values[0] if lengths.uniform else round(lengths.mean, 2),
        "lengths": {"source": lengths.source, "described": lengths.described, "n_batches": len(batches)},
    }
    tasks: list[BenchedTask | None] = [*subject.model.tasks, None]
    rows = [{"scenario": scenario.name, **shape, **_row(subject, profile, task, batches)} for task in tasks]
    notes = [_NOTHING_RAN, *dict.fromkeys(note for row in rows for note in row["predicted"]["notes"])]
    told = [*notes, *arithmetic_notes(profile, subject)]
    return {
        "schema": RESULT_SCHEMA,
        "mode": "predicted",
        "host": {**host_facts(), "gemm_gflops": None},
        "profile": profile_facts(profile, Limits(), None, told),
        "schedule": {},
        "metrics": [],
        "results": rows,
    }


def _row(
    subject: BenchSubject, profile: Profile, task: BenchedTask | None, batches: Sequence[Sequence[int]]
) -> dict[str, Any]:
    found = _of_batches(subject, profile, task, batches)
    prompt = task.prompt_length if task else 0
    used = [n + prompt for batch in batches for n in batch]
    return {
        "workload": _WORKLOAD,
        "engine": _ENGINE,
        "method": task.method if task else None,
        "task": task.name if task else None,
        "peer": None,
        "prompt_length": prompt or None,
        "variant": None,
        "threads": profile.cores.value,
        "samples_s": [],
        "instances_per_minute": _throughput(found, batches),
        "latency_s": {"p50": None, "p90": None, "p99": None},
        "peak_rss_bytes": None,
        "cpu_s": None,
        "flops_per_instance": flops_per_instance(subject.architecture, used),
        "gemm_fraction": None,
        "ratio_to": {},
        "warnings": [] if found[0].seconds is not None else [f"not predictable: see the notes of {profile.name}"],
        "predicted": _document(found, batches),
        "energy": _energy(found, batches, profile),
    }


def _of_batches(
    subject: BenchSubject, profile: Profile, task: BenchedTask | None, batches: Sequence[Sequence[int]]
) -> list[Predicted]:
    """The prediction of each batch; equal ones are made once."""
    graph = subject.bundle.graph(task.name if task else None)
    precision = subject.bundle.manifest.backbone.weights_dtype
    known: dict[tuple[int, ...], Predicted] = {}
    keys = [tuple(batch) for batch in batches]  # the graph puts a task's prompt in front by itself
    for rows in keys:
        if rows not in known:
            job = Job(_WORKLOAD, 1, (rows,), vocab_size=subject.model.vocab_size, pad_id=subject.model.pad_id)
            inputs = job.batch(0)
            inputs = {**inputs, "token_type_ids": np.zeros_like(inputs["input_ids"])}
            taken = {value.name for value in graph.graph.input}
            works = count_run(graph, {key: value for key, value in inputs.items() if key in taken}).works
            known[rows] = predict_seconds(works, profile, precision=precision)
    return [known[rows] for rows in keys]


def _throughput(found: Sequence[Predicted], batches: Sequence[Sequence[int]]) -> float | None:
    seconds = [one.seconds for one in found if one.seconds is not None]
    return 60 * sum(map(len, batches)) / sum(seconds) if len(seconds) == len(found) else None


def _document(found: Sequence[Predicted], batches: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Means over the batches, the interval as throughput, and what the first batch's classes took."""
    first, rows = found[0], sum(map(len, batches))
    intervals = [one.interval for one in found if one.interval is not None]
    whole = len(intervals) == len(found)
    at_least = [one.at_least for one in found if one.at_least is not None]
    lows, highs = (sum(interval[end] for interval in intervals) for end in (0, 1))
    seconds = [one.seconds for one in found if one.seconds is not None]
    return {
        **first.as_json(),
        "latency_s": sum(seconds) / len(found) if whole else None,
        "interval_s": [lows / len(found), highs / len(found)] if whole else None,
        "at_least_s": sum(at_least) / len(found) if len(at_least) == len(found) else None,
        "instances_per_minute_interval": [60 * rows / highs, 60 * rows / lows] if whole else None,
    }


def _energy(found: Sequence[Predicted], batches: Sequence[Sequence[int]], profile: Profile) -> dict[str, Any] | None:
    """From the profile's power, as long as the prediction takes."""
    throughput, power = _throughput(found, batches), profile.figures.get(_POWER)
    if throughput is None or power is None or power.unit != "W" or not isinstance(power.value, (int, float)):
        return None
    source = f"{_POWER} of profile {profile.name}: {power.value:g} W, {power.title} ({power.source or power.kind})"
    return {
        "joules_per_instance": 60 * power.value / throughput,
        "watts": float(power.value),
        "kind": "estimated",
        "source": source,
    }
