"""Which learning rate each method learns best with, and what 8-bit weights cost: one run for each cell of a grid.

    edgepeft export --backbone FOLDER --out BUNDLE --template pfeiffer --template lora ...   # also --weights int8
    python -m bench.rates run RESULTS.jsonl --bundle BUNDLE --data FOLDER   # one line a run; run again, it goes on
    python -m bench.rates table RESULTS.jsonl                               # Markdown: each method's rates
    python -m bench.rates table INT8.jsonl --beside FP32.jsonl              # Markdown: the same cells, two ways

``--data`` holds ``<name>/train.jsonl`` and ``<name>/validation.jsonl``.  A cell is tuned from the bundle's template by
the engine of ``edgepeft tune``, whose losses are those of ``edgepeft train``: on few rows of the first file, its
checkpoint picked on others of it, scored on rows of the second, which neither trained nor chose.

Rule for choosing: of a method's rates, the one whose score is best in the mean over data sets, each data set's being
the mean over its seeds; among rates within a standard error of the best (of the differences to it, over data sets) the
lowest.  A data set counts where something can be learnt from so few rows: the linear head is better than the majority
by more than the standard error of a share of the scored rows.  The scores are those of the second file's rows, which
are more than the evaluation rows that pick checkpoints; what the rule gains is said of data sets that it has not seen:
the rate chosen on the others against the rate of today, one data set left out after the other.  A default changes
where that gain is more than its standard error.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any
from unittest.mock import patch

import typer

from edgepeft.data.course.divergence import Diverged
from edgepeft.data.rows import Row, read_rows
from edgepeft.data.sampling import part
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.tuning.options import TuneOptions
from edgepeft.runtime.tuning.run import TuningRun
from edgepeft.runtime.tuning.subject import Files, from_template

SETS = ("sst2", "sms_spam", "crowdflower_airline", "cola", "mr", "crowdflower_emotion", "mrpc", "rte")
STEPS = (1.0, 3.0, 10.0)  # of the rate that a method starts with today
ROWS, EPOCHS = 320, 6
N_EVAL, N_TEST = 120, 400
MAX_LENGTH = 64

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_BASELINES: dict[tuple[str, int, int], Any] = {}


@dataclass(frozen=True)
class Cell:
    """One run of the grid: ``step`` times the method's rate, on so many rows, so often."""

    data: str
    method: str
    step: float
    seed: int
    rows: int = ROWS
    epochs: int = EPOCHS


def measure(cell: Cell, folder: Path, data: Path) -> dict[str, Any]:
    """Tune one cell on one thread; gives its rate, scores, those of the baselines, its course and seconds."""
    bundle, start = Bundle(folder), time.perf_counter()
    with tempfile.TemporaryDirectory() as work, baselines_once((cell.data, cell.seed, cell.rows)):
        files = _parts(data / cell.data, cell, Path(work))
        options = TuneOptions(seed=cell.seed, epochs=cell.epochs)
        subject = replace(from_template(bundle, "rates", cell.method, files, options), max_length=MAX_LENGTH)
        rate = float(f"{cell.step * subject.rates[0]:.3g}")
        run = TuningRun(bundle, subject, replace(options, learning_rate=rate), Path(work), threads=1)
        try:
            result = run.finish()
        except Diverged:
            return {**asdict(cell), "rate": rate, "diverged": True}
    found = _BASELINES.setdefault((cell.data, cell.seed, cell.rows), result.metrics["baselines"])
    scores = {
        "eval": result.metrics["eval"],
        "test": result.metrics["test"],
        **{n: b["test"] for n, b in found.items()},
    }
    course = [(entry["step"], entry["score"], entry["loss"]) for entry in result.history]
    seconds = round(time.perf_counter() - start, 2)
    return {**asdict(cell), "rate": rate, **scores, "course": course, "seconds": seconds}


def _labels(rows: Sequence[Row]) -> list[str]:
    return [row.label or "" for row in rows]


def _parts(folder: Path, cell: Cell, work: Path) -> Files:
    """The cell's rows, as files: those that train and choose depend on the seed, those that report do not."""
    learning = list(read_rows(folder / "train.jsonl", labels=True))
    taken, left = part(learning, cell.rows, f"rates {cell.seed}", strata=_labels(learning), least=1)
    others = list(read_rows(folder / "validation.jsonl", labels=True))
    chosen = part(left, N_EVAL, "rates eval", strata=_labels(left)).taken
    tested = part(others, N_TEST, "rates test", strata=_labels(others)).taken
    parts = {"train": taken, "eval": chosen, "test": tested}
    paths = {name: work / f"{name}.jsonl" for name in parts}
    for name, rows in parts.items():
        paths[name].write_text("".join(_line(row) for row in rows))
    return Files(paths["train"], paths["eval"], paths["test"])


def _line(row: Row) -> str:
    fields = {"sentence1": row.sentence1, "sentence2": row.sentence2, "label": row.label}
    return json.dumps({name: value for name, value in fields.items() if value is not None}) + "\n"


@contextmanager
def baselines_once(rows: tuple[str, int, int]) -> Iterator[None]:
    """Have the baselines of a data set and seed computed by a process's first run alone: they are the same for all."""
    if rows in _BASELINES:
        with patch("edgepeft.data.course.run.compared_with", return_value=_BASELINES[rows]):
            yield
    else:
        yield


