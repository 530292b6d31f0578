"""``bench --mode predicted``: nothing runs; times follow from the graphs' operations and the profile's roofline."""

from __future__ import annotations

from collections.abc import Sequence

from edgepeft.bench.planning.job import Job
from edgepeft.bench.planning.plan import BenchedTask, Unit, UnitRole
from edgepeft.bench.planning.resolve import ResolvedRequest
from edgepeft.bench.planning.scenario import SampleKind
from edgepeft.bench.result.conditions import arithmetic_notes, commit_under_test, host_of, model_of, profile_of, utc_now
from edgepeft.bench.result.rows import energy_from_power, flops_per_instance, row_of
from edgepeft.bench.result.schema import BenchResult, BenchRow, ClassTimeRecord, PredictionRecord
from edgepeft.bench.result.statistics import summarised
from edgepeft.common.errors import UsageError
from edgepeft.device.limits.placement import Limits
from edgepeft.device.roofline import Predicted, predict_seconds
from edgepeft.graph.cost import count_run

__all__ = ["predicted_result"]

_WORKLOAD, _ENGINE = "infer", "onnxruntime"
_NOTHING_RAN = "predicted from the graph's operators and the profile's rates: nothing ran, and this is no measurement"


def predicted_result(work: ResolvedRequest, flops_counted: str) -> BenchResult:
    """The result: a row for each task and for the bare backbone, without samples."""
    if work.scenario.kind is not SampleKind.BATCHES:
        raise UsageError(f"scenario {work.scenario.name} is not of batches; --mode predicted predicts those only.")
    made = [(task, _predictions(work, task)) for task in (*work.subject.tasks, None)]
    notes = [_NOTHING_RAN, *dict.fromkeys(note for _, predictions in made for note in predictions[0].notes)]
    notes += [*arithmetic_notes(work.profile, work.subject), *work.notes]
    return BenchResult(
        mode="predicted",
        host=host_of(()),
        profile=profile_of(work.profile, Limits(), None, notes),
        model=model_of(work.subject),
        measured_at=utc_now(),
        commit=commit_under_test(),
        flops_counted=flops_counted,
        results=tuple(_row(work, task, predictions) for task, predictions in made),
    )


def _row(work: ResolvedRequest, task: BenchedTask | None, predictions: Sequence[Predicted]) -> BenchRow:
    prompt, profile = task.prompt_length if task else 0, work.profile
    known = [one.seconds for one in predictions if one.seconds is not None]
    instances, seconds = sum(map(len, work.batches)), sum(known) if len(known) == len(predictions) else None
    role = UnitRole.TASK if task else UnitRole.BACKBONE
    return row_of(
        work,
        Unit(_WORKLOAD, _ENGINE, role, task, prompt_length=prompt),
        profile.cores.value,
        samples_s=(),
        instances_per_minute=60 * instances / seconds if seconds is not None else None,
        statistics=summarised((), alike=True),
        flops_per_instance=flops_per_instance(
            work.subject.architecture, [n + prompt for batch in work.batches for n in batch]
        ),
        warnings=() if predictions[0].seconds is not None else (f"not predictable: see the notes of {profile.name}",),
        predicted=_prediction(predictions, instances),
        throttled=False,
        energy=energy_from_power(profile, seconds, instances) if seconds is not None else None,
    )


def _predictions(work: ResolvedRequest, task: BenchedTask | None) -> list[Predicted]:
    """The prediction of each batch; equal ones are made once."""
    subject = work.subject
    graph = subject.bundle.graph(task.name if task else None)
    precision = subject.bundle.manifest.backbone.weights_dtype
    known: dict[tuple[int, ...], Predicted] = {}
    for rows in dict.fromkeys(work.batches):  # the graph puts a task's prompt in front by itself
        vocab_size, pad_id = subject.architecture.vocab_size, subject.architecture.pad_token_id
        inputs = Job(_WORKLOAD, 1, (rows,), vocab_size=vocab_size, pad_id=pad_id).batch(0)
        taken = {value.name for value in graph.graph.input}
        works = count_run(graph, {key: value for key, value in inputs.items() if key in taken}).works
        known[rows] = predict_seconds(works, work.profile, precision=precision)
    return [known[rows] for rows in work.batches]


def _prediction(predictions: Sequence[Predicted], instances: int) -> PredictionRecord:
    """Means over the batches, the interval as throughput, and what the first batch's classes took."""
    first, n = predictions[0], len(predictions)
    intervals = [one.interval for one in predictions if one.interval is not None]
    whole = len(intervals) == n
    at_least = [one.at_least for one in predictions if one.at_least is not None]
    low, high = (sum(interval[end] for interval in intervals) for end in (0, 1))
    seconds = [one.seconds for one in predictions if one.seconds is not None]
    return PredictionRecord(
        latency_s=sum(seconds) / n if whole else None,
        interval_s=(low / n, high / n) if whole else None,
        at_least_s=sum(at_least) / n if len(at_least) == n else None,
        calibration=first.calibration,
        row=None if first.row is None else first.row.model_dump(mode="json"),
        classes={kind.value: ClassTimeRecord(**vars(time)) for kind, time in first.classes.items()},
        notes=first.notes,
        instances_per_minute_interval=(60 * instances / high, 60 * instances / low) if whole else None,
    )
