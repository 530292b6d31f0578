"""One batch through ONNX Runtime's profiler, with the session and the kernels that ``edgepeft run`` has.

Batch 0 is a run of the batch; batch 1 ends profiling and leaves the profile at ``settings["trace"]``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from edgepeft.bench.planning.job import Job, Prepared

__all__ = ["prepare"]


def prepare(job: Job) -> Prepared:
    """Open the session; profiling begins with the first run."""
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.runtime.passes import passes
    from edgepeft.runtime.session import open_session, session_options

    bundle, target = Bundle(Path(job.bundle)), Path(job.settings["trace"])
    prompt = bundle.entry(job.task).prompt_length if job.task else 0
    options = session_options(job.threads)
    options.enable_profiling = True
    options.profile_file_prefix = str(target)
    model = bundle.graph(job.task)
    session = open_session(model, bundle.folder, options=options, external_data=bundle.external_data(model))
    read = {value.name for value in session.get_inputs()}

    def step(batch: int) -> None:
        if batch:
            shutil.move(session.end_profiling(), target)
            return
        inputs = job.batch(0)
        for _, part in passes({name: inputs[name] for name in read}, prompt=prompt):
            session.run(None, part)

    return Prepared(step)
