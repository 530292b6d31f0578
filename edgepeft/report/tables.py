"""Benchmark results and comparisons as rich tables; what is printed is the command line's business."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edgepeft.bench.gate.compare import Comparison, Verdict
from edgepeft.bench.gate.deterministic import MetricVerdict
from edgepeft.bench.result.statistics import Ratio

__all__ = ["bench_table", "comparison_table", "metrics_table", "operators_table"]

_MODES = {
    "limits": "under {}, cores and memory only",
    "calibrated": "calibrated to {}",
    "measured": "measured on {}",
    "predicted": "predicted for {}",
}
_PER = {"infer": "backbone", "finetune": "full"}  # what a workload's last column compares with


def bench_table(document: Mapping[str, Any]) -> RenderableType:
    """Rows, then what they were measured under, then warnings; what was counted, where nothing was timed."""
    if not document["results"]:
        return metrics_table(document)
    table = Table(title=_title(document), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("workload", "engine", "what", "method"):
        table.add_column(header, overflow="fold")
    # The last column: inference over the bare backbone's, fine-tuning over that of everything.
    for header in ("inst./min", "p50 ms", "peak MB", "of GEMM", "x bare / x full"):
        table.add_column(header, justify="right", overflow="fold")
    for row in document["results"]:
        table.add_row(*(Text(cell) for cell in _cells(row)))
    operators = [operators_table(entry) for entry in document.get("operators", [])]
    return Group(table, *_lines(_conditions(document)), *operators, *_lines(_warnings(document), "yellow"))


def operators_table(entry: Mapping[str, Any]) -> RenderableType:
    """Where one batch's time goes, by operator and by layer."""
    ceilings = entry["ceilings"]
    title = (
        f"{entry['of']}, {entry['rows']} rows, {entry['tokens']} tokens: time by operator; ceilings "
        f"{ceilings['flops_per_s'] / 1e9:.0f} GFLOP/s, {ceilings['bytes_per_s'] / 1e9:.1f} GB/s"
    )
    whole = sum(one["seconds"] for one in entry["by_type"])
    tables = []
    for heading, groups in (("operator", entry["by_type"]), ("layer", entry["by_layer"])):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column(heading, overflow="fold")
        for header in ("runs", "ms", "share", "GFLOP", "MB", "floor ms", "gap"):
            table.add_column(header, justify="right")
        for one in groups:
            table.add_row(Text(one["name"]), *_operator_cells(one, whole))
        tables.append(table)
        title = ""
    return Group(*tables, Text(f"outside of operators: {1000 * entry['outside_s']:.2f} ms"))


def _operator_cells(one: Mapping[str, Any], whole: float) -> list[str]:
    gap = "-" if one["gap"] is None else f"{one['gap']:.2f}"
    return [
        f"{one['count']}",
        f"{1000 * one['seconds']:.2f}",
        f"{one['seconds'] / whole:.1%}" if whole else "-",
        f"{one['flops'] / 1e9:.2f}",
        f"{one['bytes'] / 1e6:.1f}",
        f"{1000 * one['floor_s']:.2f}",
        gap,
    ]


def metrics_table(document: Mapping[str, Any]) -> RenderableType:
    """Figures that need no clock: a row for the bundle, the backbone and each task."""
    names = list(dict.fromkeys(name for entry in document["metrics"] for name in entry["values"]))
    table = Table("of", title=_title(document), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name.replace("_", " "), justify="right", overflow="fold")
    for entry in document["metrics"]:
        values = [entry["values"].get(name) for name in names]
        table.add_row(Text(entry["of"]), *("-" if value is None else f"{value:,.0f}" for value in values))
    return table


def _lines(texts: list[str], style: str = "") -> list[Text]:
    """Plain text: names from a file must not be read as markup."""
    return [Text(text, style) for text in texts]


def _title(document: Mapping[str, Any]) -> str:
    model = document["model"]
    random = ", random weights" if model["random_weights"] else ""
    return f"{model['name']}{random} {_MODES[document.get('mode', 'limits')].format(document['profile']['name'])}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    subject = [row["workload"], row["engine"], _what(row), row["method"] or "-"]
    if row["instances_per_minute"] is None:
        return [*subject, _reason(row), "-", "-", "-", "-"]
    latency, fraction, peak = row["latency_s"]["p50"], row["gemm_fraction"], row["peak_rss_bytes"]
    return [
        *subject,
        f"{row['instances_per_minute']:,.1f}",
        "-" if latency is None else f"{1000 * latency:,.1f}",
        "-" if peak is None else f"{peak / 1e6:,.0f}",
        "-" if fraction is None else f"{fraction:.0%}",
        _paired(row, _compared(row)),
    ]


