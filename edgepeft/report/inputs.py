"""What a report is made of: results of bench and quickstart, told apart by their schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgepeft.bench.result.result_file import RESULT_SCHEMA as BENCH
from edgepeft.bench.result.result_file import ResultFile, parsed_result
from edgepeft.errors import DataError
from edgepeft.report.quickstart import QUICKSTART_SCHEMA as QUICKSTART

__all__ = ["ReportInputs", "TaskFacts", "read_inputs", "row_name"]


@dataclass(frozen=True)
class TaskFacts:
    """One task beside others: what it weighs, how well it does, how fast it answers."""

    task: str
    method: str
    parameters: float | None
    n_bytes: float | None
    score: float | None
    metric: str | None
    per_minute: float | None


@dataclass(frozen=True)
class ReportInputs:
    """The documents, by kind, with their files' names."""

    bench: Sequence[tuple[str, Mapping[str, Any]]]
    quickstarts: Sequence[tuple[str, Mapping[str, Any]]]

    @property
    def all(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Every document, in the order given within its kind."""
        return [*self.bench, *self.quickstarts]

    def tasks(self) -> list[TaskFacts]:
        """Tasks of bundles whose manifests tell their training, each once."""
        found = {fact.task + fact.method: fact for fact in (*self._of_bench(), *self._of_quickstarts())}
        return list(found.values())

    def _of_bench(self) -> Iterator[TaskFacts]:
        for _, document in self.bench:
            for name, told in document.get("model", {}).get("tasks", {}).items():
                rates = [
                    row["instances_per_minute"]
                    for row in document["results"]
                    if (row.get("task"), row.get("workload"), row.get("engine")) == (name, "infer", "onnxruntime")
                    and row.get("instances_per_minute")
                    and not row.get("predicted")
                ]
                yield TaskFacts(
                    name,
                    told["method"],
                    told.get("trainable_parameters"),
                    told.get("n_bytes"),
                    told.get("score"),
                    told.get("metric"),
                    rates[0] if rates else None,
                )

    def _of_quickstarts(self) -> Iterator[TaskFacts]:
        for _, document in self.quickstarts:
            for task in document["tasks"]:
                rate = task["instances_per_minute"].get("infer onnxruntime")
                weight = (task["trainable_parameters"], task["delta_bytes"])
                yield TaskFacts(task["name"], task["method"], *weight, task["score"], task["metric"], rate)


def row_name(row: Mapping[str, Any]) -> str:
    """What a row of a result is about, within its workload and engine."""
    if row.get("variant"):
        return str(row["variant"])
    if row.get("peer"):
        return f"peer {row['peer']}"
    if row.get("task"):
        return f"{row['task']} ({row.get('method') or '-'})"
    return "full fine-tuning" if row.get("workload") == "finetune" else "bare backbone"


def read_inputs(paths: Sequence[Path]) -> ReportInputs:
    """Read and sort them.

    Raises:
        UsageError: there is no such file.
        DataError: not JSON, or of a schema that no report is made of.
    """
    found: dict[str, list[tuple[str, Mapping[str, Any]]]] = {BENCH: [], QUICKSTART: []}
    for path in paths:
        document = parsed_result(path)
        schema = str(document.get("schema"))
        if schema not in found:
            known = ", ".join(found)
            raise DataError(f"{path}: schema {schema!r} is none that a report is made of; known: {known}.")
        if schema == BENCH:
            document = ResultFile.open(path).document  # its samples are looked at
        found[schema].append((path.name, document))
    return ReportInputs(found[BENCH], found[QUICKSTART])
