"""How well tasks answer: evaluations and trainings, with their errors by class, learning curves and calibration.

Reliability diagrams are Guo et al., 2017, figure 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pydantic import AliasChoices, Field, field_validator

from edgepeft.bench.report.page import BLUE, GREY, Cell, Section
from edgepeft.bench.result.parts import DocumentPart
from edgepeft.data import by_class
from edgepeft.tasks.base import kind_from_card

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EVAL_SCHEMA = "edgepeft.eval/1"
_WITH = {"before": "without temperature", "after": "with temperature"}
_Value = TypeVar("_Value")


class Bin(DocumentPart):
    """Rows whose answers are about as probable: how many, the mean of the probabilities, the share that is right."""

    rows: int
    confidence: float
    accuracy: float


class BeforeAfter(DocumentPart, Generic[_Value]):
    """Without a temperature and with it."""

    before: _Value
    after: _Value


class Kept(DocumentPart):
    """The outcome of a promised coverage or risk on these rows."""

    coverage: float | None = None
    risk: float | None = None
    threshold: float
    unsure: float
    accuracy_of_sure: float | None = None
    covered: float | None = None


class Calibration(DocumentPart):
    """As `edgepeft eval --json` has it, and the errors of a delta's card; ``ece``: expected calibration error."""

    temperature: float
    ece: BeforeAfter[float]
    bins: BeforeAfter[list[Bin]]
    promise: Kept | None = None


def reliability(key: str, name: str, task: str, found: Calibration) -> Iterator[Section]:
    """The diagram with its bins, and a table of what is promised, where something is."""

    def draw(axis: Axes) -> None:
        axis.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="as probable as it is right")
        for which, colour, marker in (("before", GREY, "s--"), ("after", BLUE, "o-")):
            bins = [each for each in getattr(found.bins, which) if each.rows]
            places = [each.confidence for each in bins], [each.accuracy for each in bins]
            error = getattr(found.ece, which)
            axis.plot(*places, marker, color=colour, label=f"{_WITH[which]}: error {by_class.score_text(error)}")
        axis.set(xlabel="probability of the answer", ylabel="share of answers that are right", xlim=(0, 1), ylim=(0, 1))
        axis.legend(frameon=False)

    n = sum(each.rows for each in found.bins.after)
    text = (
        f"{name}. {n} rows in bins of equal width; temperature {found.temperature:.3f}, expected calibration error "
        f"{by_class.score_text(found.ece.before)} without it and {by_class.score_text(found.ece.after)} with it."
    )
    rows: list[tuple[Cell, ...]] = [
        (_WITH[which], each.rows, round(each.confidence, 4), round(each.accuracy, 4))
        for which in _WITH
        for each in getattr(found.bins, which)
        if each.rows
    ]
    head = ("probabilities", "rows", "mean probability", "share right")
    yield Section(key, f"{task}: reliability", text, head, rows, draw, (5.0, 4.5))
    if found.promise is not None:
        kept = by_class.certainty_figures(found.model_dump(exclude_none=True))
        yield Section(f"{key}-kept", f"{task}: unsure answers", f"{name}. {n} rows.", *kept)


class ClassFigures(DocumentPart):
    """Figures of one label; ``support`` is how many rows have it."""

    precision: float
    recall: float
    f1: float
    support: int


class WorstRow(DocumentPart):
    """A row, where it stands, and its loss; or the label that it likely has in place of the answer."""

    row: str
    text: str = ""  # a delta's card has none
    label: str | float | list[str]
    answer: str | float | list[str] = Field(validation_alias=AliasChoices("answer", "likely"))
    loss: float | None = None
    label_probability: float | None = None
    answer_probability: float | None = Field(
        default=None, validation_alias=AliasChoices("answer_probability", "likely_probability")
    )


class Errors(DocumentPart):
    """``by_class`` and ``confusion`` (label -> answer -> rows), or ``residuals`` of numbers, or scores of ``texts``;
    ``calibration`` of probabilities."""

    by_class: dict[str, ClassFigures] = Field(default_factory=dict)
    confusion: dict[str, dict[str, int]] = Field(default_factory=dict)
    residuals: dict[str, float] | None = None
    texts: dict[str, float] | None = None
    figures: dict[str, float] | None = None
    calibration: Calibration | None = None
    mislabelled: list[WorstRow] = Field(default_factory=list)
    mislabelled_rows: int = 0
    worst: list[WorstRow] = Field(default_factory=list)  # as the card's own validator hands them on


class HeadlineFigure(DocumentPart):
    """A figure that fits the rows, and its 95 % interval where there is one."""

    metric: str
    score: float
    low: float | None = None
    high: float | None = None


class EvalSummary(Errors):
    """The whole document."""

    schema_name: Literal["edgepeft.eval/1"] = Field(default="edgepeft.eval/1", alias="schema")
    task: str
    metric: str
    averaged: str
    score: float
    rows: int
    headline: list[HeadlineFigure] = Field(default_factory=list)


