"""Train two tasks on real text, export them with one backbone, and measure them under the rpi4 profile."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

from typer import Option

from edgepeft.cli._output import table_console
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import UsageError, requiring
from edgepeft.common.progress import say, shown_steps
from edgepeft.options.verbs import BenchOptions

PANEL = "Train"

PROFILE = "rpi4"
LENGTHS = "mrpc"  # real lengths, counted with this backbone's own tokenizer
ROUNDS, MAX_SECONDS = 8, 180.0  # a first figure; `edgepeft bench` measures long enough for a comparison
_SUMMARY = "quickstart.json"
_WRITTEN = {
    "bundle": "backbone, both tasks, tokenizer: all that a board needs",
    "deltas": "what was trained",
    "data": "the rows, as `edgepeft train` reads them",
    "bench.json": "every sample of the measurement",
    _SUMMARY: "this table",
}


def command(
    out: Annotated[Path, Option(help="The folder to write to.")] = Path("exports/quickstart"),
    force: Annotated[bool, Option("--force", help="Replace an earlier quickstart there.")] = False,
) -> None:
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; an output folder is needed. Choose another name.")
    names = {path.name for path in out.iterdir()} if out.exists() else set()
    if names - {*_WRITTEN}:  # what an earlier run did not write stays
        raise UsageError(f"{out} holds other files than a quickstart's; choose another folder.")
    if names and not force:
        raise UsageError(f"{out} exists already. Give --force to replace it, or choose another folder.")
    with requiring("train", "the quickstart"):
        import_module("edgepeft.training.loop")  # first: it refuses a torch that would die here
        import_module("transformers")
    from edgepeft.bench.report.tables import quickstart_summary, quickstart_table
    from edgepeft.bench.run import run_benchmark
    from edgepeft.training.demo import TASKS
    from edgepeft.training.exporting.bundle import export

    seconds: dict[str, float] = {}
    with _timed("train", seconds):
        backbone, deltas = _train(out)
    with _timed("export", seconds):
        manifest = export(backbone=backbone, delta=deltas, out=out / "bundle", force=True).manifest
        assert manifest is not None
    with _timed("bench", seconds):
        request = BenchOptions(
            profile=PROFILE, bundle=out / "bundle", lengths=LENGTHS, rounds=ROUNDS, max_seconds=MAX_SECONDS
        )
        with shown_steps() as show:
            outcome = run_benchmark(
                request, progress=lambda what, done, total: show(f"measure: {what}", done, total), say=say
            )
        write_json(out / "bench.json", outcome.result.to_json())
        for failure in outcome.failures:
            say(f"note: {failure}")
    described = [(task.name, task.corpus) for task in TASKS]
    data = [{"name": name, "title": of.title, "source": of.source, "licence": of.licence} for name, of in described]
    summary = quickstart_summary(data, manifest, outcome.result, seconds)
    write_json(out / _SUMMARY, summary.to_json())
    console = table_console()
    console.print(quickstart_table(summary))
    console.print(f"\nWritten in {sum(seconds.values()):.0f} s:", markup=False)
    for name, what in _WRITTEN.items():
        console.print(f"  {out / name}  {what}", markup=False, soft_wrap=True)
    console.print(f'\nTry: edgepeft run {out / "bundle"} --task topic --task spam "Shares fell 12% on Tuesday."')


def _train(out: Path) -> tuple[Path, list[Path]]:
    """Write both tasks' rows and train them; the backbone's folder, and the deltas'."""
    from edgepeft.training import demo
    from edgepeft.training.loop import train

    corpora = {task.name: demo.corpus(task.corpus) for task in demo.TASKS}  # first: what is missing ends the run here
    backbone, deltas = demo.backbone(), [out / "deltas" / task.name for task in demo.TASKS]
    for task, delta in zip(demo.TASKS, deltas, strict=True):
        parts = demo.split(corpora[task.name], n_train=task.n_train, n_eval=task.n_eval, n_test=task.n_test)
        files = demo.write_rows(parts, out / "data" / task.corpus.name)
        train(
            backbone=backbone,
            task=task.name,
            method=task.method,
            data=files["train"],
            eval=files["eval"],
            test=files["test"],
            epochs=1,
            lr=task.learning_rate,
            batch_size=task.batch_size,
            max_length=task.max_length,
            out=delta,
            force=True,
        )
    return backbone, deltas


@contextmanager
def _timed(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
