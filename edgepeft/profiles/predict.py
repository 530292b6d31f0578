"""How long a device takes, without emulating it: a roofline per operator class, with an interval.

A product takes the longer of its FLOPs over the calibrated rate and its bytes over the memory bandwidth (Williams,
Waterman and Patterson, 2009, "Roofline", doi:10.1145/1498765.1498785).  The rate is the profile's calibration row for
the runtime, the precision and the kind of graph.  Without one for the runtime, another's is taken and the result says
"uncalibrated"; without any of that kind of graph there is no latency at all, only the least that it can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from edgepeft.profiles.schema import Calibration, Profile
from edgepeft.profiles.work import PRODUCTS, OperatorClass, Work, kind_of, product_flops

__all__ = ["ONNXRUNTIME", "ClassTime", "Predicted", "bandwidth", "predict", "seconds_of"]

ONNXRUNTIME = "onnxruntime"
Calibrated = Literal["calibrated", "uncalibrated", "not predictable"]

# All cores at once first; one thread's copy is less than all cores get, so what it limits is overestimated.
_BANDWIDTHS = ("stream_triad", "copy_all_cores", "copy_one_thread", "memory_bandwidth")
_PEAK = "fp32_peak"
# Of a single latency, as far as the fits of device-figures were off out of family: predicted -40 % to +29 %.
_ONE_SAMPLE = (1 / 1.29, 1 / 0.60)
# Across runtimes on one device (rpi4, encoders): 15 to 75 instances a minute where the fallback row says 37.
_OTHER_RUNTIME = (37 / 75, 37 / 15)
_MEAN_ERRORS = 2.0  # of the row's mean error: about nine tenths of its samples, where errors are like a normal's
_HALF_WIDTH = {("fp16", "fp32"): 0.5}  # a register holds half as many numbers; the rate lies between that and the row's


@dataclass(frozen=True)
class ClassTime:
    """One operator class: its share, and what limits most of it."""

    n: int
    flops: int
    n_bytes: int
    seconds: float
    bound: Literal["compute", "memory", "in the rate"]


@dataclass(frozen=True)
class Predicted:
    """``seconds`` and its ``interval`` are None where nothing was measured that could say; ``at_least`` is what the
    hardware's fp32 peak allows, None where the profile has none."""

    seconds: float | None
    interval: tuple[float, float] | None
    at_least: float | None
    calibration: Calibrated
    row: Calibration | None
    classes: dict[OperatorClass, ClassTime]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """For a document."""
        return {
            "latency_s": self.seconds,
            "interval_s": self.interval,
            "at_least_s": self.at_least,
            "calibration": self.calibration,
            "row": None if self.row is None else self.row.model_dump(mode="json"),
            "classes": {kind.value: vars(time) for kind, time in self.classes.items()},
            "notes": list(self.notes),
        }


def predict(
    works: Sequence[Work],
    profile: Profile,
    *,
    runtime: str = ONNXRUNTIME,
    precision: str = "fp32",
    threads: int | None = None,
) -> Predicted:
    """One run of ``works`` on the device, all cores unless ``threads`` says less."""
    kind, speed = kind_of(works), bandwidth(profile)
    at_least = _at_least(works, profile) if precision == "fp32" else None
    notes: list[str] = []
    row = _row(profile, works, _Asked(runtime, precision, threads), notes)
    if speed is None:
        notes.append("the profile has no memory bandwidth: what moves bytes only is left out")
    if row is None:
        others = sorted({one.operators.value for one in profile.calibrations})
        notes.append(
            f"not predictable: nothing of kind {kind.value} was measured on {profile.name} (there: "
            f"{', '.join(others) or 'nothing'}), and the rates of other kinds differ up to five-fold"
        )
        return Predicted(None, None, at_least, "not predictable", None, {}, tuple(notes))
    scale = _HALF_WIDTH.get((row.precision, precision), 1.0)
    classes = _classes(works, row, speed, scale)
    seconds = seconds_of(works, row, speed, scale)
    low, high = _interval(row, runtime, scale)
    interval = (max(low * seconds, at_least or 0.0), max(high * seconds, at_least or 0.0))
    own = row.runtime == runtime and row.precision == precision
    return Predicted(
        max(seconds, at_least or 0.0),
        interval,
        at_least,
        "calibrated" if own else "uncalibrated",
        row,
        classes,
        tuple(notes),
    )