def _compared(row: Mapping[str, Any]) -> str:
    """The last column's peer; a prompt is compared on rows of its own length."""
    prompt = row.get("prompt_length")
    peer = _PER[row["workload"]]
    candidates = (f"{peer}+{prompt}", peer, f"pytorch:{peer}")  # PyTorch's full fine-tuning, where it has no own
    return next((name for name in candidates if name in row["ratio_to"]), peer)


def _what(row: Mapping[str, Any]) -> str:
    if row["peer"]:
        return f"peer {row['peer']}"
    if row.get("variant"):
        return str(row["variant"])
    if row["task"]:
        return str(row["task"])
    if row["workload"] == "finetune":
        return "full fine-tuning"
    prompt = row.get("prompt_length")
    return f"bare backbone, {prompt} tokens more" if prompt else "bare backbone"


def _reason(row: Mapping[str, Any]) -> str:
    first = row["warnings"][0] if row["warnings"] else "not measured"
    return str(first).split(":", 1)[0]


def _paired(row: Mapping[str, Any], peer: str) -> str:
    """The median of paired rounds; where batches differ in length, the ratio over all of them."""
    ratio = row["ratio_to"].get(peer)
    if ratio is None:
        return "-"
    if row["lengths"]["source"] != "full":
        ratio = ratio["of_totals"]
    low, high = ratio["interval"]
    return f"{ratio['ratio']:.3f} [{low:.3f}, {high:.3f}]"


def _conditions(document: Mapping[str, Any]) -> list[str]:
    host, profile = document["host"], document["profile"]
    in_force, first = profile["limits"]["in_force"], document["results"][0]
    lines = [f"host: {host['cpu']}"]
    if host["gemm_gflops"]:
        lines[0] += f", GEMM {host['gemm_gflops']:.0f} GFLOP/s on {first['threads']} threads"
    if host.get("pytorch_gemm_gflops"):
        lines[0] += f", PyTorch's {host['pytorch_gemm_gflops']:.0f}"
    if in_force:
        memory = in_force["memory_bytes"]
        allowed = f"{memory / 1e6:,.0f} MB" if memory else "unlimited memory"
        cores = f"{in_force['cores']} core{'s' if in_force['cores'] != 1 else ''}"
        lines.append(f"limits in force: {cores}, {allowed} ({in_force['backend']}; emulation {profile['emulation']})")
    lengths = first["lengths"]
    lines.append(
        f"threads {first['threads']}, batch {first['batch_size']}, tokens {first['sequence_length']} "
        f"({lengths['described']})"
    )
    lines += [f"peers: {text}" for text in _peer_ratios(document)]
    lines += [f"steps: {text}" for text in _step_ratios(document)]
    lines += [f"predicted: {text}" for text in _predictions(document)]
    lines += [f"energy: {text}" for text in _energies(document)]
    lines += [f"against {document['against']['base']}: {text}" for text in _against(document)]
    return [*lines, *profile["notes"]]


def _predictions(document: Mapping[str, Any]) -> list[str]:
    return [_prediction(_what(row), row["predicted"]) for row in document["results"] if row.get("predicted")]


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _prediction(what: str, found: Mapping[str, Any]) -> str:
    """One row's, with its interval, or why there is none."""
    least = "" if found["at_least_s"] is None else f", at least {1000 * found['at_least_s']:,.0f} ms at the fp32 peak"
    if found["latency_s"] is None:
        return f"{what}: {found['calibration']}{least}"
    low, high = found["instances_per_minute_interval"]
    seconds = [1000 * found["latency_s"], *(1000 * end for end in found["interval_s"])]
    return (
        f"{what}: {seconds[0]:,.0f} ms a batch ({seconds[1]:,.0f} to {seconds[2]:,.0f}), {_count(low)} to "
        f"{_count(high)} instances a minute, {found['calibration']}{least}"
    )


