"""A whole report in a folder: ``index.html`` alone is complete; ``report.md`` has its pictures beside it.

It is made of results of bench, quickstart and eval, cards of deltas, and sweeps, told apart by their schema.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TypeVar

from edgepeft.bench.compare import ResultFile
from edgepeft.bench.report import evaluation, tables
from edgepeft.bench.report.page import BLUE, GREEN, GREY, ORANGE, Cell, Section, page, plain_svg
from edgepeft.bench.report.sweeps import swept
from edgepeft.bench.result.parts import DocumentPart, read_document, schema_of
from edgepeft.bench.result.schema import RESULT_SCHEMA, BenchResult, BenchRow, OperatorRecord, ProfiledPass, TaskRecord
from edgepeft.bench.result.statistics import ratio_of_medians
from edgepeft.bundle.card import CARD_FILE, DELTA_FORMAT
from edgepeft.common.atomic import new_folder
from edgepeft.common.errors import DataError, MissingPackage, UsageError
from edgepeft.common.messages import markdown_cell
from edgepeft.sweep.folder import SWEEP_FILE, Sweep, open_sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Inputs = Sequence[tuple[str, object]]  # documents, each with its file's name
Tasks = Sequence[tuple[str, TaskRecord, float | None]]  # name, what it weighs and how well it does, texts a minute
_Kind = TypeVar("_Kind")
_MODELS: dict[str | None, type[DocumentPart]] = {  # by schema; results of bench are read with more checks
    tables.QUICKSTART_SCHEMA: tables.QuickstartSummary,
    evaluation.EVAL_SCHEMA: evaluation.EvalSummary,
    DELTA_FORMAT: evaluation.TrainingCard,
}
_TITLE = "edgepeft: what was measured"
_SERIES = (BLUE, ORANGE, GREEN, "#cc79a7", "#e69f00", "#56b4e9")
_WRAPPED = 34  # characters of a bar's name in a line
_MAX_OPERATORS = 10


def build_report(paths: Sequence[Path], out: Path, *, force: bool = False) -> list[Section]:
    """Write the report; the sections that it has."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackage("a report's pictures need matplotlib: pip install 'edgepeft[train]'.")
    inputs = read_inputs(paths)
    listed = ", ".join(map(str, paths))
    made = sections(inputs)
    if not made:
        raise DataError(f"nothing was measured in {listed}; there is nothing to report.")
    try:
        names = [name for name, _ in inputs]
        files = {"index.html": page(_TITLE, made, names).encode(), "report.md": _markdown(made, names).encode()}
        files |= {f"pictures/{one.key}.svg": plain_svg(one) for one in made if one.draw is not None}
    except (ArithmeticError, ValueError) as error:
        raise DataError(
            f"a figure in {listed} is too large or too small to be drawn ({error}). Measure again, or leave it out."
        ) from error
    with new_folder(out, force=force) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    return made


def _markdown(made: Sequence[Section], names: Sequence[str]) -> str:
    lines = [f"# {_TITLE}", ""]
    for one in made:
        lines += [f"## {markdown_cell(one.title)}", "", markdown_cell(one.text), ""]
        if one.draw is not None:
            lines += [f"![{markdown_cell(one.title)}](pictures/{one.key}.svg)", ""]
        lines += [f"- {markdown_cell(note)}" for note in one.notes] + ([""] if one.notes else [])
        lines += [_row(one.header), "|" + "---|" * len(one.header), *(_row(row) for row in one.rows), ""]
    return "\n".join([*lines, "From " + ", ".join(map(markdown_cell, names)) + ".", ""])


def _row(cells: Sequence[Cell]) -> str:
    shown = (f"{cell:,}" if isinstance(cell, (int, float)) else cell or "-" for cell in cells)
    return "| " + " | ".join(map(markdown_cell, shown)) + " |"


