"""How long a device takes, without emulating it: a roofline per operator class, with an interval.

Products take the longer of their FLOPs over the calibrated rate and their weights over the memory bandwidth (Williams,
Waterman and Patterson, 2009, "Roofline", doi:10.1145/1498765.1498785).  The rate is the profile's calibration row for
the runtime, the precision and the kind of graph.  Without one for the runtime, another's is taken and the result states
"uncalibrated"; without any of that kind of graph there is no latency at all, only the least that it can be.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as document

from edgepeft.common.operators import PRODUCTS, OperatorClass, Work, graph_kind_of, product_flops
from edgepeft.device.profiles import Calibration, Profile

CalibrationState = Literal["calibrated", "uncalibrated", "not predictable"]
_Bound = Literal["compute", "memory", "in the rate"]

# All cores at once first; one thread's copy is less than all cores get, so what it limits is overestimated.
_BANDWIDTHS = ("stream_triad", "copy_all_cores", "copy_one_thread", "memory_bandwidth")
_PEAK = "fp32_peak"
# Of a single latency, as far as the fits of device-figures were off out of family: predicted -40 % to +29 %.
_ONE_SAMPLE = (1 / 1.29, 1 / 0.60)
# Across runtimes on one device (rpi4, encoders): 15 to 75 instances a minute where the fallback row says 37.
_OTHER_RUNTIME = (37 / 75, 37 / 15)
_MEAN_ERRORS = 2.0  # of the row's mean error: about nine tenths of its samples, where errors are like a normal's
_LANES = {"fp32": 1, "fp16": 2, "int8": 4}  # numbers of a register, to which rates are at most proportional


@document(frozen=True, config=ConfigDict(strict=True, allow_inf_nan=False))  # a part of a result, which is read again
class ClassTime:
    """One operator class: its share, and what limits most of it."""

    n: int
    flops: int
    n_bytes: int
    seconds: float
    bound: _Bound


@dataclass(frozen=True)
class Predicted:
    """How long one run takes."""

    seconds: float | None  # None, as the interval, where nothing was measured that could say
    interval: tuple[float, float] | None
    at_least: float | None  # what the hardware's fp32 peak allows; None where the profile has none
    calibration: CalibrationState
    row: Calibration | None
    classes: dict[OperatorClass, ClassTime]
    notes: tuple[str, ...]


def predict_seconds(
    works: Sequence[Work],
    profile: Profile,
    *,
    runtime: str = "onnxruntime",
    precision: str = "fp32",
    threads: int | None = None,
) -> Predicted:
    """Predict one run of ``works`` on the device, on all cores unless ``threads`` is smaller."""
    kind, speed = graph_kind_of(works), bandwidth(profile)
    peak = profile.amount(_PEAK, "GFLOP/s") if precision == "fp32" else None
    at_least = None if peak is None else product_flops(works) / (peak * 1e9)  # no program can be faster
    notes: list[str] = []
    row = _row(profile, works, notes, runtime=runtime, precision=precision, threads=threads)
    if speed is None:
        notes.append("the profile has no memory bandwidth: what moves bytes only is left out")
    if row is None:
        others = sorted({one.operators.value for one in profile.calibrations})
        notes.append(
            f"not predictable: nothing of kind {kind.value} was measured on {profile.name} (there: "
            f"{', '.join(others) or 'nothing'}), and the rates of other kinds differ up to five-fold"
        )
        return Predicted(None, None, at_least, "not predictable", None, {}, tuple(notes))
    lanes = _LANES.get(row.precision, 1) / _LANES.get(precision, 1)
    scale = min(1.0, 1 / lanes)  # wider numbers are slower; narrower ones may be faster, and are not taken to be
    classes = _classes(works, row, speed, scale)
    seconds = row.overhead_ms / 1000 + sum(time.seconds for time in classes.values())
    if row.runtime != runtime:
        factors = _OTHER_RUNTIME
    elif row.error_percent is None or row.samples < 3:
        factors = _ONE_SAMPLE
    else:
        error = _MEAN_ERRORS * row.error_percent / 100
        factors = 1 / (1 + error), 1 + error
    narrower = min(lanes, 1 / lanes)  # how much faster the precision might be than what was taken
    factors, own = (factors[0] * narrower, factors[1]), (row.runtime, row.precision) == (runtime, precision)
    expected, low, high = (max(factor * seconds, at_least or 0.0) for factor in (1, *factors))
    state: CalibrationState = "calibrated" if own else "uncalibrated"
    return Predicted(expected, (low, high), at_least, state, row, classes, tuple(notes))


def bandwidth(profile: Profile) -> float | None:
    """Bytes a second, from the best figure that the profile has."""
    known = (profile.amount(key, "GB/s") for key in _BANDWIDTHS)
    return next((rate * 1e9 for rate in known if rate is not None), None)


def _classes(
    works: Sequence[Work], row: Calibration, speed: float | None, scale: float
) -> dict[OperatorClass, ClassTime]:
    """Each class at ``scale`` of the row's rate; ``speed`` of memory in bytes a second, None leaves it out."""
    rate = row.value * 1e9 * scale
    # A whole model's rate has its products' waits for memory in it, as far as they were not the most of its time.
    waits = row.whole and _reading(works, speed) > product_flops(works) / rate
    times: dict[OperatorClass, ClassTime] = {}
    for kind in OperatorClass:
        own = [work for work in works if work.kind is kind]
        if not own or kind is OperatorClass.NONE:
            continue
        flops, n_bytes = sum(work.flops for work in own), sum(work.n_bytes for work in own)
        if row.whole:
            seconds = _reading(own, speed) if waits else flops / rate
            bound: _Bound = "memory" if waits else "compute"
            if kind not in PRODUCTS:
                seconds, bound = 0.0, "in the rate"
        else:
            seconds, bound = _apart(own, row, rate, speed)
        times[kind] = ClassTime(len(own), flops, n_bytes, seconds, bound)
    return times


