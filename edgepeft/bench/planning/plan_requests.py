"""Plans scenarios whose sample is a request to a running program instead of a batch, by the scenario's kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgepeft.bench.planning.job import Batches, Job, TextsRequest
from edgepeft.bench.planning.plan import BenchedModel, BenchedTask, Unit, UnitRole
from edgepeft.bench.planning.scenario import SampleKind, Scenario
from edgepeft.errors import UsageError

__all__ = ["plan_requests"]

_LEAST = 3  # tokens of a text: two special ones and a word


def plan_requests(
    scenario: Scenario, model: BenchedModel, *, lengths: Sequence[int], rows: int, threads: int, seed: int, cache: bool
) -> list[Unit]:
    """List the units of a scenario whose kind is not ``batches``.

    Raises:
        UsageError: the bundle has too few tasks, or no tokenizer.
    """
    if not (model.folder / "tokenizer.json").is_file():
        raise UsageError(f"scenario {scenario.name} begins with texts, and {model.folder} has no tokenizer.json.")
    shared = model.job((), threads=threads, seed=seed, cache=cache)
    tokens = [max(_LEAST, length) for length in lengths]
    return _PLANS[scenario.kind](scenario, model.tasks, tokens, rows, shared)


def _several(scenario: Scenario, tasks: Sequence[BenchedTask]) -> list[str]:
    """The tasks that take part."""
    if len(tasks) < 2:
        raise UsageError(
            f"scenario {scenario.name} needs two tasks or more, found {len(tasks)}; give a bundle that has them, or "
            "--method more than once."
        )
    return [task.name for task in tasks[: scenario.tasks]]


def _unit(variant: str, batches: Batches, requests: list[TextsRequest], shared: Job) -> Unit:
    job = replace(shared, workload="requests", batches=batches, settings={"requests": requests})
    return Unit("infer", "onnxruntime", UnitRole.REQUESTS, job=job, variant=variant)


def _cut(tokens: Sequence[int], size: int) -> Batches:
    """Consecutive requests of ``size`` texts."""
    whole = max(1, len(tokens) // size)
    repeated = [*tokens] * -(-size // len(tokens))
    return tuple(tuple(repeated[i * size : (i + 1) * size]) for i in range(whole))


def _together(
    scenario: Scenario, tasks: Sequence[BenchedTask], tokens: Sequence[int], rows: int, shared: Job
) -> list[Unit]:
    """One request with rows of every task, beside the same rows task after task."""
    names = _several(scenario, tasks)
    batches = _cut(tokens, max(1, rows // len(names)) * len(names))
    ways = {"one mixed batch": "mixed", "task after task": "each"}
    return [
        _unit(way, batches, [{"how": how, "tasks": names, "tokens": batch} for batch in batches], shared)
        for way, how in ways.items()
    ]


def _switching(
    scenario: Scenario, tasks: Sequence[BenchedTask], tokens: Sequence[int], rows: int, shared: Job
) -> list[Unit]:
    """The i-th request is to the i-th task, in turn, or always to the first."""
    names = _several(scenario, tasks)
    # As many texts as tasks at least, so that the turn comes round to all of them.
    repeated = [*tokens] * -(-len(names) * rows // len(tokens))
    batches = _cut(repeated, rows)
    batches = batches[: len(batches) // len(names) * len(names)]
    sides = {"another task each time": names, "the same task": names[:1]}
    units = []
    for side, turn in sides.items():
        asked: list[TextsRequest] = [
            {"how": "one", "tasks": [turn[i % len(turn)]], "tokens": batch} for i, batch in enumerate(batches)
        ]
        units.append(_unit(side, batches, asked, shared))
    return units


def _cold(
    scenario: Scenario, tasks: Sequence[BenchedTask], tokens: Sequence[int], rows: int, shared: Job
) -> list[Unit]:
    """A process of one task, or of the bare backbone where there is none."""
    task = tasks[0] if tasks else None
    name = task.name if task else None
    job = replace(shared, workload="cold_start", batches=_cut(tokens, rows)[:1], task=name)
    return [Unit("infer", "onnxruntime", UnitRole.REQUESTS, task, job=job, variant="a new process")]


_Planner = Callable[[Scenario, Sequence[BenchedTask], Sequence[int], int, Job], list[Unit]]
_PLANS: dict[SampleKind, _Planner] = {
    SampleKind.MULTI_STREAM: _together,
    SampleKind.MIXED_TASKS: _together,
    SampleKind.TASK_SWITCH: _switching,
    SampleKind.COLD_START: _cold,
}
