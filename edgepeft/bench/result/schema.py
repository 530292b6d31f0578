"""The result of a benchmark, schema ``edgepeft.bench/1``: raw samples, what follows from them, and their conditions.

Measured, predicted and counted results are all of this schema.  A field has a default where older documents lack it.
Seconds end in ``_s``; throughput is in instances a minute.
"""

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from edgepeft.bench.measuring.emulation import CalibrationRecord
from edgepeft.bench.result.parts import DocumentPart, GemmRates, HostRecord, Number, Positive, ProfileRecord
from edgepeft.device.roofline import ClassTime

RESULT_SCHEMA = "edgepeft.bench/1"
RowKey = tuple[str | float | None, ...]  # what a row measured; two rows of one file never share it
_IDENTITY = ("scenario", "workload", "engine", "method", "task", "peer", "prompt_length", "variant")
_SHAPE = ("batch_size", "sequence_length", "new_tokens", "threads")


class LengthsRecord(DocumentPart):
    """Tokens of the texts: where their lengths come from, and how much of the padded batches is text.

    ``source`` is "full" where all texts are equally long, so that samples of different batches are alike.
    """

    source: str | None = None
    described: str | None = None
    n_batches: int | None = None
    mean: Number | None = None
    max: int | None = None
    real_token_share: float | None = None


class LatencyRecord(DocumentPart):
    """Percentiles of single steps; None where too few were taken."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class StatisticsRecord(DocumentPart):
    """A row's samples; all but their number is None where batches differ in length."""

    n: int
    median_s: float | None = None
    interval_s: tuple[float, float] | None = None  # of the median, 95 %
    outliers: tuple[int, ...] | None = None  # places of samples far from the median
    drift: float | None = None  # from the first sample to the last, of the median


class BoardRecord(DocumentPart):
    """The board at the end of each sample; None where it does not report."""

    temperature_c: tuple[float | None, ...] = ()
    frequency_mhz: tuple[float | None, ...] = ()
    throttled: tuple[tuple[str, ...] | None, ...] = ()


class EnergyRecord(DocumentPart):
    """``kind``: "sensor" where the board measured it, "estimated" where it is the profile's power times seconds."""

    joules_per_instance: float
    watts: float
    kind: Literal["sensor", "estimated"]
    source: str


class RatioRecord(DocumentPart):
    """Throughput over a peer's, with its 95 % interval, from ``rounds`` rounds."""

    ratio: float
    interval: tuple[float, float]
    rounds: int

    def __str__(self) -> str:
        return f"{self.ratio:.3f} [{self.interval[0]:.3f}, {self.interval[1]:.3f}]"


class PairedRatio(RatioRecord):
    """The median of ratios within rounds; ``of_totals``: of all rounds' sums; ``peak_rss``: peak memory over its."""

    of_totals: RatioRecord | None = None
    confidence: float | None = None
    peak_rss: float | None = None


class AgainstRatio(DocumentPart):
    """Throughput over another version's in the same rounds, and the verdict on it."""

    value: float
    low: float
    high: float
    rounds: int
    verdict: Literal["slower", "same", "faster", "interrupted"]
    base_samples_s: tuple[Positive, ...]


class PredictionRecord(DocumentPart):
    """A mean over the batches; ``classes`` and ``row``, the profile's calibration row, are of the first batch."""

    latency_s: float | None = None
    interval_s: tuple[float, float] | None = None
    at_least_s: float | None = None
    calibration: str
    row: dict[str, JsonValue] | None = None
    classes: dict[str, ClassTime] = Field(default={})
    notes: tuple[str, ...] = ()
    instances_per_minute_interval: tuple[float, float] | None = None


class BenchRow(DocumentPart):
    """Figures of one subject, measured or predicted; None where there is none."""

    SOMETIMES: ClassVar[frozenset[str]] = frozenset({"predicted", "against", "new_tokens"})

    scenario: str | None = None
    workload: str
    engine: str | None = None
    method: str | None = None
    task: str | None = None
    peer: str | None = None
    prompt_length: int | None = None  # tokens that each row has more than its text
    variant: str | None = None  # how requests are put, where the scenario compares ways
    batch_size: int | None = None
    sequence_length: Number | None = None  # a mean where lengths differ
    new_tokens: int | None = None  # that are written of each text, or taught
    lengths: LengthsRecord | None = None
    threads: int | None = None
    samples_s: tuple[Positive, ...]
    warmup_s: tuple[Positive, ...] = ()
    sample_batches: tuple[int, ...] = ()
    instances_per_minute: Positive | None = None
    statistics: StatisticsRecord | None = None
    latency_s: LatencyRecord = LatencyRecord()
    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    flops_per_instance: Number | None = None
    gemm_fraction: float | None = None
    warnings: tuple[str, ...] = ()
    predicted: PredictionRecord | None = None
    conditions: BoardRecord | None = None
    throttled: bool | None = None
    energy: EnergyRecord | None = None
    ratio_to: dict[str, PairedRatio] = Field(default={})
    against: AgainstRatio | None = None

    def key(self, *, with_threads: bool = True) -> RowKey:
        """Tell what the row measured: rows of two files with equal keys can be compared."""
        names = (*_IDENTITY, *_SHAPE[: None if with_threads else -1])
        return (*(getattr(self, name) for name in names), str(self.lengths.source if self.lengths else None))

    @property
    def label(self) -> str:
        """The key in words."""
        return " ".join(str(value) for value in self.key()[:-1] if value is not None)

    @property
    def mixed(self) -> bool:
        """Whether batches are of unequal length, so that samples are only comparable batch by batch."""
        return self.lengths is not None and self.lengths.source not in (None, "full")