def seconds_of(works: Iterable[Work], row: Calibration, speed: float | None, scale: float = 1.0) -> float:
    """The run's time at a row's rate, ``scale`` of it; ``speed`` of memory in bytes a second, None leaves it out."""
    return row.overhead_ms / 1000 + sum(_operator(work, row, speed, scale)[0] for work in works)


def bandwidth(profile: Profile) -> float | None:
    """Bytes a second, from the best figure that the profile has."""
    for key in _BANDWIDTHS:
        figure = profile.figures.get(key)
        if figure is not None and isinstance(figure.value, int | float) and figure.unit == "GB/s":
            return figure.value * 1e9
    return None


def _operator(work: Work, row: Calibration, speed: float | None, scale: float) -> tuple[float, bool]:
    """Seconds, and whether memory is what they are spent on."""
    moving = 0.0 if speed is None else work.n_bytes / speed
    if work.kind in PRODUCTS:
        # Bytes of activations may be in a cache, those of weights are read once in each run.
        moving = 0.0 if speed is None else work.weight_bytes / speed
        computing = work.flops / (row.value * 1e9 * scale)
        seconds, memory = max(computing, moving), moving > computing
    elif row.whole or work.kind is OperatorClass.NONE:
        return 0.0, False
    else:
        seconds, memory = moving, True
    return seconds + (0.0 if row.whole else row.operator_us / 1e6), memory


def _classes(
    works: Sequence[Work], row: Calibration, speed: float | None, scale: float
) -> dict[OperatorClass, ClassTime]:
    found: dict[OperatorClass, ClassTime] = {}
    for kind in OperatorClass:
        own = [work for work in works if work.kind is kind]
        if not own or kind is OperatorClass.NONE:
            continue
        times = [_operator(work, row, speed, scale) for work in own]
        seconds, waiting = sum(time for time, _ in times), sum(time for time, memory in times if memory)
        bound: Literal["compute", "memory", "in the rate"] = "memory" if waiting > seconds / 2 else "compute"
        if row.whole and kind not in PRODUCTS:
            bound = "in the rate"
        flops, n_bytes = sum(work.flops for work in own), sum(work.n_bytes for work in own)
        found[kind] = ClassTime(len(own), flops, n_bytes, seconds, bound)
    return found


class _Asked(NamedTuple):
    runtime: str
    precision: str
    threads: int | None


def _row(profile: Profile, works: Sequence[Work], asked: _Asked, notes: list[str]) -> Calibration | None:
    """The row that fits best: of the runtime, else of another; of the precision, else of another."""
    runtime, precision, threads = asked
    rows = [row for row in profile.calibrations if row.operators is kind_of(works)]
    if threads is not None:
        rows = [row for row in rows if _threads(row, profile) == threads]
    others = sorted(
        rows,
        key=lambda row: (
            (row.runtime, row.precision) != (runtime, precision),
            row.precision != precision,
            row.runtime != runtime,
            not row.fallback,
            -_threads(row, profile),
        ),
    )
    if not others:
        return None
    row = others[0]
    if row.runtime != runtime:
        notes.append(f"uncalibrated: no row of {runtime} on {profile.name}; {row.runtime}'s rate stands for it")
    if row.precision != precision:
        halved = ", halved" if (row.precision, precision) in _HALF_WIDTH else ""
        notes.append(
            f"uncalibrated: no row in {precision} on {profile.name}; the rate is that of {row.precision}{halved}"
        )
    if threads is None and _threads(row, profile) < profile.cores.value:
        notes.append(f"the rate is that of {row.threads} threads, of {profile.cores.value} cores")
    return row


def _threads(row: Calibration, profile: Profile) -> int:
    """A runtime that is not told takes all cores."""
    return row.threads or profile.cores.value


def _interval(row: Calibration, runtime: str, scale: float) -> tuple[float, float]:
    """Factors on the predicted latency."""
    if row.runtime != runtime:
        low, high = _OTHER_RUNTIME
    elif row.error_percent is None or row.samples < 3:
        low, high = _ONE_SAMPLE
    else:
        low, high = 1 / (1 + _MEAN_ERRORS * row.error_percent / 100), 1 + _MEAN_ERRORS * row.error_percent / 100
    return low * scale, high


def _at_least(works: Sequence[Work], profile: Profile) -> float | None:
    """All FLOPs of products at the peak of the arithmetic: no program can be faster."""
    peak = profile.figures.get(_PEAK)
    if peak is None or not isinstance(peak.value, int | float) or peak.unit != "GFLOP/s":
        return None
    return product_flops(works) / (peak.value * 1e9)
