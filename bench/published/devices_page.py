"""``docs/devices.md``: what the profiles know, and how far predictions are off every published latency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.published.fitting import Checked, LeftOut, check_predictions, error_range, mean_error, summaries
from bench.published.graphs import encoder
from bench.suites._table import check_picture
from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.device.profiles import Profile
from edgepeft.device.roofline import Predicted, predict_seconds

PAGE, PICTURE = "devices.md", "devices.png"
_TITLES: dict[LeftOut, str] = {"family": "Without the model's family", "model": "In class: without the model alone"}
_ROBERTA = {"n_layers": 12, "tokens": 128, "width": 768, "heads": 12, "inner": 3072}
_PROMISED = 0.25  # of a prediction in class
_OPENING = """\
# Devices

Written by `make devices`; do not edit. `profiles/*.toml` has the figures and their sources (`edgepeft profiles NAME`).

## What is known

The grade says how much a profile knows of an encoder's speed:

- **A**: ONNX Runtime was measured
- **B**: a whole encoder in fp32, with another runtime
- **C**: a whole encoder in another precision
- **D**: other kinds of graphs only
- **E**: no latency at all

The last columns predict roberta-base in fp32 at 128 tokens, batch 1, with ONNX Runtime on all cores; "at most" is the
limit of the arithmetic's peak.

| profile | device | cores | memory | grade | instances a minute | |
|---|---|---|---|---|---|---|"""
_METHOD = """
## How far predictions are off

Every published latency of a known graph was predicted by a fit that never received the rows that were left out. Errors
are predicted over measured, less one.

- *uncalibrated*: no other row of that runtime or precision was there, so another's rate was taken.
- *not predictable*: no other graph of that kind was measured on the device. Depthwise convolutions, 3x3 convolutions
  (Winograd) and matrix products run at rates that differ up to five-fold, so no number is made up.