@app.command()
def run(
    results: Path,
    *,
    bundle: Annotated[Path, typer.Option()],
    data: Annotated[Path, typer.Option()],
    sets: Annotated[str, typer.Option()] = ",".join(SETS),
    methods: Annotated[str | None, typer.Option(help="Of the bundle's templates. Default: all.")] = None,
    steps: Annotated[str, typer.Option(help="Times each method's rate.")] = ",".join(map(str, STEPS)),
    seeds: Annotated[int, typer.Option()] = 3,
    rows: Annotated[int, typer.Option(help="That train.")] = ROWS,
    epochs: Annotated[int, typer.Option()] = EPOCHS,
    workers: Annotated[int, typer.Option()] = 2,
) -> None:
    """Run what RESULTS does not hold yet; each line is written when its run is over."""
    names = methods.split(",") if methods else list(Bundle(bundle).manifest.templates)
    times = [float(step) for step in steps.split(",")]
    asked = [
        Cell(d, m, x, s, rows, epochs) for s in range(seeds) for d in sets.split(",") for x in times for m in names
    ]
    done = {_cell(row) for row in _read(results)} if results.exists() else set()
    left = [cell for cell in asked if cell not in done]
    with ProcessPoolExecutor(workers) as pool, results.open("a") as file:
        for n, future in enumerate(as_completed([pool.submit(measure, c, bundle, data) for c in left]), 1):
            file.write(json.dumps(future.result()) + "\n")
            file.flush()
            print(f"{n} of {len(left)}", flush=True)


@app.command()
def table(results: Path, *, beside: Annotated[Path | None, typer.Option()] = None) -> None:
    """Print each method's rates and the rule's choice; with --beside, the test scores of the same cells there."""
    rows = _read(results)
    if beside is None:
        _rates(rows)
    else:
        _differences(rows, _read(beside))


def _rates(rows: Sequence[Mapping[str, Any]]) -> None:
    print("| method | rate: score | chosen | gain on the set left out | linear head | majority | data sets | runs |")
    print("|---|---|---|---|---|---|---|---|")
    for name in sorted({row["method"] for row in rows}):
        own = [row for row in rows if row["method"] == name]
        by_rate = _means(own, "test")
        if not all(by_rate.values()):
            print(f"| `{name}` | no data set on which something can be learnt |")
            continue
        rate, today = choose(by_rate), next(row["rate"] for row in own if row["step"] == 1)
        shown = ", ".join(f"{each:g}: {100 * mean(by_rate[each].values()):.1f}" for each in sorted(by_rate))
        gains = [100 * gain for gain in gains_left_out(by_rate, today)]
        error = stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
        floors = (f"{100 * mean(_means(own, of)[rate].values()):.1f}" for of in ("linear head", "majority"))
        runs = [row for row in own if row["rate"] == rate and row["data"] in by_rate[rate]]
        gain = f"{mean(gains):+.1f} ({error:.1f})" if gains else "-"
        counts = f"{len(by_rate[rate])} | {len(runs)}"
        print(f"| `{name}` | {shown} | {rate:g} | {gain} | {' | '.join(floors)} | {counts} |")


def gains_left_out(by_rate: Mapping[float, Mapping[str, float]], today: float) -> list[float]:
    """Of each data set: the score at the rate that the others choose, less that at today's rate."""
    gains = []
    for data in by_rate[today]:
        others = {rate: {name: s for name, s in scores.items() if name != data} for rate, scores in by_rate.items()}
        if others[today]:
            gains.append(by_rate[choose(others)][data] - by_rate[today][data])
    return gains


def _differences(rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> None:
    there = {_cell(row): row for row in others}
    print("| method | data sets | runs | test score | beside | difference (standard error over runs) |")
    print("|---|---|---|---|---|---|")
    for name in [*sorted({row["method"] for row in rows}), "all"]:
        pairs = [(r, there[_cell(r)]) for r in rows if name in (r["method"], "all") and _cell(r) in there]
        one, other = ([100 * row["test"] for row in side] for side in zip(*pairs, strict=True))
        moved = [a - b for a, b in zip(one, other, strict=True)]
        error = stdev(moved) / math.sqrt(len(moved)) if len(moved) > 1 else math.nan
        counts = f"{len({row['data'] for row, _ in pairs})} | {len(pairs)}"
        print(f"| {name} | {counts} | {mean(one):.2f} | {mean(other):.2f} | {mean(moved):+.2f} ({error:.2f}) |")


def choose(by_rate: Mapping[float, Mapping[str, float]]) -> float:
    """The rule at the top of this module; ``by_rate`` holds each rate's score by data set."""
    best = max(by_rate, key=lambda rate: mean(by_rate[rate].values()))
    for rate in sorted(by_rate):
        lost = [by_rate[best][data] - score for data, score in by_rate[rate].items()]
        if rate == best or (len(lost) > 1 and mean(lost) <= stdev(lost) / math.sqrt(len(lost))):
            return rate
    raise AssertionError("the best rate is one of them")


def _means(rows: Sequence[Mapping[str, Any]], score: str) -> dict[float, dict[str, float]]:
    """By rate and data set; only data sets that count, with every rate run.  A run that diverged scores 0."""
    scores: dict[float, dict[str, list[float]]] = {}
    for row in rows:
        scores.setdefault(row["rate"], {}).setdefault(row["data"], []).append(row.get(score, 0.0))
    shared = set.intersection(*(set(by_data) for by_data in scores.values()))
    counting = {row["data"] for row in rows if "majority" in row and can_be_learnt(row)}
    kept = sorted(shared & counting)
    return {rate: {data: mean(by_data[data]) for data in kept} for rate, by_data in scores.items()}


def can_be_learnt(row: Mapping[str, Any]) -> bool:
    """Whether the linear head of a run is better than the majority by more than chance would have it."""
    share = row["majority"]
    return bool(row["linear head"] > share + math.sqrt(share * (1 - share) / N_TEST))


def _read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()]


def _cell(row: Mapping[str, Any]) -> Cell:
    return Cell(row["data"], row["method"], row["step"], row["seed"], row.get("rows", ROWS), row.get("epochs", EPOCHS))


if __name__ == "__main__":
    app()