def sections(inputs: Inputs) -> list[Section]:
    """All sections that these inputs have something for; of equal titles, each names its file."""
    bench, cards = _of_kind(BenchResult, inputs), _of_kind(evaluation.TrainingCard, inputs)
    of_cards = ((name, evaluation.evaluation_of(card)) for name, card in cards)
    evaluated = [*_of_kind(evaluation.EvalSummary, inputs), *((name, found) for name, found in of_cards if found)]
    made = [*swept(_of_kind(Sweep, inputs)), *evaluation.trainings(cards), *evaluation.evaluations(evaluated)]
    for number, (name, result) in enumerate(bench):
        for workload in dict.fromkeys(row.workload for row in result.results):
            if rows := [row for row in result.results if row.workload == workload and row.instances_per_minute]:
                made.append(_bars(f"throughput-{number}-{workload}", name, result, workload, rows))
    tasks = _tasks(inputs)
    made += [*_storage(tasks), *_parameters(tasks)]
    for number, (name, result) in enumerate(bench):
        for place, entry in enumerate(result.operators):
            for kind, groups in (("operator", entry.by_type), ("layer", entry.by_layer)):
                made.append(_times(f"operators-{number}-{place}-{kind}", name, entry, groups, kind))
    made += _history([result for _, result in bench])
    titles = [one.title for one in made]
    several = {title for title in titles if titles.count(title) > 1}
    return [
        replace(one, title=f"{one.title} ({one.text.partition('. ')[0]})") if one.title in several else one
        for one in made
    ]


def _bars(key: str, name: str, result: BenchResult, workload: str, rows: Sequence[BenchRow]) -> Section:
    """A workload of one file, with intervals."""
    scenarios = len({row.scenario for row in rows}) > 1
    labels = [f"{row_name(row)}, {row.engine}" + (f", {row.scenario}" if scenarios else "") for row in rows]
    values = [(row.instances_per_minute or 0.0, *_ends(row)) for row in rows]
    predicted = result.mode == "predicted"

    def draw(axis: Axes) -> None:
        for place, (value, low, high) in enumerate(values):
            axis.barh(place, value, height=0.6, color=BLUE if "onnxruntime" in labels[place] else GREY)
            if low is not None and high is not None:
                axis.plot([low, high], [place, place], color="black", linewidth=1.5)
            axis.annotate(f"  {value:,.0f}", (max(value, high or 0.0), place), va="center")
        axis.set_yticks(range(len(labels)), [fill(label, _WRAPPED) for label in labels])
        axis.invert_yaxis()
        axis.margins(x=0.15)
        interval = "the prediction's interval" if predicted else "95 % interval of the median"
        axis.set_xlabel(f"instances per minute; line: {interval}")

    table = []
    for label, value, row in zip(labels, values, rows, strict=True):
        peers = (peer for peer in row.ratio_to if peer in ("backbone", "full") or peer.startswith("variant:"))
        ratio = next((str(row.ratio_to[peer]) for peer in peers), "-")
        table.append((label, *map(_rounded, value), _rounded(row.latency_s.p50, 1000), ratio))
    header = ("what", "instances/min", "low", "high", "p50 ms", "x bare, full or other way")
    does = "fine-tuning" if workload == "finetune" else "inference"
    title = f"Throughput{tables.of_mode(result)}: {does}, {tables.model_name(result)}"
    kinds = tables.warnings_by_kind(rows)
    notes = [first + (f" [and {len(others)} more]" if others else "") for (first, _), *others in kinds]
    text, inches = f"{name}. {tables.conditions_of(result)}", (7.0, 1.0 + 0.5 * len(rows))
    return Section(key, title, text, header, table, draw, inches, notes)


def _ends(row: BenchRow) -> tuple[float | None, float | None]:
    """The rate at the ends of the median's interval, or of the prediction's; none where batches differ in length."""
    if row.predicted and row.predicted.instances_per_minute_interval:
        return row.predicted.instances_per_minute_interval
    if row.mixed or len(row.samples_s) < 2 or row.instances_per_minute is None:
        return None, None
    median = ratio_of_medians(row.samples_s, (1.0,))
    scale = row.instances_per_minute * median.value
    return scale / median.high, scale / median.low


def _rounded(value: float | None, scale: float = 1.0) -> float | None:
    return None if value is None else round(scale * value, 3)


