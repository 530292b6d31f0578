"""A workload: label words scored behind texts, whose first tokens' keys and values are there already, or are not."""

from __future__ import annotations

from pathlib import Path

from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """``settings["known"]``: how many tokens of the one batch's first row are in its task's cache."""
    from edgepeft.runtime.runtime import Runtime

    runtime, task = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache), job.task
    inputs = {name: job.batch(0)[name] for name in runtime.bundle.architecture.inputs}
    known = inputs["input_ids"][0, : job.settings["known"]].tolist()
    runtime.generator.leading = lambda _: known
    assert task is not None, "labels are a task's"

    def step(_: int) -> None:
        runtime.logits(task, inputs)

    return Prepared(step)
