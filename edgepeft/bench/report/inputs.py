"""What a report is made of: results of bench, quickstart and eval, cards of deltas, and sweeps, by their schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepeft.bench.report.evaluation import CARD_FILE, DELTA_FORMAT, EVAL_SCHEMA, EvalSummary, TrainingCard
from edgepeft.bench.report.quickstart import QUICKSTART_SCHEMA, QuickstartSummary
from edgepeft.bench.result.result_file import ResultFile, read_document, schema_of
from edgepeft.bench.result.schema import RESULT_SCHEMA, BenchResult, BenchRow
from edgepeft.common.errors import DataError
from edgepeft.sweep.folder import SWEEP_FILE, Sweep, open_sweep

__all__ = ["ReportInputs", "TaskFigures", "read_inputs", "row_name"]


@dataclass(frozen=True)
class TaskFigures:
    """One task beside others: what it weighs, how well it does, how fast it answers."""

    task: str
    method: str
    parameters: int | None
    n_bytes: int | None
    score: float | None
    metric: str | None
    per_minute: float | None


@dataclass(frozen=True)
class ReportInputs:
    """The documents, by kind, with their files' names."""

    bench: Sequence[tuple[str, BenchResult]]
    quickstarts: Sequence[tuple[str, QuickstartSummary]]
    evaluations: Sequence[tuple[str, EvalSummary]] = ()
    cards: Sequence[tuple[str, TrainingCard]] = ()
    sweeps: Sequence[tuple[str, Sweep]] = ()

    @property
    def names(self) -> list[str]:
        """The file of every document, in the order given within its kind."""
        return [name for name, _ in (*self.bench, *self.quickstarts, *self.evaluations, *self.cards, *self.sweeps)]

    def tasks(self) -> list[TaskFigures]:
        """Tasks of bundles whose manifests describe their training, each once."""
        return list({one.task + one.method: one for one in (*self._of_bench(), *self._of_quickstarts())}.values())

    def _of_bench(self) -> Iterator[TaskFigures]:
        for _, result in self.bench:
            for name, task in result.model.tasks.items():
                rates = [
                    row.instances_per_minute
                    for row in result.results
                    if (row.task, row.workload, row.engine) == (name, "infer", "onnxruntime")
                    and row.instances_per_minute
                    and not row.predicted
                ]
                weight = (task.trainable_parameters, task.n_bytes)
                yield TaskFigures(name, task.method, *weight, task.score, task.metric, rates[0] if rates else None)

    def _of_quickstarts(self) -> Iterator[TaskFigures]:
        for _, summary in self.quickstarts:
            for task in summary.tasks:
                rate = task.instances_per_minute.get("infer onnxruntime")
                weight = (task.trainable_parameters, task.delta_bytes)
                yield TaskFigures(task.name, task.method, *weight, task.score, task.metric, rate)


def row_name(row: BenchRow) -> str:
    """What a row of a result is about, within its workload and engine."""
    if row.variant:
        return row.variant
    if row.peer:
        return f"peer {row.peer}"
    if row.task:
        return f"{row.task} ({row.method or '-'})"
    return "full fine-tuning" if row.workload == "finetune" else "bare backbone"


def read_inputs(paths: Sequence[Path]) -> ReportInputs:
    """Read and sort them; a folder is a delta's, or a sweep's."""
    bench: list[tuple[str, BenchResult]] = []
    quickstarts: list[tuple[str, QuickstartSummary]] = []
    evaluations: list[tuple[str, EvalSummary]] = []
    cards: list[tuple[str, TrainingCard]] = []
    sweeps: list[tuple[str, Sweep]] = []
    for given in paths:
        if (given / SWEEP_FILE).is_file():
            sweeps.append((given.name or str(given), open_sweep(given)))
            continue
        path = given / CARD_FILE if given.is_dir() else given
        schema = schema_of(path)
        if schema == RESULT_SCHEMA:
            bench.append((path.name, ResultFile.open(path).document))
        elif schema == QUICKSTART_SCHEMA:
            quickstarts.append((path.name, read_document(path, QuickstartSummary)))
        elif schema == EVAL_SCHEMA:
            evaluations.append((path.name, read_document(path, EvalSummary)))
        elif schema == DELTA_FORMAT:
            cards.append((f"{path.parent.name}/{path.name}", read_document(path, TrainingCard)))
        else:
            known = f"{RESULT_SCHEMA}, {QUICKSTART_SCHEMA}, {EVAL_SCHEMA}, {DELTA_FORMAT}"
            raise DataError(f"{path}: schema {schema!r} is none that a report is made of; known: {known}.")
    return ReportInputs(bench, quickstarts, evaluations, cards, sweeps)
