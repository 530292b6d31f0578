"""``edgepeft compare``: the gate of a CI job."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepeft.cli._output import print_json, table_console
from edgepeft.common.errors import ThroughputRegression

if TYPE_CHECKING:
    from edgepeft.bench.compare import Comparison

__all__ = ["command"]

PANEL = "Measure"


def command(
    base: Annotated[Path, typer.Argument(help="An earlier result of `edgepeft bench --json`.", metavar="BASE.json")],
    new: Annotated[Path, typer.Argument(help="The result to judge.", metavar="NEW.json")],
    max_regression: Annotated[str, typer.Option(help="Loss of throughput that is let pass: 5%, or 0.05.")] = "5%",
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Judge per unit of each run's GEMM rate; hosts may then differ.")
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Judge what both hold, though NEW lacks results of BASE.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML there.")] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Append markdown there, for example to $GITHUB_STEP_SUMMARY.")
    ] = None,
    benchmark_json: Annotated[
        Path | None, typer.Option(help="Write NEW's throughput for github-action-benchmark (customBiggerIsBetter).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Compare two benchmark results; exit 4 when the new one is slower beyond noise, or does more work."""
    from edgepeft.bench.compare import compare_results
    from edgepeft.bench.report import ci
    from edgepeft.bench.report.tables import comparison_table
    from edgepeft.bench.result.result_file import ResultFile
    from edgepeft.common.atomic import write_atomically, write_json
    from edgepeft.options.base import share_of

    allowed = share_of("--max-regression", max_regression)
    fresh = ResultFile.open(new)
    comparison = compare_results(ResultFile.open(base), fresh, allowed, normalise=normalise, partial=partial)
    if junit is not None:
        write_atomically(junit, ci.junit_xml(comparison))
    if summary is not None:
        before = summary.read_bytes() if summary.is_file() else b""
        write_atomically(summary, before + ci.step_summary(comparison, allowed).encode())
    if benchmark_json is not None:
        write_json(benchmark_json, ci.benchmark_json(fresh.document))
    if json:
        print_json(_document(comparison, allowed))
    else:
        table_console().print(comparison_table(comparison))
    if comparison.failed:
        raise ThroughputRegression(_said(comparison, base, allowed))


def _said(comparison: Comparison, base: Path, allowed: float) -> str:
    sentences = []
    if comparison.regressions:
        labels = "; ".join(verdict.result.label for verdict in comparison.regressions)
        sentences.append(f"slower than {base} by more than {allowed:.1%} beyond noise: {labels}")
    if comparison.grown:
        labels = "; ".join(f"{each.name} of {each.of} {each.change:+.2%}" for each in comparison.grown)
        sentences.append(f"does more than {base}: {labels}")
    return ". ".join(sentences) + "."


def _document(comparison: Comparison, allowed: float) -> dict[str, Any]:
    return {
        "schema": "edgepeft.compare/1",
        "max_regression": allowed,
        "regressed": comparison.failed,
        "results": [
            {
                "result": verdict.result.label,
                "ratio": asdict(verdict.ratio),
                "ratio_per_gemm": asdict(verdict.per_gemm) if verdict.per_gemm else None,
                "regressed": verdict.regressed,
            }
            for verdict in comparison.verdicts
        ],
        "metrics": [{**asdict(each), "grown": each.grown} for each in comparison.metrics],
        "missing": list(comparison.missing),
        "added": list(comparison.added),
        "notes": list(comparison.notes),
    }
