"""Another encoder as an ONNX file (optimum's export, for one), fed by the names of its inputs."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.common.errors import UsageError

__all__ = ["prepare"]

_KNOWN = ("input_ids", "attention_mask", "token_type_ids")


def prepare(job: Job) -> Prepared:
    """Open ``job.model`` as its publisher's users would: default optimisations, the same threads."""

    from edgepeft.runtime.session import plain_session

    try:
        session = plain_session(str(job.model), job.threads)
    except Exception as error:  # ONNX Runtime's exceptions have no common public base
        raise UsageError(f"--peer {job.model}: ONNX Runtime cannot open it: {error}") from error
    names = [node.name for node in session.get_inputs()]
    unknown = sorted(set(names) - set(_KNOWN))
    if unknown:
        raise UsageError(
            f"--peer {job.model} asks for the inputs {', '.join(unknown)}; a peer may have {', '.join(_KNOWN)} only."
        )

    def step(batch: int) -> None:
        values = job.batch(batch)
        session.run(None, {name: values[name] for name in names})

    return Prepared(step)
