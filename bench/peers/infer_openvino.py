"""Inference of a model that OpenVINO converted, in float32 as ours is."""

from __future__ import annotations

from bench.peers.openvino import settings
from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """Compile ``job.model`` for the processor; a step is one batch to the last hidden state."""
    import openvino

    compiled = openvino.Core().compile_model(str(job.model), "CPU", settings(job))
    request = compiled.create_infer_request()
    names = {value.get_any_name() for value in compiled.inputs}

    def step(batch: int) -> None:
        request.infer({name: values for name, values in job.batch(batch).items() if name in names})

    return Prepared(step)
