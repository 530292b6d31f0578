"""Workloads, functions by the names of the plan; a worker imports the file of its own alone."""

from __future__ import annotations

from importlib import import_module

from edgepeft.bench.planning.job import Job, Prepared

_FILES = {
    "models": (
        *("finetune_onnxruntime", "finetune_pytorch", "infer_onnxruntime", "infer_pytorch", "peer", "profiled"),
        *("write_onnxruntime", "write_pytorch", "cold_start", "requests"),
    ),
    "probes": ("copy", "gemm", "gemm_pytorch", "operators", "reference"),
}


def prepare(job: Job) -> Prepared:
    """Load the job's workload: one of these, or with the path of a module elsewhere before its name (peers)."""
    module, _, function = job.workload.rpartition(".")
    module = module or next(f"{__name__}.{file}" for file, names in _FILES.items() if function in names)
    return getattr(import_module(module), function)(job)  # type: ignore[no-any-return]
