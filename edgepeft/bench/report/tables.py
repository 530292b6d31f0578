"""Results, comparisons and the quickstart's summary as rich tables, and in words how their figures came about.

What is printed is the command line's business.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pydantic import Field
from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from edgepeft.bench.compare import Comparison
from edgepeft.bench.result.parts import DocumentPart, ProfileRecord
from edgepeft.bench.result.schema import BenchHost, BenchResult, BenchRow, PredictionRecord, ProfiledPass
from edgepeft.bundle.manifest import Manifest

_MODES = {
    "limits": "under {}, cores and memory only",
    "calibrated": "calibrated to {}",
    "measured": "measured on {}",
    "predicted": "predicted for {}",
}
_MAX_FOOTNOTES = 5
_ALWAYS = 2  # host and limits, and what the figures stand for
_PER = {"infer": "backbone", "finetune": "full"}  # what a workload's last column compares with


def bench_table(result: BenchResult) -> RenderableType:
    """Rows, then what they were measured under, then warnings; what was counted, where nothing was timed."""
    if not result.results:
        return metrics_table(result)
    # The last but one: inference over the bare backbone's, fine-tuning over that of everything; then, of the same
    # rounds, over another version's.
    numbers = ["inst./min", "p50 ms", "peak MB", "of GEMM", "x bare / x full"]
    numbers += [f"x {result.against.base}"] if result.against else []
    table = _table(_title(result), "workload", "engine", "what", "method", numbers=numbers)
    for row in result.results:
        cells = _cells(row)
        if result.against:
            other = row.against
            cells.append(f"{other.value:.3f} [{other.low:.3f}, {other.high:.3f}]: {other.verdict}" if other else "-")
        table.add_row(*map(Text, cells))
    operators = [operators_table(entry) for entry in result.operators]
    return Group(table, *operators, *_footnotes(result))


def _footnotes(result: BenchResult) -> list[Text]:
    """Make five lines: conditions and what the figures stand for, then warnings, then the rest."""
    conditions = _conditions(result)
    warnings = [  # of each kind the first; the JSON has them all
        f"{warning} ({_label(row)}{f' and {len(others)} others' if others else ''})"
        for (warning, row), *others in warnings_by_kind(result.results)
    ]
    first, rest = _lines(conditions[:_ALWAYS]), _lines(conditions[_ALWAYS:])
    if len(conditions) + len(warnings) <= _MAX_FOOTNOTES:
        return [*first, *_lines(warnings, "yellow"), *rest]
    kinds = ", ".join(line.partition(":")[0] for line in warnings)
    lines = [*first, *_lines([f"warnings: {kinds}"] if kinds else [], "yellow"), *rest]
    left = max(0, len(lines) - _MAX_FOOTNOTES + 1)
    more = f"and {left} more" if left else "what they say"
    return [*lines[: _MAX_FOOTNOTES - 1], Text(f"{more}: --json FILE, and edgepeft report FILE")]


def operators_table(entry: ProfiledPass) -> RenderableType:
    """Where one batch's time goes, by operator and by layer."""
    ceilings = entry.ceilings
    title = (
        f"{entry.of}, {entry.rows} rows, {entry.tokens} tokens: time by operator; ceilings "
        f"{ceilings.flops_per_s / 1e9:.0f} GFLOP/s, {ceilings.bytes_per_s / 1e9:.1f} GB/s"
    )
    whole = sum(one.seconds for one in entry.by_type)
    tables = []
    for heading, groups in (("operator", entry.by_type), ("layer", entry.by_layer)):
        table = _table(title, heading, numbers=("runs", "ms", "share", "GFLOP", "MB", "floor ms", "gap"))
        for one in groups:
            share = f"{one.seconds / whole:.1%}" if whole else "-"
            work = f"{one.flops / 1e9:.2f}", f"{one.bytes / 1e6:.1f}"
            gap = "-" if one.gap is None else f"{one.gap:.2f}"
            times = f"{1000 * one.seconds:.2f}", share, *work, f"{1000 * one.floor_s:.2f}"
            table.add_row(Text(one.name), f"{one.count}", *times, gap)
        tables.append(table)
        title = ""
    return Group(*tables, Text(f"outside of operators: {1000 * entry.outside_s:.2f} ms"))


