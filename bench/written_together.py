"""A workload: texts of several tasks, written in one batch or one after another."""

from __future__ import annotations

from pathlib import Path

from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """``settings["tasks"]``: each row's task; ``settings["apart"]``: one after another.

    ``batches`` has one batch, whose rows are texts of so many tokens.
    """
    from edgepeft.bench.planning.target import texts_of
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    decoding, texts = Decoding(max_new_tokens=job.new_tokens, ends=False), texts_of(job.batches[0], seed=job.seed)
    tasks = job.settings["tasks"]
    rows = [([task], [text]) for task, text in zip(tasks, texts, strict=True)]

    def step(_: int) -> None:
        for some, of_them in rows if job.settings["apart"] else [(tasks, texts)]:
            runtime.predict_mixed(some, of_them, decoding=decoding)

    return Prepared(step)
