"""Compare two benchmark results; exit 4 when the new one is slower beyond noise, or does more work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from edgepeft.cli._output import print_json, table_console
from edgepeft.common.atomic import write_atomically, write_json
from edgepeft.common.errors import ThroughputRegression
from edgepeft.common.messages import markdown_cell, printable
from edgepeft.options.base import share_of

if TYPE_CHECKING:
    from edgepeft.bench.compare import Comparison
    from edgepeft.bench.result.schema import BenchResult

PANEL = "Measure"


def command(
    base: Annotated[Path, Argument(help="An earlier result of `edgepeft bench --json`.", metavar="BASE.json")],
    new: Annotated[Path, Argument(help="The result to judge.", metavar="NEW.json")],
    max_regression: Annotated[str, Option(help="Loss of throughput that is let pass: 5%, or 0.05.")] = "5%",
    normalise: Annotated[
        bool, Option("--normalise", help="Judge per unit of each run's GEMM rate; hosts may then differ.")
    ] = False,
    partial: Annotated[bool, Option("--partial", help="Judge what both hold, where NEW lacks some of BASE.")] = False,
    junit: Annotated[Path | None, Option(help="Write JUnit XML there.")] = None,
    summary: Annotated[Path | None, Option(help="Append markdown there, for example to $GITHUB_STEP_SUMMARY.")] = None,
    benchmark_json: Annotated[
        Path | None, Option(help="Write NEW's throughput for github-action-benchmark (customBiggerIsBetter).")
    ] = None,
    json: Annotated[bool, Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    from edgepeft.bench.compare import ResultFile, compare_results
    from edgepeft.bench.report.tables import comparison_table

    allowed = share_of("--max-regression", max_regression)
    fresh = ResultFile.open(new)
    comparison = compare_results(ResultFile.open(base), fresh, allowed, normalise=normalise, partial=partial)
    if junit is not None:
        write_atomically(junit, junit_xml(comparison))
    if summary is not None:
        before = summary.read_bytes() if summary.is_file() else b""
        write_atomically(summary, before + step_summary(comparison, allowed).encode())
    if benchmark_json is not None:
        write_json(benchmark_json, benchmark_figures(fresh.document))
    if json:
        print_json(comparison.to_json(allowed))
    else:
        table_console().print(comparison_table(comparison))
    if comparison.failed:
        sentences = []
        if comparison.regressions:
            labels = "; ".join(verdict.result.label for verdict in comparison.regressions)
            sentences.append(f"slower than {base} by more than {allowed:.1%} beyond noise: {labels}")
        if comparison.grown:
            labels = "; ".join(f"{each.name} of {each.of} {each.change:+.2%}" for each in comparison.grown)
            sentences.append(f"does more than {base}: {labels}")
        raise ThroughputRegression(". ".join(sentences) + ".")


# What CI systems read: Jenkins' junit-10.xsd; GitHub, "Workflow commands", adding a job summary; benchmark-action/
# github-action-benchmark, README, tool ``customBiggerIsBetter``.
_MAX_ROWS = 200  # of a step summary: GitHub cuts it off at 1 MiB


def junit_xml(comparison: Comparison) -> bytes:
    """One test case a row and a figure; a regression is a failure."""
    from xml.etree import ElementTree

    suite = ElementTree.Element("testsuite", name="edgepeft compare")

    def case(kind: str, label: str, reason: str = "", *, failed: bool = False) -> ElementTree.Element:
        made = ElementTree.SubElement(suite, "testcase", classname=kind, name=printable(label))
        if failed:
            ElementTree.SubElement(made, "failure", message=printable(reason), type="regression")
        return made

    for verdict in comparison.verdicts:
        per_gemm = f", per unit of the host's GEMM rate {verdict.per_gemm}" if verdict.per_gemm else ""
        ratios = f"new over base throughput {verdict.ratio}{per_gemm}"
        judged = case("throughput", verdict.result.label, ratios, failed=verdict.regressed)
        ElementTree.SubElement(judged, "system-out").text = printable(ratios)
    for metric in comparison.metrics:
        changed = f"{metric.before:,.0f} became {metric.now:,.0f} ({metric.change:+.2%})"
        case("deterministic", f"{metric.name} of {metric.of}", changed, failed=metric.grown)
    for label in comparison.missing:
        ElementTree.SubElement(case("throughput", label), "skipped", message="the new result does not have it")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(comparison.regressions) + len(comparison.grown)))
    suite.set("skipped", str(len(comparison.missing)))
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def step_summary(comparison: Comparison, max_regression: float) -> str:
    """Markdown: the verdict first, then a table, then what to know."""
    failed = len(comparison.regressions) + len(comparison.grown)
    head = f"**{failed} regression{'s' * (failed != 1)}**" if failed else "No regression"
    lines = [f"### edgepeft compare: {head}", "", f"Allowed loss of throughput: {max_regression:.1%}.", ""]
    if comparison.verdicts:
        lines += ["| | result | new over base (95 %) | per host GEMM |", "|---|---|---|---|"]
        rows = sorted(comparison.verdicts, key=lambda verdict: (not verdict.regressed, verdict.ratio.value))
        for verdict in rows[:_MAX_ROWS]:
            mark = "slower" if verdict.regressed else "faster" if verdict.ratio.low > 1.0 else "ok"
            lines.append(
                f"| {mark} | {markdown_cell(verdict.result.label)} | {verdict.ratio} | {verdict.per_gemm or '-'} |"
            )
        lines += ["", *([f"{len(rows) - _MAX_ROWS} more rows."] if len(rows) > _MAX_ROWS else [])]
    changed = [metric for metric in comparison.metrics if metric.change]
    if changed:
        lines += ["| | figure | before | now | change |", "|---|---|---|---|---|"]
        for metric in changed[:_MAX_ROWS]:
            cells = ("grew" if metric.grown else "ok", markdown_cell(f"{metric.name} of {metric.of}"))
            lines.append(f"| {' | '.join(cells)} | {metric.before:,.0f} | {metric.now:,.0f} | {metric.change:+.2%} |")
    elif comparison.metrics:
        lines.append(f"{len(comparison.metrics)} figures that need no clock: all as before.")
    notes = [f"missing from the new result: {label}" for label in comparison.missing]
    notes += [f"only in the new result: {label}" for label in comparison.added]
    lines += ["", *(f"- {markdown_cell(note)}" for note in (*notes, *comparison.notes))]
    return "\n".join(lines).rstrip() + "\n"


def benchmark_figures(result: BenchResult) -> list[dict[str, str | float]]:
    """Throughput of every row that was measured, for ``customBiggerIsBetter``."""
    return [
        {
            "name": row.label,
            "unit": "instances/min",
            "value": row.instances_per_minute,
            "extra": f"{len(row.samples_s)} samples on {result.host.cpu or 'an unnamed host'}",
        }
        for row in result.results
        if row.samples_s and row.instances_per_minute is not None
    ]