![Predicted against measured latencies, both logarithmic](devices.png)"""
# Okabe and Ito's palette, its yellow left out.
_COLOURS = ("#0072b2", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#e69f00", "#000000")


def write_devices(profiles: Sequence[Profile], folder: Path) -> list[Path]:
    """Write the page and its picture; their paths."""
    page, picture = folder / PAGE, folder / PICTURE
    check_picture(picture)
    checked = {how: check_predictions(profiles, how) for how in _TITLES}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made ({error.strerror}); give another folder.") from error
    write_atomically(page, devices_page(profiles, checked).encode())
    draw_devices(checked, picture)
    return [page, picture]


def check_devices(profiles: Sequence[Profile], folder: Path) -> None:
    """See that the page in ``folder`` is what ``write_devices`` writes now."""
    page = folder / PAGE
    expected = devices_page(profiles, {how: check_predictions(profiles, how) for how in _TITLES})
    if not page.is_file() or page.read_text(encoding="utf-8") != expected:
        raise EdgepeftError(f"{page} is not what the profiles say; run make devices, then commit what it writes.")


def devices_page(profiles: Sequence[Profile], checked: dict[LeftOut, list[Checked]]) -> str:
    """The page as markdown."""
    lines = [_OPENING, *(_profile_row(profile) for profile in profiles), _METHOD]
    for how, title in _TITLES.items():
        lines += ["", f"### {title}", "", *_summary(checked[how])]
    lines += ["", "## Every latency", "", *_rows(checked)]
    return "\n".join(lines) + "\n"


def _profile_row(profile: Profile) -> str:
    predicted = predict_seconds(encoder(**_ROBERTA), profile)
    memory = f"{profile.memory.value:g} {profile.memory.unit}"
    if profile.memory.variants:
        memory += f" (of {', '.join(f'{size:g}' for size in profile.memory.variants)})"
    cells = (profile.name, profile.title, profile.cores.value, memory, profile.grade, _rate(predicted))
    return f"| {' | '.join(map(str, (*cells, predicted.calibration)))} |"


def _rate(predicted: Predicted) -> str:
    if predicted.seconds is None or predicted.interval is None:
        return "-" if predicted.at_least is None else f"at most {60 / predicted.at_least:.0f}"
    low, high = predicted.interval
    return f"{60 / predicted.seconds:.0f} ({60 / high:.0f} to {60 / low:.0f})"


def _summary(checked: Iterable[Checked]) -> list[str]:
    checked = list(checked)
    lines = [
        "| device | family | runtime | latencies | mean error | errors | in the interval | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (device, family, runtime), group in summaries(checked):
        error = mean_error(group)
        head = f"| {device} | {family} | {runtime} | {len(group)} |"
        if error is None:
            lines.append(f"{head} - | - | - | not predictable |")
            continue
        low, high = error_range(group)
        errors = _percent(low) if len(group) == 1 else f"{_percent(low)} to {_percent(high)}"
        inside = f"{sum(bool(one.within) for one in group)} of {len(group)}"
        lines.append(f"{head} {error:.1%} | {errors} | {inside} | {group[0].predicted.calibration} |")
    own = [one for one in checked if one.predicted.calibration == "calibrated"]
    within = sum(bool(one.within) for one in own)
    close = sum(one.error is not None and abs(one.error) <= _PROMISED for one in own)
    lines += [
        "",
        f"Of {len(checked)} latencies {len(own)} have another row of their runtime: {close} of these are predicted "
        f"within 25 %, and {within} lie in the predicted interval.",
    ]
    return lines


def _rows(checked: dict[LeftOut, list[Checked]]) -> list[str]:
    """One row for each latency, predicted both ways; encoders that differ in width only are summed up above."""
    by_point = {_key(one): one for one in checked["model"]}
    lines = [
        "The 60 WMT encoders are in the tables above only.",
        "",
        "| device | model | runtime | measured, ms | without its family, ms | without it, ms |",
        "|---|---|---|---|---|---|",
    ]
    for one in checked["family"]:
        if one.point.graph.startswith("wmt-"):
            continue
        point, other = one.point, by_point[_key(one)]
        runtime = f"{point.runtime} {point.precision}" + (", 1 thread" if point.threads == 1 else "")
        model = point.model.partition(" (")[0]
        cells = (one.device, model, runtime, f"{1000 * point.seconds:g}", _shown(one), _shown(other))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _key(one: Checked) -> tuple[Any, ...]:
    point = one.point
    return one.device, point.graph, point.runtime, point.precision, point.threads


def _shown(one: Checked) -> str:
    if one.predicted.seconds is None or one.predicted.interval is None or one.error is None:
        return "-"
    low, high = map(_milliseconds, one.predicted.interval)
    mark = "" if one.predicted.calibration == "calibrated" else ", uncalibrated"
    return f"{_milliseconds(one.predicted.seconds)} ({low} to {high}{mark}), {_percent(one.error)}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}" if seconds >= 0.1 else f"{1000 * seconds:.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:+.0f} %"


def draw_devices(checked: dict[LeftOut, list[Checked]], path: Path) -> None:
    """Predicted against measured, log-log, a panel for each way of leaving out; write PNG or SVG."""
    from matplotlib.figure import Figure

    from edgepeft.common import plotting

    shown = [one for rows in checked.values() for one in rows if one.predicted.seconds is not None]
    names = list(dict.fromkeys(one.device for one in shown))
    colours = dict(zip(names, _COLOURS, strict=False))
    with plotting.plot_style():
        figure = Figure(figsize=(11, 5.6), layout="constrained")
        for axis, (how, rows) in zip(figure.subplots(1, 2, sharey=True), checked.items(), strict=True):
            _draw(axis, [one for one in rows if one.predicted.seconds is not None], colours)
            count = sum(one in shown for one in rows)
            axis.set(title=f"{_TITLES[how]}\n{count} of {len(rows)} latencies can be predicted", xlabel="measured, ms")
        figure.axes[0].set(ylabel="predicted, ms")
        handles = figure.axes[1].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
        plotting.save_as(figure, path)


def _draw(axis: Any, checked: Sequence[Checked], colours: dict[str, str]) -> None:
    ends = [10.0, 20000.0]
    axis.plot(ends, ends, color="#777777", linewidth=1)
    low, high = ([(1 + side * _PROMISED) * end for end in ends] for side in (-1, 1))
    axis.fill_between(ends, low, high, color="#777777", alpha=0.18, label="within 25 %", linewidth=0)
    for device, colour in colours.items():
        for calibration in ("calibrated", "uncalibrated"):
            own = [one for one in checked if (one.device, one.predicted.calibration) == (device, calibration)]
            if own:
                measured = [1000 * one.point.seconds for one in own]
                predicted = [1000 * (one.predicted.seconds or 0) for one in own]
                filled = calibration == "calibrated"
                look = {"facecolors": colour if filled else "none", "edgecolors": colour, "zorder": 3, "alpha": 0.8}
                axis.scatter(measured, predicted, s=26, label=device + ("" if filled else ", uncalibrated"), **look)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.grid(visible=True, color="#777777", alpha=0.2)