def _energies(document: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['workload']} {row['engine']} {_what(row)}: {row['energy']['joules_per_instance']:.3g} J an instance, "
        f"{row['energy']['kind']} ({row['energy']['source']})"
        for row in document["results"]
        if row.get("energy")
    ]


def _peer_ratios(document: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['engine']} {_what(row)} runs at {_paired(row, name)} x {name}"
        for row in document["results"]
        for name in row["ratio_to"]
        if name.startswith("peer:") and not row["peer"]
    ]


def _against(document: Mapping[str, Any]) -> list[str]:
    """Throughput over the other version's, from the same rounds."""
    return [
        f"{row['workload']} {row['engine']} {_what(row)} runs at {found['value']:.3f} [{found['low']:.3f}, "
        f"{found['high']:.3f}] x its throughput: {found['verdict']}"
        for row in document["results"]
        if (found := row.get("against")) is not None
    ]


def _step_ratios(document: Mapping[str, Any]) -> list[str]:
    """Fine-tuning with ONNX Runtime beside PyTorch's same step, throughput and memory."""
    found = []
    for row in document["results"]:
        same = row["ratio_to"].get("pytorch")
        if (row["workload"], row["engine"]) == ("finetune", "onnxruntime") and same is not None:
            peak = f", peak memory {same['peak_rss']:.2f} of its" if same["peak_rss"] else ""
            found.append(f"{_what(row)} runs at {_paired(row, 'pytorch')} x PyTorch's same step{peak}")
    return found


def _warnings(document: Mapping[str, Any]) -> list[str]:
    """Each kind of warning once: what comes before a colon names the kind, the JSON has them all."""
    about: dict[str, list[tuple[str, str]]] = {}
    for row in document["results"]:
        for warning in row["warnings"]:
            label = f"{row['workload']} {row['engine']} {_what(row)}"
            about.setdefault(warning.split(":", 1)[0], []).append((warning, label))
    return [_said_once(found) for found in about.values()]


def _said_once(found: list[tuple[str, str]]) -> str:
    """The first of a kind of warning in full, how many others there are."""
    warning, label = found[0]
    others = f" and {len(found) - 1} others" if len(found) > 1 else ""
    return f"{warning} ({label}{others})"


def comparison_table(comparison: Comparison) -> RenderableType:
    """One row per result that both files have; what is missing and what to know beneath."""
    title = "new throughput over base throughput, 95 % interval"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("result", "ratio", "per host GEMM", "verdict"):
        table.add_column(header, overflow="fold")
    for verdict in comparison.verdicts:
        per_gemm = _interval(verdict.per_gemm) if verdict.per_gemm else "-"
        cells = (verdict.result.label, _interval(verdict.ratio), per_gemm, _judged(verdict))
        table.add_row(*(Text(cell) for cell in cells))
    lines = [f"missing from the new file: {label}" for label in comparison.missing]
    lines += [f"only in the new file: {label}" for label in comparison.added]
    parts = [*([table] if comparison.verdicts else []), *([_counted(comparison)] if comparison.metrics else [])]
    return Group(*parts, *_lines([*lines, *comparison.notes], "yellow"))


def _counted(comparison: Comparison) -> RenderableType:
    """What changed of the figures that need no clock."""
    changed = [verdict for verdict in comparison.metrics if verdict.change]
    same = len(comparison.metrics) - len(changed)
    if not changed:
        return Text(f"{same} figures that need no clock (nodes, operations, bytes, sizes): all as before")
    table = Table(title="figures that need no clock", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in ("of", "figure", "before", "now", "change", "verdict"):
        table.add_column(header, overflow="fold")
    for verdict in changed:
        numbers = (f"{verdict.before:,.0f}", f"{verdict.now:,.0f}", f"{verdict.change:+.2%}")
        table.add_row(*map(Text, (verdict.of, verdict.name.replace("_", " "), *numbers, _grown(verdict))))
    return Group(table, Text(f"{same} others are as before"))


def _grown(verdict: MetricVerdict) -> str:
    if verdict.grown:
        return "grew"
    return "less: take a new baseline" if verdict.shrunk else "within its allowance"


def _interval(ratio: Ratio) -> str:
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _judged(verdict: Verdict) -> str:
    if verdict.regressed:
        return "slower"
    return "faster" if verdict.ratio.low > 1.0 else "no regression"