def _storage(tasks: Tasks) -> Iterator[Section]:
    """SPARTAN's tables 1 and 2 (storage, throughput) in one picture, the score beside each task."""
    points, rows = [], list[tuple[Cell, ...]]()
    for name, task, rate in tasks:
        if task.n_bytes and rate:
            score = "" if task.score is None else f"\n{task.metric} {task.score:.3f}"
            points.append((task.n_bytes / 1e6, rate, f"{name}, {task.method}{score}"))
            rows.append((name, task.method, task.n_bytes, _rounded(rate), task.metric, _rounded(task.score)))

    def draw(axis: Axes) -> None:
        _scatter(axis, points, BLUE)
        axis.set(xlabel="storage of one more task, MB", ylabel="inference, instances per minute")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
        axis.margins(x=0.3, y=0.2)

    header = ("task", "method", "storage, bytes", "instances/min", "metric", "score")
    text = "One point a task: to the left is smaller, up is faster. What SPARTAN's tables 1 and 2 compare."
    if rows:
        yield Section("storage", "Storage against throughput against score", text, header, rows, draw)


def _parameters(tasks: Tasks) -> Iterator[Section]:
    """Houlsby's figure 3: parameters trained against the score."""
    points, rows = [], list[tuple[Cell, ...]]()
    for name, task, _ in tasks:
        if task.trainable_parameters and task.score is not None:
            points.append((task.trainable_parameters, task.score, f"{name}, {task.method}"))
            rows.append((name, task.method, task.trainable_parameters, task.metric, _rounded(task.score)))

    def draw(axis: Axes) -> None:
        _scatter(axis, points, ORANGE)
        axis.set(xlabel="parameters trained for one task", ylabel="score", xscale="log")
        axis.xaxis.set_major_formatter("{x:,.0f}")  # matplotlib's own writes mathematics, which stays text here
        axis.xaxis.set_minor_formatter("{x:,.0f}")
        axis.tick_params(axis="x", which="both", rotation=30)
        axis.margins(x=0.3, y=0.3)

    text = "Scores of rows that neither training nor the choice of a checkpoint saw. Houlsby's figure 3."
    if rows:
        header = ("task", "method", "parameters", "metric", "score")
        yield Section("parameters", "Parameters against score", text, header, rows, draw)


def _scatter(axis: Axes, points: Sequence[tuple[float, float, str]], colour: str) -> None:
    """A point each, with its name beside it."""
    for x, y, name in points:
        axis.scatter(x, y, s=60, color=colour)
        axis.annotate(name, (x, y), (6, 6), textcoords="offset points")


def _times(key: str, name: str, entry: ProfiledPass, groups: Sequence[OperatorRecord], kind: str) -> Section:
    shown = groups[:_MAX_OPERATORS] if kind == "operator" else groups

    def draw(axis: Axes) -> None:
        for place, one in enumerate(shown):
            axis.barh(place, 1000 * one.seconds, height=0.6, color=BLUE, label="" if place else "time")
            ends, floor = [place - 0.38, place + 0.38], [1000 * one.floor_s] * 2
            axis.plot(floor, ends, color=ORANGE, linewidth=3, label="" if place else "floor")
        axis.set_yticks(range(len(shown)), [one.name for one in shown])
        axis.invert_yaxis()
        axis.figure.legend(frameon=False, loc="outside upper right", ncols=2)
        axis.set_xlabel("ms for one batch")

    ceilings = entry.ceilings
    text = (
        f"{name}. {entry.rows} rows, {entry.tokens} tokens. The floor is the larger of operations over "
        f"{ceilings.flops_per_s / 1e9:.0f} GFLOP/s and bytes over {ceilings.bytes_per_s / 1e9:.1f} GB/s, both "
        "measured in the same run."
    )
    rows = []
    for one in groups:
        work = _rounded(one.flops, 1e-9), _rounded(one.bytes, 1e-6)
        times = _rounded(one.seconds, 1000), *work, _rounded(one.floor_s, 1000), _rounded(one.gap)
        rows.append((one.name, one.count, *times))
    header = (kind, "runs", "ms", "GFLOP", "MB", "floor ms", "gap")
    inches = (7.0, 1.5 + 0.32 * len(shown))
    return Section(key, f"Time by {kind}: {entry.of}", text, header, rows, draw, inches)


