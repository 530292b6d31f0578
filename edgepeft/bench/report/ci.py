"""A comparison as CI systems read it: JUnit XML, a step summary in markdown, github-action-benchmark's JSON.

Sources: Jenkins' junit-10.xsd; GitHub, "Workflow commands", adding a job summary; benchmark-action/github-action-
benchmark, README, tool ``customBiggerIsBetter``.
"""

from __future__ import annotations

from xml.etree import ElementTree

from edgepeft.bench.compare import Comparison, MetricVerdict, Verdict
from edgepeft.bench.result.schema import BenchResult
from edgepeft.common.messages import markdown_cell, printable

__all__ = ["benchmark_json", "junit_xml", "step_summary"]

_MOST_ROWS = 200  # of a step summary: GitHub cuts it off at 1 MiB


def junit_xml(comparison: Comparison, name: str = "edgepeft compare") -> bytes:
    """One test case a row and a figure; a regression is a failure."""
    suite = ElementTree.Element("testsuite", name=name)
    for verdict in comparison.verdicts:
        case = _case(suite, "throughput", verdict.result.label, verdict.regressed, _ratios(verdict))
        ElementTree.SubElement(case, "system-out").text = printable(_ratios(verdict))
    for metric in comparison.metrics:
        _case(suite, "deterministic", f"{metric.name} of {metric.of}", metric.grown, _changed(metric))
    for label in comparison.missing:
        case = ElementTree.SubElement(suite, "testcase", classname="throughput", name=printable(label))
        ElementTree.SubElement(case, "skipped", message="the new result does not have it")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(comparison.regressions) + len(comparison.grown)))
    suite.set("skipped", str(len(comparison.missing)))
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(suite: ElementTree.Element, kind: str, name: str, failed: bool, reason: str) -> ElementTree.Element:
    case = ElementTree.SubElement(suite, "testcase", classname=kind, name=printable(name))
    if failed:
        ElementTree.SubElement(case, "failure", message=printable(reason), type="regression")
    return case


def step_summary(comparison: Comparison, max_regression: float) -> str:
    """Markdown: the verdict first, then a table, then what to know."""
    failed = len(comparison.regressions) + len(comparison.grown)
    head = f"**{failed} regression{'s' * (failed != 1)}**" if failed else "No regression"
    lines = [f"### edgepeft compare: {head}", "", f"Allowed loss of throughput: {max_regression:.1%}.", ""]
    if comparison.verdicts:
        lines += ["| | result | new over base (95 %) | per host GEMM |", "|---|---|---|---|"]
        rows = sorted(comparison.verdicts, key=lambda verdict: (not verdict.regressed, verdict.ratio.value))
        for verdict in rows[:_MOST_ROWS]:
            mark = "slower" if verdict.regressed else "faster" if verdict.ratio.low > 1.0 else "ok"
            lines.append(
                f"| {mark} | {markdown_cell(verdict.result.label)} | {verdict.ratio} | {verdict.per_gemm or '-'} |"
            )
        lines += ["", *([f"{len(rows) - _MOST_ROWS} more rows."] if len(rows) > _MOST_ROWS else [])]
    changed = [metric for metric in comparison.metrics if metric.change]
    if changed:
        lines += ["| | figure | before | now | change |", "|---|---|---|---|---|"]
        for metric in changed[:_MOST_ROWS]:
            cells = ("grew" if metric.grown else "ok", markdown_cell(f"{metric.name} of {metric.of}"))
            lines.append(f"| {' | '.join(cells)} | {metric.before:,.0f} | {metric.now:,.0f} | {metric.change:+.2%} |")
    elif comparison.metrics:
        lines.append(f"{len(comparison.metrics)} figures that need no clock: all as before.")
    notes = [f"missing from the new result: {label}" for label in comparison.missing]
    notes += [f"only in the new result: {label}" for label in comparison.added]
    lines += ["", *(f"- {markdown_cell(note)}" for note in (*notes, *comparison.notes))]
    return "\n".join(lines).rstrip() + "\n"


def benchmark_json(result: BenchResult) -> list[dict[str, str | float]]:
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


def _ratios(verdict: Verdict) -> str:
    per_gemm = f", per unit of the host's GEMM rate {verdict.per_gemm}" if verdict.per_gemm else ""
    return f"new over base throughput {verdict.ratio}{per_gemm}"


def _changed(metric: MetricVerdict) -> str:
    return f"{metric.before:,.0f} became {metric.now:,.0f} ({metric.change:+.2%})"
