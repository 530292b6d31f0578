"""``edgepeft compare``: the throughput gate of a CI job."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgepeft.errors import ThroughputRegression, UsageError

if TYPE_CHECKING:
    from edgepeft.bench.compare import Comparison

__all__ = ["command"]

_WIDTH = 120  # of a table in a file or a log, where rich would take 80


def command(
    base: Annotated[Path, typer.Argument(help="An earlier result of `edgepeft bench --json`.", metavar="BASE.json")],
    new: Annotated[Path, typer.Argument(help="The result to judge.", metavar="NEW.json")],
    max_regression: Annotated[str, typer.Option(help="Loss of throughput that is let pass: 5%, or 0.05.")] = "5%",
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Compare two benchmark results; exit 4 when the new one is slower beyond noise."""
    from rich.console import Console

    from edgepeft.bench.compare import compare
    from edgepeft.bench.result_file import ResultFile
    from edgepeft.cli._output import print_json
    from edgepeft.report.tables import comparison_table

    allowed = _fraction(max_regression)
    comparison = compare(ResultFile.open(base), ResultFile.open(new), allowed)
    if json:
        print_json(_document(comparison, allowed))
    else:
        console = Console(width=None if sys.stdout.isatty() else _WIDTH)
        console.print(comparison_table(comparison))
    if comparison.regressions:
        labels = "; ".join(verdict.result.label for verdict in comparison.regressions)
        raise ThroughputRegression(f"slower than {base} by more than {allowed:.1%} beyond noise: {labels}.")


def _fraction(text: str) -> float:
    """``5%`` and ``0.05`` are the same; a bare number of 1 or more is not guessed at."""
    try:
        value = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise UsageError(f"--max-regression {text!r}: give a share such as 5% or 0.05, under 100%.")
    return value


def _document(comparison: Comparison, allowed: float) -> dict[str, Any]:
    return {
        "schema": "edgepeft.compare/1",
        "max_regression": allowed,
        "regressed": bool(comparison.regressions),
        "results": [
            {
                "result": verdict.result.label,
                "ratio": asdict(verdict.ratio),
                "ratio_per_gemm": asdict(verdict.per_gemm) if verdict.per_gemm else None,
                "regressed": verdict.regressed,
            }
            for verdict in comparison.verdicts
        ],
        "missing": list(comparison.missing),
        "added": list(comparison.added),
        "notes": list(comparison.notes),
    }