def _history(results: Sequence[BenchResult]) -> Iterator[Section]:
    """Throughput of what several results measured, by commit."""
    runs = sorted((one for one in results if one.measured_at), key=lambda one: str(one.measured_at))
    lines: dict[str, dict[int, float]] = {}
    for place, result in enumerate(runs):
        for row in result.results:
            if row.instances_per_minute:
                what = f"{row.workload} {row.engine} {row_name(row)}, {row.batch_size} x {row.sequence_length}"
                lines.setdefault(what + tables.of_mode(result), {})[place] = row.instances_per_minute
    several = {what: line for what, line in lines.items() if len(line) > 1}
    if not several:
        return
    names = [result.commit[:8] if result.commit else str(result.measured_at)[:16] for result in runs]

    def draw(axis: Axes) -> None:
        for colour, (what, line) in zip(_SERIES, several.items(), strict=False):
            axis.plot(list(line), list(line.values()), marker="o", color=colour, label=fill(what, 60))
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_ylim(bottom=0)
        axis.set_ylabel("instances per minute")
        axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, -0.25))

    left = f" The first {len(_SERIES)} are drawn." if len(several) > len(_SERIES) else ""
    text = f"In the order of measuring; a curve of a shared host moves by itself.{left}"
    rows: list[tuple[Cell, ...]] = [
        (what, names[place], runs[place].measured_at, _rounded(rate))
        for what, line in several.items()
        for place, rate in line.items()
    ]
    header = ("what", "commit", "measured at", "instances/min")
    yield Section("history", "History over commits", text, header, rows, draw, (7.0, 5.0))


def _of_kind(kind: type[_Kind], inputs: Inputs) -> list[tuple[str, _Kind]]:
    return [(name, document) for name, document in inputs if isinstance(document, kind)]


def _tasks(inputs: Inputs) -> Tasks:
    """Tasks of bundles whose manifests describe their training, each once."""
    found = list[tuple[str, TaskRecord, float | None]]()
    for _, result in _of_kind(BenchResult, inputs):
        for name, task in result.model.tasks.items():
            rates = (
                row.instances_per_minute
                for row in result.results
                if (row.task, row.workload, row.engine) == (name, "infer", "onnxruntime")
                and row.instances_per_minute
                and not row.predicted
            )
            found.append((name, task, next(rates, None)))
    for _, summary in _of_kind(tables.QuickstartSummary, inputs):
        for one in summary.tasks:
            known = one.model_dump(include={"method", "trainable_parameters", "metric", "score"})
            task = TaskRecord(**known, n_bytes=one.delta_bytes)
            found.append((one.name, task, one.instances_per_minute.get("infer onnxruntime")))
    return list({name + task.method: (name, task, rate) for name, task, rate in found}.values())


def row_name(row: BenchRow) -> str:
    """Name the subject of a row, within its workload and engine."""
    return f"{row.task} ({row.method or '-'})" if row.task and not row.variant else tables.subject_of(row)


def read_inputs(paths: Sequence[Path]) -> Inputs:
    """Read them; a folder is a delta's, or a sweep's."""
    found = list[tuple[str, object]]()
    for given in paths:
        if (given / SWEEP_FILE).is_file():
            found.append((given.name or str(given), open_sweep(given)))
            continue
        path = given / CARD_FILE if given.is_dir() else given
        if given.is_dir() and not path.is_file():
            raise UsageError(
                f"{given} is a folder of neither a trained delta ({CARD_FILE}) nor a sweep ({SWEEP_FILE}); give one of "
                "these, or results of bench and eval (--json)."
            )
        schema = schema_of(path)
        if schema == RESULT_SCHEMA:
            found.append((path.name, ResultFile.open(path).document))
        elif schema in _MODELS:
            name = f"{path.parent.name}/{path.name}" if schema == DELTA_FORMAT else path.name
            found.append((name, read_document(path, _MODELS[schema])))
        else:
            known = ", ".join(map(str, (RESULT_SCHEMA, *_MODELS)))
            raise DataError(f"{path}: schema {schema!r} is none that a report is made of; known: {known}.")
    return found
