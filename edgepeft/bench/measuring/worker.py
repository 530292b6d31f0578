"""The child process of one unit: ``python -m edgepeft.bench.measuring.worker``.

JSON lines on standard input and output: a job, then ``{"step": i}`` any number of times, then ``{"close": true}``.
Under a CPU quota ``{"step": i, "span_s": s}`` repeats the step for s seconds.  Between lines it waits in ``read``, so
it takes no core from the worker whose turn it is.  What libraries print goes to standard error.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from edgepeft.bench.planning.job import Job, Prepared

_PROBES = ("copy", "gemm", "gemm_pytorch", "operators", "reference")  # workloads in probes.py, others in models.py
_PERIOD_S = 0.1  # of a quota
_MAX_EACH = 200  # single steps of a span that are reported; the mean is of all


def peak_rss_bytes() -> int:
    """Largest resident size of this process since it was executed."""
    try:
        status = Path("/proc/self/status").read_text(errors="replace")
        # Not ru_maxrss: on Linux it starts with the parent's size, carried over by fork and exec.
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def prepare(job: Job) -> Prepared:
    """Load the job's workload: one of ours, or with the path of a module elsewhere before its name (peers)."""
    module, _, function = job.workload.rpartition(".")
    module = module or f"edgepeft.bench.workloads.{'probes' if function in _PROBES else 'models'}"
    return getattr(import_module(module), function)(job)


def serve(requests: IO[str], replies: IO[str]) -> None:
    """Answer requests until ``close`` or the end of input; an error is the last reply."""
    try:
        for reply in _replies(requests):
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
    except Exception as error:
        from edgepeft.common.errors import EdgepeftError, says_out_of_memory

        kind, message = "crash", f"{type(error).__name__}: {error}"
        if isinstance(error, MemoryError) or says_out_of_memory(message):
            kind = "memory"
        elif isinstance(error, EdgepeftError):
            kind, message = type(error).__name__, str(error)
        replies.write(json.dumps({"error": {"kind": kind, "message": message}}) + "\n")
        replies.flush()


def _replies(requests: IO[str]) -> Iterator[Mapping[str, object]]:
    from edgepeft.bench.planning.job import Job

    job = Job.from_json(requests.readline())
    prepared = prepare(job)
    for index in range(len(job.batches)):
        job.batch(index)  # drawn and kept now, not while a step is timed
    gc.collect()
    gc.freeze()  # what is loaded stays: a collection looks at what steps left, in microseconds
    gc.disable()  # a collection in the middle of a step would be measured; they run between steps
    yield {"ready": True, "notes": list(prepared.notes)}
    while line := requests.readline():
        request = json.loads(line)
        if "close" in request:
            yield {"peak_rss_bytes": peak_rss_bytes()}
            return
        batch = int(request["step"])
        if span := request.get("span_s"):
            yield _spanned(prepared.step, batch, float(span))
        else:
            cpu, wall = time.process_time(), time.perf_counter()
            prepared.step(batch)
            yield {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
        gc.collect()


def _spanned(step: Callable[[int], None], batch: int, span: float) -> dict[str, object]:
    """Repeat the step for ``span`` seconds, as under a quota that holds all the time; the mean of the steps."""
    # A worker that has waited has a whole period's quota left, and a short step would be over before it is used up.
    spun = time.perf_counter() + _PERIOD_S
    while time.perf_counter() < spun:
        pass
    each: list[float] = []
    cpu, began = time.process_time(), time.perf_counter()
    ended = began
    while ended - began < span:
        before = ended
        step(batch)
        ended = time.perf_counter()
        each.append(ended - before)
    n = len(each)
    used = time.process_time() - cpu
    reported = each[:: -(-n // _MAX_EACH)]
    return {"seconds": (ended - began) / n, "cpu_seconds": used / n, "each": reported, "repeats": n}


def main() -> None:
    """Keep the reply channel apart from standard output, then serve."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which keeps what was measured
    os.dup2(2, 1)  # a library's print must not end up between the replies
    serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