def _apart(works: Sequence[Work], row: Calibration, rate: float, speed: float | None) -> tuple[float, _Bound]:
    """Operators of one class, each by itself: the longer of arithmetic and memory, and what it takes to start it."""
    starts, computing, waiting = len(works) * row.operator_us / 1e6, 0.0, 0.0
    for work in works:
        if work.kind in PRODUCTS:
            # Activations may be in a cache; weights are read once in each run.
            reading, arithmetic = _reading([work], speed), work.flops / rate
        else:
            reading, arithmetic = (0.0 if speed is None else work.n_bytes / speed), 0.0
        if reading > arithmetic:
            waiting += reading
        else:
            computing += arithmetic
    return starts + computing + waiting, "memory" if waiting > computing else "compute"


def _reading(works: Iterable[Work], speed: float | None) -> float:
    """Seconds in which the weights are read."""
    return 0.0 if speed is None else sum(work.weight_bytes for work in works if work.kind in PRODUCTS) / speed


def _row(
    profile: Profile, works: Sequence[Work], notes: list[str], *, runtime: str, precision: str, threads: int | None
) -> Calibration | None:
    """The row that fits best: of the runtime, else of another; of the precision, else of another."""

    def unlikeness(row: Calibration) -> tuple[int, ...]:
        foreign, rounded = row.runtime != runtime, row.precision != precision
        return foreign or rounded, rounded, foreign, not row.fallback, -_threads(row, profile)

    rows = [row for row in profile.calibrations if row.operators is graph_kind_of(works)]
    row = min((row for row in rows if threads in (None, _threads(row, profile))), key=unlikeness, default=None)
    if row is None:
        return None
    if row.runtime != runtime:
        notes.append(f"uncalibrated: no row of {runtime} on {profile.name}; {row.runtime}'s rate stands for it")
    if row.precision != precision:
        wider = _LANES.get(row.precision, 1) > _LANES.get(precision, 1)
        taken = f"the rate is that of {row.precision}" + (", less by the width of its numbers" if wider else "")
        notes.append(f"uncalibrated: no row in {precision} on {profile.name}; {taken}")
    if threads is None and _threads(row, profile) < profile.cores.value:
        notes.append(f"the rate is that of {row.threads} threads, of {profile.cores.value} cores")
    return row


def _threads(row: Calibration, profile: Profile) -> int:
    """The number of threads; a runtime takes all cores by default."""
    return row.threads or profile.cores.value
