"""Cards of trained deltas: what a run scored beside what it has to beat, its errors by class, its learning curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from edgepeft.bench.report.evaluation import EVAL_SCHEMA, Errors, EvalSummary
from edgepeft.bench.report.pictures import Cell, Section
from edgepeft.bench.result.parts import Part
from edgepeft.tasks.base import stated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CARD_FILE", "DELTA_FORMAT", "TrainingCard", "evaluation_of", "trainings"]

CARD_FILE, DELTA_FORMAT = "delta.json", "edgepeft.delta/1"  # as edgepeft.bundle.delta writes them, which needs PyTorch


class Baseline(Part):
    """What the delta has to beat; ``p`` is McNemar's."""

    test: float
    p: float
    beaten: bool


class CurvePoint(Part):
    """Of a learning curve; scores are None where a run diverged."""

    rows: int
    eval: float | None
    test: float | None
    baselines: dict[str, float]


class TrainingMetrics(Part):
    """The scores of a run."""

    metric: str
    eval: float
    test: float
    n_train: int
    n_eval: int
    n_test: int
    baselines: dict[str, Baseline] = Field(default_factory=dict)
    curve: list[CurvePoint] = Field(default_factory=list)
    errors: Errors | None = None


class TrainingCard(Part):
    """The parts of ``delta.json`` that a report shows; a delta that was imported has no metrics."""

    format: Literal["edgepeft.delta/1"]
    task: str
    method: str
    kind: str | None = None
    labels: tuple[str, ...] | None
    head_reads: str = ""
    metrics: TrainingMetrics | None

    @field_validator("metrics", mode="before")
    @classmethod
    def _measured(cls, found: Any) -> Any:
        return found or None


def _how(card: TrainingCard, metric: str) -> str:
    return stated(card.kind, card.labels, card.head_reads).averaged(metric)


def evaluation_of(card: TrainingCard) -> EvalSummary | None:
    """The card's errors as an evaluation on its test rows; None where it has none."""
    found = card.metrics
    if found is None or found.errors is None:
        return None
    how = _how(card, found.metric)
    scored = {"task": card.task, "metric": found.metric, "averaged": how, "score": found.test, "rows": found.n_test}
    return EvalSummary.model_validate({"schema": EVAL_SCHEMA, **scored, **vars(found.errors)})


def trainings(cards: Sequence[tuple[str, TrainingCard]]) -> Iterator[Section]:
    """A table of scores for each card, and its learning curve where it has one."""
    for number, (name, card) in enumerate(cards):
        if card.metrics is not None:
            yield _scores(f"trained-{number}", name, card, card.metrics)
            if card.metrics.curve:
                yield _curve(f"curve-{number}", name, card.task, card.metrics)


def _scores(key: str, name: str, card: TrainingCard, found: TrainingMetrics) -> Section:
    rows: list[tuple[Cell, ...]] = [(f"this delta, {found.n_test} test rows", found.test, None)]
    rows += [(f"{kind}, the same rows", each.test, each.p) for kind, each in found.baselines.items()]
    rows.append((f"this delta, {found.n_eval} rows that chose its step", found.eval, None))
    how = _how(card, found.metric)
    text = f"{name}. {card.method}, {found.metric} ({how}), trained on {found.n_train} rows."
    notes = [f"not better than the {kind} beyond chance" for kind, each in found.baselines.items() if not each.beaten]
    return Section(key, f"{card.task}: scores", text, ("what", found.metric, "McNemar's p"), rows, notes=notes)


def _curve(key: str, name: str, task: str, found: TrainingMetrics) -> Section:
    from edgepeft.training.curve import plot_curve

    metrics, kinds = found.model_dump(mode="json"), list(found.curve[-1].baselines)

    def draw(figure: Figure) -> None:
        plot_curve(figure.add_subplot(), metrics)

    rows = [(point.rows, point.test, point.eval, *map(point.baselines.get, kinds)) for point in found.curve]
    header = ("training rows", f"{found.metric}, test rows", "rows that chose", *kinds)
    text = f"{name}. On the same {found.n_test} test rows at every size."
    return Section(key, f"{task}: learning curve", text, header, rows, draw)