def metrics_table(result: BenchResult) -> RenderableType:
    """Figures that need no clock: a row for the bundle, the backbone and each task."""
    names = list(dict.fromkeys(name for entry in result.metrics for name in entry.values))
    table = _table(_title(result), "of", numbers=[name.replace("_", " ") for name in names])
    for entry in result.metrics:
        table.add_row(Text(entry.of), *(_count(entry.values.get(name)) for name in names))
    return table


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _table(title: str, *headers: str, numbers: Iterable[str] = ()) -> Table:
    columns = [Column(header, overflow="fold") for header in headers]
    columns += [Column(header, overflow="fold", justify="right") for header in numbers]
    return Table(*columns, title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _lines(texts: list[str], style: str = "") -> list[Text]:
    """Plain text: names from a file must not be read as markup."""
    return [Text(text, style) for text in texts]


def _cells(row: BenchRow) -> list[str]:
    subject = [row.workload, row.engine or "-", subject_of(row), row.method or "-"]
    if row.instances_per_minute is None:
        reason = row.warnings[0].split(":", 1)[0] if row.warnings else "not measured"
        return [*subject, reason, "-", "-", "-", "-"]
    latency, fraction, peak = row.latency_s.p50, row.gemm_fraction, row.peak_rss_bytes
    # A prompt is compared on rows of its own length; fine-tuning with PyTorch's of everything, where it has no own.
    other = _PER[row.workload]
    peers = (f"{other}+{row.prompt_length}", other, f"pytorch:{other}")
    return [
        *subject,
        f"{row.instances_per_minute:,.1f}",
        "-" if latency is None else f"{1000 * latency:,.1f}",
        "-" if peak is None else f"{peak / 1e6:,.0f}",
        "-" if fraction is None else f"{fraction:.0%}",
        _paired(row, next((peer for peer in peers if peer in row.ratio_to), other)),
    ]


def subject_of(row: BenchRow) -> str:
    """Name the subject of a row, within its workload and engine."""
    if row.peer:
        return f"peer {row.peer}"
    if row.variant:
        return row.variant
    if row.task:
        return row.task
    if row.workload == "finetune":
        return "full fine-tuning"
    prompt = row.prompt_length
    return f"bare backbone, {prompt} tokens more" if prompt else "bare backbone"


def _paired(row: BenchRow, peer: str) -> str:
    """The median of paired rounds; where batches differ in length, the ratio over all of them."""
    paired = row.ratio_to.get(peer)
    if paired is None:
        return "-"
    return str(paired.of_totals if row.mixed and paired.of_totals is not None else paired)


def _conditions(result: BenchResult) -> list[str]:
    host, first, rows = result.host, result.results[0], result.results
    line = f"host: {host.cpu}"
    if host.gemm_gflops:
        line += f", GEMM {host.gemm_gflops:.0f} GFLOP/s on {first.threads} threads"
    if host.pytorch_gemm_gflops:
        line += f", PyTorch's {host.pytorch_gemm_gflops:.0f}"
    described = f" ({first.lengths.described})" if first.lengths else ""
    line += f"; threads {first.threads}, batch {first.batch_size}, tokens {first.sequence_length}{described}"
    line += f", {first.new_tokens} written of each text" if first.new_tokens else ""
    lines = [line + (f"; {limits_in_force(result.profile)}" if result.profile.limits.in_force else "")]
    lines += result.profile.notes[:1]  # what the figures stand for
    lines += [
        f"peers: {row.engine} {subject_of(row)} runs at {_paired(row, name)} x {name}"
        for row in rows
        for name in row.ratio_to
        if name.startswith("peer:") and not row.peer
    ]
    for row in rows:
        same = row.ratio_to.get("pytorch")  # fine-tuning with ONNX Runtime beside PyTorch's same step
        if same is not None and (row.workload, row.engine) == ("finetune", "onnxruntime"):
            peak = f", peak memory {same.peak_rss:.2f} of its" if same.peak_rss else ""
            lines.append(f"steps: {subject_of(row)} runs at {_paired(row, 'pytorch')} x PyTorch's same step{peak}")
    lines += [f"predicted: {_prediction(subject_of(row), row.predicted)}" for row in rows if row.predicted]
    lines += [
        f"energy: {_label(row)}: {row.energy.joules_per_instance:.3g} J an instance, "
        f"{row.energy.kind} ({row.energy.source})"
        for row in rows
        if row.energy
    ]
    return [*lines, *result.profile.notes[1:]]


def _label(row: BenchRow) -> str:
    return f"{row.workload} {row.engine} {subject_of(row)}"


def _title(result: BenchResult) -> str:
    return f"{model_name(result)} {_MODES[result.mode or 'limits'].format(result.profile.name)}"


def _prediction(what: str, predicted: PredictionRecord) -> str:
    """One row's, with its interval, or why there is none."""
    least = "" if predicted.at_least_s is None else f", at least {1000 * predicted.at_least_s:,.0f} ms at the fp32 peak"
    if predicted.latency_s is None or not predicted.interval_s or not predicted.instances_per_minute_interval:
        return f"{what}: {predicted.calibration}{least}"
    low, high = (f"{n:,.0f}" if n >= 100 else f"{n:.3g}" for n in predicted.instances_per_minute_interval)
    ms, at_best, at_worst = (f"{1000 * seconds:,.0f}" for seconds in (predicted.latency_s, *predicted.interval_s))
    return (
        f"{what}: {ms} ms a batch ({at_best} to {at_worst}), {low} to {high} instances a minute, "
        f"{predicted.calibration}{least}"
    )


def comparison_table(comparison: Comparison) -> RenderableType:
    """One row per result that both files have; what is missing and what to know beneath."""
    title = "new throughput over base throughput, 95 % interval"
    table = _table(title, "result", "ratio", "per host GEMM", "verdict")
    for verdict in comparison.verdicts:
        judged = "slower" if verdict.regressed else "faster" if verdict.ratio.low > 1.0 else "no regression"
        cells = (verdict.result.label, verdict.ratio, verdict.per_gemm or "-", judged)
        table.add_row(*(Text(str(cell)) for cell in cells))
    parts: list[RenderableType] = [table] if comparison.verdicts else []
    changed = [verdict for verdict in comparison.metrics if verdict.change]
    same = len(comparison.metrics) - len(changed)
    if changed:
        counted = _table("figures that need no clock", "of", "figure", "before", "now", "change", "verdict")
        for each in changed:
            numbers = (f"{each.before:,.0f}", f"{each.now:,.0f}", f"{each.change:+.2%}")
            within = "less: take a new baseline" if each.shrunk else "within its allowance"
            judged = "grew" if each.grown else within
            counted.add_row(*map(Text, (each.of, each.name.replace("_", " "), *numbers, judged)))
        parts += [counted, Text(f"{same} others are as before")]
    elif same:
        parts.append(Text(f"{same} figures that need no clock (nodes, operations, bytes, sizes): all as before"))
    lines = [f"missing from the new file: {label}" for label in comparison.missing]
    lines += [f"only in the new file: {label}" for label in comparison.added]
    return Group(*parts, *_lines([*lines, *comparison.notes], "yellow"))


def of_mode(result: BenchResult) -> str:
    """End of a title that tells the kind of figure; empty for limits, whose speed is the host's."""
    mode = result.mode or "limits"
    return "" if mode == "limits" else f", {_MODES[mode].format(result.profile.name)}"


def limits_in_force(profile: ProfileRecord) -> str:
    """The limits that the kernel reported, beside the cores that the profile asks for."""
    kept, requested = profile.limits.in_force, profile.limits.requested
    if kept is None:
        return "limits in force: none"
    cores = f"{kept.cores} core{'s' * (kept.cores != 1)}"
    if requested is not None and requested.cores not in (None, kept.cores):
        cores = f"{kept.cores} of the device's {requested.cores} cores"
    memory = f"{kept.memory_bytes / 1e6:,.0f} MB" if kept.memory_bytes else "unlimited memory"
    return f"limits in force: {cores}, {memory} ({kept.backend}; emulation {profile.emulation})"


def conditions_of(result: BenchResult) -> str:
    """Profile, limits in force and host, in a sentence; how far a figure about a device can be trusted."""
    host, profile = result.host, result.profile
    rate = f", {host.gemm_gflops:.0f} GFLOP/s of GEMM" if host.gemm_gflops else ""
    trust = ""
    if calibration := result.calibration:
        trust = (
            f" Calibrated: {calibration.share:.1%} of the cores' time, at which the reference "
            f"({calibration.reference}) runs at {calibration.error:+.1%} of the device's rate; memory-bound work and "
            "work on one thread are not."
        )
    elif result.mode == "predicted":
        kinds = {row.predicted.calibration for row in result.results if row.predicted}
        trust = f" Predicted, nothing ran: {', '.join(sorted(kinds))}."
    return f"Profile {profile.name}, {limits_in_force(profile)}, on {host.cpu}{rate}.{trust}"


def warnings_by_kind(rows: Iterable[BenchRow]) -> list[list[tuple[str, BenchRow]]]:
    """The warnings with their rows, grouped by what comes before a colon, which names the kind."""
    kinds: dict[str, list[tuple[str, BenchRow]]] = {}
    for row in rows:
        for warning in row.warnings:
            kinds.setdefault(warning.split(":", 1)[0], []).append((warning, row))
    return list(kinds.values())


def model_name(result: BenchResult) -> str:
    """The model's, and whether its weights are random."""
    return f"{result.model.name}{', random weights' if result.model.random_weights else ''}"


QUICKSTART_SCHEMA = "edgepeft.quickstart/1"
_COLUMNS = ("infer onnxruntime", "infer pytorch", "finetune pytorch")  # workload and engine


class QuickstartTask(DocumentPart):
    """A task: its data, its score on held-out rows, its size, and its throughput by "workload engine"."""

    name: str
    title: str
    source: str
    licence: str
    method: str
    metric: str
    score: float
    test_rows: int
    delta_bytes: int
    trainable_parameters: int
    max_abs_difference: float
    agreement: float
    instances_per_minute: dict[str, float | None]


class QuickstartSummary(DocumentPart):
    """The whole of ``quickstart.json``; ``seconds``: the time that each step took."""

    schema_name: Literal["edgepeft.quickstart/1"] = Field(default="edgepeft.quickstart/1", alias="schema")
    backbone: str
    tasks: tuple[QuickstartTask, ...]
    bare_backbone: dict[str, float | None]
    host: BenchHost
    profile: ProfileRecord
    measured_on: str
    seconds: dict[str, float]


def quickstart_summary(
    tasks: Sequence[Mapping[str, str]], manifest: Manifest, bench: BenchResult, seconds: Mapping[str, float]
) -> QuickstartSummary:
    """One document from what training, export and bench wrote; ``seconds``: the time that each step took."""
    row = bench.results[0]
    assert row.lengths is not None  # a measured row has them
    described = f"{str(row.lengths.described).partition(';')[0]} lengths (mean {row.lengths.mean:.0f} tokens)"
    rounds = f"{bench.schedule.rounds} rounds at most"
    measured = []
    for task in tasks:
        entry = manifest.task(task["name"])
        assert entry.verification is not None  # the export has just written it
        one = QuickstartTask(
            **task,
            method=entry.method,
            metric=entry.metrics["metric"],
            score=entry.metrics["test"],
            test_rows=entry.metrics["n_test"],
            delta_bytes=entry.n_bytes,
            trainable_parameters=entry.trainable_parameters,
            max_abs_difference=entry.verification.max_abs_difference,
            agreement=entry.verification.agreement,
            instances_per_minute=_throughput(bench, task["name"]),
        )
        measured.append(one)
    return QuickstartSummary(
        backbone=manifest.backbone.source,
        tasks=tuple(measured),
        bare_backbone=_throughput(bench, None),
        host=bench.host,
        profile=bench.profile,
        measured_on=f"{row.threads} threads, batches of {row.batch_size}, {described}, {rounds}",
        seconds=dict(seconds),
    )


def quickstart_table(summary: QuickstartSummary) -> RenderableType:
    """The table, and under it the data, the host and the limits in force."""
    title = f"Two tasks on one {summary.backbone}, measured under the limits of {summary.profile.name}"
    numbers = ("accuracy", "delta", "parity", *(f"{column}\ninstances/min" for column in _COLUMNS))
    columns = (Column(header, justify="right") for header in numbers)
    table = Table("task", "method", *columns, title=title, title_justify="left")
    for task in summary.tasks:
        score, size = f"{task.score:.1%} of {task.test_rows}", f"{task.delta_bytes / 1e6:.2f} MB"
        own = (task.name, task.method, score, size, f"{task.max_abs_difference:.0e}")
        table.add_row(*map(Text, (*own, *map(_count, map(task.instances_per_minute.get, _COLUMNS)))))
    table.add_row("bare backbone", *"----", *map(_count, map(summary.bare_backbone.get, _COLUMNS)))
    lines = [f"{task.name}: {task.title}. {task.source}; {task.licence}." for task in summary.tasks]
    lines.append("accuracy: of held-out texts. parity: largest logit difference to PyTorch on 64 texts.")
    lines.append(f"measured on: {summary.host.cpu}, {summary.measured_on}.")
    lines += [f"{limits_in_force(summary.profile)}.", *summary.profile.notes]
    return Group(table, Text("\n".join(lines)))


def _throughput(bench: BenchResult, task: str | None) -> dict[str, float | None]:
    """``workload engine`` -> instances a minute, None where it was not measured."""
    return {
        f"{row.workload} {row.engine}": row.instances_per_minute
        for row in bench.results
        if row.task == task and row.peer is None and not (task is None and row.workload == "finetune")
    }
