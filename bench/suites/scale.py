"""From one task to a thousand: memory and start-up of one bundle, beside one merged model for each task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bench.suites._random_bundle import Structure
from bench.suites._result import SuiteRow, Target, bytes_row, seconds_row
from bench.suites._suite_run import SuiteRun, proportional_bytes
from edgepeft.bench.planning.scenario import full_length
from edgepeft.bundle.bundle import TASKS_FOLDER
from edgepeft.common.errors import DoesNotFit

TITLE = "From one task to a thousand"

_TASKS = [f"pfeiffer{number}" for number in range(100)]
_SHOWN = (1, 2, 5, 9, 20, 50, 100)
_PROMISED = (9, 100)
_ROWS, _TOKENS = 32, 128
_MERGED = 4  # models of their own; each takes about a gigabyte
_THOUSAND = [f"bitfit{number}" for number in range(1000)]
_MB = 1e6


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """Memory by number of tasks, ours and merged models; then a thousand tasks."""
    yield from _memory(run)
    yield from _merged(run)
    yield _thousand(run)


def _memory(run: SuiteRun) -> Iterator[SuiteRow]:
    bundle = run.bundle("hundred", [Structure("pfeiffer", _TASKS)])
    tokens = [_TOKENS] * _ROWS
    asked = [{"how": "one", "tasks": [task], "tokens": tokens} for task in _TASKS]
    sizes = [(bundle / TASKS_FOLDER / f"{task}.onnx").stat().st_size for task in _TASKS]
    memory: dict[int, int] = {}
    with run.worker("one bundle", run.job("requests", bundle, settings={"requests": asked})) as worker:
        for number in range(1, len(_TASKS) + 1):
            run.progress("memory by number of tasks", number, len(_TASKS))
            worker.step(number - 1)
            if number in _SHOWN:
                memory[number] = proportional_bytes(worker.pid)
    for number, used in memory.items():
        what = f"memory of {number} resident Pfeiffer tasks, each after {_ROWS} x {_TOKENS} tokens"
        yield SuiteRow(what, value=used / _MB, unit="MB", samples={"tasks": [number], "MB": [used / _MB]})
    for number in _PROMISED:
        what = f"memory of {number} tasks beyond that of one, over the other deltas' bytes"
        sides = {"beyond one task, MB": memory[number] - memory[1], "other deltas, MB": sum(sizes[1:number])}
        yield bytes_row(what, sides, Target(1.1, at_least=False))


def _merged(run: SuiteRun) -> Iterator[SuiteRow]:
    model = run.peer("optimum")
    if isinstance(model, str):
        yield SuiteRow("memory of merged models", "optimum", unit="MB", note=model)
        return
    job = run.job(
        "bench.peers.optimum.sessions", Path(), model=str(model), batches=(full_length(_TOKENS, _ROWS).values,)
    )
    with run.worker("merged models", job) as worker:
        for number in range(1, _MERGED + 1):
            run.progress("memory of merged models", number, _MERGED)
            what = f"memory of {number} merged models, each after {_ROWS} x {_TOKENS} tokens"
            try:
                worker.step(0)
            except DoesNotFit as error:
                yield SuiteRow(what, "optimum", unit="MB", note=f"does not fit: {error}")
                return
            used = proportional_bytes(worker.pid) / _MB
            yield SuiteRow(what, "optimum", used, unit="MB", samples={"tasks": [number], "MB": [used]})


def _thousand(run: SuiteRun) -> SuiteRow:
    bundle = run.bundle("thousand", [Structure("bitfit", _THOUSAND)])
    command = ["run", str(bundle), "--task", _THOUSAND[-1], "a b c", "--json"]
    run.command(command)
    seconds = [run.command(command) for _ in range(3)]
    return seconds_row("edgepeft run on a bundle of 1,000 BitFit tasks, whole process", seconds)
