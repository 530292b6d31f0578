"""What tasks share: memory, disk and start-up between structures and processes, batches, lower layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from bench.suites._random_bundle import Structure
from bench.suites._result import SuiteRow, Target, bytes_row, ratio_row, seconds_row, switch_row
from bench.suites._suite_run import Racer, SuiteRun, proportional_bytes
from edgepeft.bundle.bundle import TASKS_FOLDER

TITLE = "What tasks share"

_ALIKE = [f"pfeiffer{number}" for number in range(9)]
_OTHERS = ("houlsby", "lora", "compacter", "bitfit")
_STRUCTURES = [Structure("pfeiffer", _ALIKE), *(Structure(method, [method]) for method in _OTHERS)]
_MB = 1e6
_STARTS = 5  # of a process; each loads the model anew
_SWITCHES = 4000  # requests of each kind, a quarter where rounds are few: a 99th percentile with ten beyond it
_FEW_ROUNDS = 10


def measure(run: SuiteRun) -> Iterator[SuiteRow]:
    """From memory to all tasks on one input."""
    bundle = run.bundle("shared", _STRUCTURES)
    yield from _another_structure(run, bundle)
    yield _two_processes(run, bundle)
    yield from _disk(run)
    yield from _start(run, bundle)
    yield _switch(run, bundle)
    yield from _mixed(run, bundle)
    yield from _all_tasks(run)


def _another_structure(run: SuiteRun, bundle: Path) -> Iterator[SuiteRow]:
    tasks = [_ALIKE[0], *_OTHERS]
    job = run.job("requests", bundle, settings={"requests": [_ask("one", [task], [128] * 32) for task in tasks]})
    with run.worker("memory", job) as worker:
        worker.step(0)
        before = proportional_bytes(worker.pid)
        for number, task in enumerate(_OTHERS, 1):
            run.progress("memory of other structures", number, len(_OTHERS))
            worker.step(number)
            now = proportional_bytes(worker.pid)
            beyond = (now - before - (bundle / TASKS_FOLDER / f"{task}.onnx").stat().st_size) / _MB
            what = f"memory of one more task of another structure ({task}) beyond its delta, after 32 x 128 tokens"
            yield SuiteRow(what, value=beyond, unit="MB", target=Target(20.0, at_least=False))
            before = now


def _two_processes(run: SuiteRun, bundle: Path) -> SuiteRow:
    job = run.job("requests", bundle, settings={"requests": [_ask("one", [_ALIKE[0]], [32])]})
    with run.worker("first process", job) as first:
        first.step(0)
        alone = proportional_bytes(first.pid)
        with run.worker("second process", job) as second:
            second.step(0)
            both = proportional_bytes(first.pid) + proportional_bytes(second.pid)
    return bytes_row("memory of two processes on one bundle over that of one", {"two together": both, "one": alone})


def _disk(run: SuiteRun) -> Iterator[SuiteRow]:
    whole = _size(run.bundle("bare"), "model.safetensors")
    for head, kind in (("linear", "linear heads"), (None, "heads of the backbone's kind")):
        nine = [Structure("pfeiffer", _ALIKE, head=head)]
        fp32 = run.bundle(f"nine-{head}", nine)
        small = run.bundle(f"nine-{head}-int8", nine, weights="int8", delta_weights="fp16")
        for folder, stored, most in ((fp32, "fp32", 1.10), (small, "int8 backbone, fp16 deltas", 0.32)):
            what = f"disk of 9 tasks with {kind}, {stored}, over one fp32 model"
            yield bytes_row(what, {"bundle": _size(folder), "one fp32 model": whole}, Target(most, at_least=False))


def _size(folder: Path, pattern: str = "**/*") -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def _start(run: SuiteRun, bundle: Path) -> Iterator[SuiteRow]:
    command = ["run", str(bundle), "--task", _ALIKE[0], "a b c", "--json"]
    run.progress("starting", 0, _STARTS)
    run.command(command)  # what the system reads from disk for the first time is not a warm start
    whole = [run.command(command) for _ in range(_STARTS)]
    yield seconds_row("edgepeft run, whole process, packed weights in the cache", whole, Target(1.0, at_least=False))
    same, other = [], []
    tasks = [*_ALIKE, *_OTHERS]
    job = run.job("requests", bundle, settings={"requests": [_ask("one", [task], [16]) for task in tasks]})
    for number in range(_STARTS):
        run.progress("starting", number, _STARTS)
        with run.worker("one more task", job) as worker:
            took = [worker.step(request).seconds for request in range(len(tasks))]
        same += took[1 : len(_ALIKE)]
        other += took[len(_ALIKE) :]
    for kind, seconds in (("the same structure", same), ("another structure", other)):
        what = f"one more task of {kind} into a running runtime, to its first answer"
        yield seconds_row(what, seconds, Target(0.3, at_least=False))


def _switch(run: SuiteRun, bundle: Path) -> SuiteRow:
    """Requests of one short text each, in random order: to the task asked before, or to another resident one.

    Sessions share their threads, as in `edgepeft serve`: threads of their own, which spin, keep the cores from each
    other.
    """
    tasks = [_ALIKE[0], _ALIKE[1], *_OTHERS]
    requests = [_ask("one", [task], [8]) for task in tasks]
    job = run.job("requests", bundle, settings={"requests": requests, "one_pool": True})
    source, least = Random(run.seed), _SWITCHES // (1 if run.rounds >= _FEW_ROUNDS else 4)
    stays: list[float] = []
    switches: list[float] = []
    with run.worker("switching", job) as worker:
        for _ in range(3):
            for request in range(len(tasks)):
                worker.step(request)
        last = len(tasks) - 1
        while len(stays) < least or len(switches) < least:
            run.progress("switching", min(len(stays), len(switches)), least)
            stay = source.random() < 0.5
            asked = last if stay else source.choice([task for task in range(len(tasks)) if task != last])
            (stays if stay else switches).append(worker.step(asked).seconds)
            last = asked
    what = "a request to another resident task beside one to the same, one pool of threads, 99th percentiles, added"
    return switch_row(what, switches, stays, 1.0)


def _mixed(run: SuiteRun, bundle: Path) -> Iterator[SuiteRow]:
    eight = _ALIKE[:8]
    for rows, tokens, least in ((8, 16, 1.6), (32, 25, 1.1)):
        what = f"{rows} rows of {tokens} tokens for 8 Pfeiffer tasks in one batch"
        peer = f"8 batches of {rows // 8}"
        racers = {"one batch": _racer(run, bundle, "mixed", eight, [tokens] * rows)}
        racers[peer] = _racer(run, bundle, "each", eight, [tokens] * rows)
        # What the batch alone gains, which no way to mix tasks can go beyond.
        racers["bare, one batch"] = _racer(run, bundle, "mixed", [None] * 8, [tokens] * rows)
        racers[f"bare, {peer}"] = _racer(run, bundle, "each", [None] * 8, [tokens] * rows)
        raced = run.race(what, racers)
        yield ratio_row(what, raced, "one batch", peer, Target(least))
        bare = f"the same {rows} rows on the backbone without a task: what a batch can gain here"
        yield ratio_row(bare, raced, "bare, one batch", f"bare, {peer}")


def _all_tasks(run: SuiteRun) -> Iterator[SuiteRow]:
    tasks = [f"skip{number}" for number in range(8)]
    skipped = run.sizes.n_layers // 2
    bundle = run.bundle("lower-layers", [Structure("pfeiffer", tasks, {"skip_layers": str(skipped)})])
    for rows, tokens in ((1, 64), (8, 64)):
        left = f"that leave the lower {skipped} of {run.sizes.n_layers} layers alone"
        what = f"8 Pfeiffer tasks {left} on {rows} x {tokens} tokens"
        racers = {"together": _racer(run, bundle, "all", tasks, [tokens] * rows)}
        racers["8 runs"] = _racer(run, bundle, "one", tasks, [tokens] * rows)
        yield ratio_row(what, run.race(what, racers), "together", "8 runs", Target(1.55))


def _racer(run: SuiteRun, bundle: Path, how: str, tasks: Sequence[str | None], tokens: Sequence[int]) -> Racer:
    return Racer(run.job("requests", bundle, settings={"requests": [_ask(how, tasks, tokens)]}))


def _ask(how: str, tasks: Sequence[str | None], tokens: Sequence[int]) -> dict[str, object]:
    return {"how": how, "tasks": list(tasks), "tokens": list(tokens)}
