"""The quickstart's closing table: what each task scored, weighs, and how fast it ran under which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["QUICKSTART_SCHEMA", "quickstart_summary", "quickstart_table"]

QUICKSTART_SCHEMA = "edgepeft.quickstart/1"
_COLUMNS = ("infer onnxruntime", "infer pytorch", "finetune pytorch")  # workload and engine


def quickstart_summary(
    tasks: Sequence[Mapping[str, Any]],
    manifest: Mapping[str, Any],
    bench: Mapping[str, Any],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """One JSON document from what training, export and bench wrote.

    ``tasks`` have name, title, source and licence; ``manifest`` is the bundle's, ``bench`` an
    ``edgepeft.bench/1`` document, ``seconds`` the time that each step took.
    """
    return {
        "schema": QUICKSTART_SCHEMA,
        "backbone": manifest["backbone"]["source"],
        "tasks": [_task(task, manifest["tasks"][task["name"]], bench) for task in tasks],
        "bare_backbone": _throughput(bench, None),
        "host": bench["host"],
        "profile": bench["profile"],
        "measured_on": _conditions(bench),
        "seconds": dict(seconds),
    }


def quickstart_table(summary: Mapping[str, Any]) -> RenderableType:
    """The table, and under it the data, the host and the limits in force."""
    name = summary["profile"]["name"]
    table = Table(
        title=f"Two tasks on one {summary['backbone']}, measured under the limits of {name}", title_justify="left"
    )
    for header in ("task", "method"):
        table.add_column(header)
    for header in ("accuracy", "delta", "parity"):
        table.add_column(header, justify="right")
    for column in _COLUMNS:
        table.add_column(f"{column}\ninstances/min", justify="right")
    for task in summary["tasks"]:
        table.add_row(*map(Text, (*_identity(task), *_rates(task["instances_per_minute"]))))
    table.add_row("bare backbone", "-", "-", "-", "-", *_rates(summary["bare_backbone"]))
    return Group(table, Text("\n".join(_notes(summary))))


def _task(task: Mapping[str, Any], entry: Mapping[str, Any], bench: Mapping[str, Any]) -> dict[str, Any]:
    metrics, checked = entry["metrics"], entry["verification"]
    return {
        **task,
        "method": entry["method"],
        "metric": metrics["metric"],
        "score": metrics["test"],
        "test_rows": metrics["n_test"],
        "delta_bytes": entry["n_bytes"],
        "trainable_parameters": entry["trainable_parameters"],
        "max_abs_difference": checked["max_abs_difference"],
        "agreement": checked["agreement"],
        "instances_per_minute": _throughput(bench, task["name"]),
    }


def _throughput(bench: Mapping[str, Any], task: str | None) -> dict[str, float | None]:
    """``workload engine`` -> instances a minute, None where it was not measured."""
    return {
        f"{row['workload']} {row['engine']}": row["instances_per_minute"]
        for row in bench["results"]
        if row["task"] == task and row["peer"] is None and not (task is None and row["workload"] == "finetune")
    }


def _conditions(bench: Mapping[str, Any]) -> str:
    row = bench["results"][0]
    n_rounds = bench["schedule"]["rounds"]
    lengths = row["lengths"]
    described = f"{lengths['described'].partition(';')[0]} lengths (mean {lengths['mean']:.0f} tokens)"
    return f"{row['threads']} threads, batches of {row['batch_size']}, {described}, {n_rounds} rounds at most"


def _identity(task: Mapping[str, Any]) -> tuple[str, ...]:
    score = f"{task['score']:.1%} of {task['test_rows']}"
    return (
        task["name"],
        task["method"],
        score,
        f"{task['delta_bytes'] / 1e6:.2f} MB",
        f"{task['max_abs_difference']:.0e}",
    )


def _rates(rates: Mapping[str, float | None]) -> list[str]:
    found = [rates.get(column) for column in _COLUMNS]
    return ["-" if rate is None else f"{rate:,.0f}" for rate in found]


def _notes(summary: Mapping[str, Any]) -> list[str]:
    lines = [f"{task['name']}: {task['title']}. {task['source']}; {task['licence']}." for task in summary["tasks"]]
    lines.append("accuracy: of held-out texts. parity: largest logit difference to PyTorch on 64 texts.")
    lines.append(f"measured on: {summary['host']['cpu']}, {summary['measured_on']}.")
    profile = summary["profile"]
    return [*lines, _limits(profile), *profile["notes"]]


def _limits(profile: Mapping[str, Any]) -> str:
    kept, asked = profile["limits"]["in_force"], profile["limits"]["requested"]
    if kept is None:
        return "limits in force: none."
    memory = f"{kept['memory_bytes'] / 1e6:,.0f} MB" if kept["memory_bytes"] else "unlimited memory"
    return (
        f"limits in force: {kept['cores']} of the device's {asked['cores']} cores, {memory} ({kept['backend']}, "
        f"emulation {profile['emulation']})."
    )