class MetricsRecord(DocumentPart):
    """Figures that do not depend on time, of the bundle, the backbone or a task."""

    of: str
    values: dict[str, Number]


class CeilingsRecord(DocumentPart):
    """The host's highest rates, measured in the same run."""

    flops_per_s: float
    bytes_per_s: float


class OperatorRecord(DocumentPart):
    """A group of operators in one pass: how many ran, time, work, the least time it could take, time over that."""

    name: str
    count: int
    seconds: float
    flops: float
    bytes: float
    floor_s: float
    gap: float | None = None


class ProfiledPass(DocumentPart):
    """Where the time of one batch goes; ``outside_s``: Python, the session's own work, the profiler's."""

    of: str
    rows: int
    tokens: int
    runs_s: tuple[float, ...] = ()
    ceilings: CeilingsRecord
    outside_s: float
    by_type: tuple[OperatorRecord, ...]
    by_layer: tuple[OperatorRecord, ...]


class BenchHost(HostRecord):
    """The host of a benchmark; ``board``: the name that its firmware gives."""

    gemm_samples_gflops: GemmRates = Field(default={})
    pytorch_gemm_gflops: float | None = None
    pytorch_gemm_samples_gflops: GemmRates = Field(default={})
    board: str | None = None


class TaskRecord(DocumentPart):
    """A bundle's task: what it weighs and how well it does."""

    method: str
    trainable_parameters: int | None = None
    n_bytes: int | None = None
    metric: str | None = None
    score: float | None = None


class ModelRecord(DocumentPart):
    """The backbone, and of a bundle the tasks that were measured."""

    name: str | None = None
    random_weights: bool = False
    family: str | None = None
    model_type: str | None = None
    n_parameters: int | None = None
    tasks: dict[str, TaskRecord] = Field(default={})


class ScheduleRecord(DocumentPart):
    """How long was measured; empty where nothing ran."""

    n_batches: int | None = None
    warmup_batches: tuple[int, ...] | None = None
    rounds: int | None = None
    max_seconds: float | None = None
    seed: int | None = None
    min_rounds: int | None = None
    precision: float | None = None
    more_warmup: int | None = None
    probe_every: int | None = None
    scenario: str | None = None


ScheduleRecord.SOMETIMES = frozenset(ScheduleRecord.model_fields)


class AgainstRecord(DocumentPart):
    """The other version that was measured in the same rounds, and the rule of the verdicts."""

    asked: str
    base: str
    launches: int
    max_regression: float
    confidence: float


class BenchResult(DocumentPart):
    """The whole document.  ``completed``, ``schedules`` and ``request`` are what `--resume` continues from."""

    SOMETIMES: ClassVar[frozenset[str]] = frozenset(
        {"calibration", "instructions_skipped", "operators", "completed", "schedules", "request", "against"}
    )

    schema_name: Literal["edgepeft.bench/1"] = Field(default="edgepeft.bench/1", alias="schema")
    mode: str | None = None
    host: BenchHost = BenchHost()
    profile: ProfileRecord = ProfileRecord()
    calibration: CalibrationRecord | None = None
    model: ModelRecord = ModelRecord()
    measured_at: str | None = None
    commit: str | None = None
    flops_counted: str | None = None
    schedule: ScheduleRecord = ScheduleRecord()
    metrics: tuple[MetricsRecord, ...] = ()
    instructions_skipped: str | None = None
    operators: tuple[ProfiledPass, ...] = ()
    results: tuple[BenchRow, ...]
    completed: tuple[tuple[str, str], ...] | None = None
    schedules: tuple[ScheduleRecord, ...] | None = None
    request: dict[str, JsonValue] | None = None
    against: AgainstRecord | None = None
