"""A cold start: a step is a new process that opens the bundle and answers one text.

It is a child of the worker, so the profile's limits hold for it too.
"""

from __future__ import annotations

import json
import subprocess
import sys

from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.common.errors import EdgepeftError

__all__ = ["prepare"]

_ANSWER = """
import json, sys
from edgepeft.runtime.runtime import Runtime
asked = json.loads(sys.argv[1])
with Runtime(asked["bundle"], threads=asked["threads"], cache=asked["cache"]) as runtime:
    if asked["task"] is None:
        runtime.predict_mixed([None], asked["texts"])
    else:
        kind = runtime.bundle.entry(asked["task"]).task_kind
        runtime.predict(asked["task"], [kind.readable(pairs=False, text=text) for text in asked["texts"]])
"""


def prepare(job: Job) -> Prepared:
    """Nothing is loaded here: every step loads it."""
    from edgepeft.bench.planning.target import texts_of

    texts = texts_of(job.batches[0], seed=job.seed)
    asked = {"bundle": job.bundle, "task": job.task, "threads": job.threads, "cache": job.cache, "texts": texts}
    command = [sys.executable, "-P", "-c", _ANSWER, json.dumps(asked)]

    def step(batch: int) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            raise EdgepeftError(f"the new process failed: {last[:300]}")

    return Prepared(step)