def evaluations(documents: Sequence[tuple[str, EvalSummary]]) -> Iterator[Section]:
    """Two tables for each document."""
    for number, (name, found) in enumerate(documents):
        text = f"{name}. {found.metric} {by_class.score_text(found.score)} on {found.rows} rows ({found.averaged})."
        title = "errors by class" if found.by_class or found.figures is None else "scores"
        if found.headline:
            figures = by_class.headline_rows([each.model_dump() for each in found.headline], {})
            yield Section(f"headline-{number}", f"{found.task}: figures", f"{name}. On {found.rows:,} rows.", *figures)
        classes = by_class.class_rows(found.model_dump(exclude_none=True))
        absent = by_class.labels_without_rows(found.model_dump())
        notes = [f"no row has the label {', '.join(absent)}: left out"] if absent else []
        yield Section(f"classes-{number}", f"{found.task}: {title}", text, *classes, notes=notes)
        if found.confusion:
            names, counts = by_class.matrix(found.confusion)
            text, head = f"{name}. Rows of each label, by what was answered.", ("label \\ answer", *names)
            rows: list[tuple[Cell, ...]] = [(one, *row) for one, row in zip(names, counts, strict=True)]
            draw = partial(by_class.plot_confusion, names=names, counts=counts)
            key, title, inches = f"confusion-{number}", f"{found.task}: confusion", by_class.confusion_inches(names)
            yield Section(key, title, text, head, rows, draw, inches)
        if found.figures is not None and found.by_class:
            scores = by_class.figure_rows(found.figures)
            yield Section(f"figures-{number}", f"{found.task}: scores", f"{name}.", *scores)
        if found.calibration is not None:
            yield from reliability(f"reliability-{number}", name, found.task, found.calibration)
        yield from _listed(f"worst-{number}", f"{found.task}: worst rows", f"{name}. By their loss.", found.worst)
        more = f"{name}. {found.mislabelled_rows} in all, by confident learning; the answer is the likelier label."
        yield from _listed(f"mislabelled-{number}", f"{found.task}: may be mislabelled", more, found.mislabelled)


def _listed(key: str, title: str, text: str, found: Sequence[WorstRow]) -> Iterator[Section]:
    """Rows one by one, with what is known of each."""
    texts, p = any(each.text for each in found), any(each.label_probability is not None for each in found)
    shown: list[tuple[str, Callable[[WorstRow], Cell]]] = [("row", lambda each: each.row)]
    shown += [("text", lambda each: each.text)] if texts else []
    shown += [("label", lambda each: by_class.answer_text(each.label))]
    shown += [("its p", lambda each: by_class.score_text(each.label_probability))] if p else []
    shown += [("answer", lambda each: by_class.answer_text(each.answer))]
    shown += [("its p", lambda each: by_class.score_text(each.answer_probability))] if p else []
    shown += [] if p else [("loss", lambda each: by_class.score_text(each.loss))]
    if found:
        rows = [[of(each) for _, of in shown] for each in found]
        yield Section(key, title, text, [name for name, _ in shown], rows)


class Baseline(DocumentPart):
    """A score that the delta has to beat; ``p`` is McNemar's."""

    test: float
    p: float
    beaten: bool


class CurvePoint(DocumentPart):
    """A point of a learning curve; scores are None where a run diverged."""

    rows: int
    eval: float | None
    test: float | None
    baselines: dict[str, float]


class TrainingMetrics(DocumentPart):
    """The scores of a run."""

    metric: str
    eval: float
    test: float
    n_train: int
    n_eval: int
    n_test: int
    headline: list[HeadlineFigure] = Field(default_factory=list)
    baselines: dict[str, Baseline] = Field(default_factory=dict)
    curve: list[CurvePoint] = Field(default_factory=list)
    errors: Errors | None = None


class TrainingCard(DocumentPart):
    """The parts of ``delta.json`` that a report shows; a delta that was imported has no metrics."""

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
    return kind_from_card(card.kind, card.labels, card.head_reads).metric_of(metric).averaged


def evaluation_of(card: TrainingCard) -> EvalSummary | None:
    """The card's errors as an evaluation on its test rows; None where it has none."""
    found = card.metrics
    if found is None or found.errors is None:
        return None
    how = _how(card, found.metric)
    scored = {"task": card.task, "metric": found.metric, "averaged": how, "score": found.test, "rows": found.n_test}
    scored["headline"] = found.headline
    return EvalSummary.model_validate({"schema": EVAL_SCHEMA, **scored, **vars(found.errors)})


def trainings(cards: Sequence[tuple[str, TrainingCard]]) -> Iterator[Section]:
    """A table of scores for each card, and its learning curve where it has one."""
    for number, (name, card) in enumerate(cards):
        if card.metrics is not None:
            found, how = card.metrics, _how(card, card.metrics.metric)
            rows: list[tuple[Cell, ...]] = [(f"this delta, {found.n_test} test rows", found.test, None)]
            rows += [(f"{kind}, the same rows", each.test, each.p) for kind, each in found.baselines.items()]
            rows.append((f"this delta, {found.n_eval} rows that chose its step", found.eval, None))
            text = f"{name}. {card.method}, {found.metric} ({how}), trained on {found.n_train} rows."
            even = [kind for kind, each in found.baselines.items() if not each.beaten]
            notes = [f"not better than the {kind} beyond chance" for kind in even]
            header = ("what", found.metric, "McNemar's p")
            yield Section(f"trained-{number}", f"{card.task}: scores", text, header, rows, notes=notes)
            if card.metrics.curve:
                yield _curve(f"curve-{number}", name, card.task, card.metrics)


def _curve(key: str, name: str, task: str, found: TrainingMetrics) -> Section:
    from edgepeft.training.curve import plot_curve

    kinds, draw = list(found.curve[-1].baselines), partial(plot_curve, metrics=found.model_dump(mode="json"))
    rows = [(point.rows, point.test, point.eval, *map(point.baselines.get, kinds)) for point in found.curve]
    header = ("training rows", f"{found.metric}, test rows", "rows that chose", *kinds)
    text = f"{name}. On the same {found.n_test} test rows at every size."
    return Section(key, f"{task}: learning curve", text, header, rows, draw)
