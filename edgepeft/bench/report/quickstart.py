"""The quickstart's closing table: what each task scored, weighs, and how fast it ran under which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from edgepeft.bench.report.tables import limits_in_force
from edgepeft.bench.result.parts import Part, ProfileRecord
from edgepeft.bench.result.schema import BenchHost, BenchResult
from edgepeft.bundle.manifest import Manifest, TaskEntry

QUICKSTART_SCHEMA = "edgepeft.quickstart/1"
_COLUMNS = ("infer onnxruntime", "infer pytorch", "finetune pytorch")  # workload and engine


class QuickstartTask(Part):
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


class QuickstartSummary(Part):
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
    """One document from what training, export and bench wrote.

    ``tasks`` have name, title, source and licence; ``manifest`` is the bundle's, ``seconds`` the time that each step
    took.
    """
    row = bench.results[0]
    assert row.lengths is not None  # a measured row has them
    described = f"{str(row.lengths.described).partition(';')[0]} lengths (mean {row.lengths.mean:.0f} tokens)"
    rounds = f"{bench.schedule.rounds} rounds at most"
    return QuickstartSummary(
        backbone=manifest.backbone.source,
        tasks=tuple(_task(task, manifest.task(task["name"]), bench) for task in tasks),
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
        table.add_row(*map(Text, (*own, *_rates(task.instances_per_minute))))
    table.add_row("bare backbone", "-", "-", "-", "-", *_rates(summary.bare_backbone))
    lines = [f"{task.name}: {task.title}. {task.source}; {task.licence}." for task in summary.tasks]
    lines.append("accuracy: of held-out texts. parity: largest logit difference to PyTorch on 64 texts.")
    lines.append(f"measured on: {summary.host.cpu}, {summary.measured_on}.")
    lines += [f"{limits_in_force(summary.profile)}.", *summary.profile.notes]
    return Group(table, Text("\n".join(lines)))


def _task(task: Mapping[str, str], entry: TaskEntry, bench: BenchResult) -> QuickstartTask:
    assert entry.verification is not None  # the export has just written it
    return QuickstartTask(
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


def _throughput(bench: BenchResult, task: str | None) -> dict[str, float | None]:
    """``workload engine`` -> instances a minute, None where it was not measured."""
    return {
        f"{row.workload} {row.engine}": row.instances_per_minute
        for row in bench.results
        if row.task == task and row.peer is None and not (task is None and row.workload == "finetune")
    }


def _rates(rates: Mapping[str, float | None]) -> list[str]:
    shown = [rates.get(column) for column in _COLUMNS]
    return ["-" if rate is None else f"{rate:,.0f}" for rate in shown]
