"""Workloads, functions by the names of the plan; a worker imports the file of its own alone."""

from __future__ import annotations

from importlib import import_module

from edgepeft.bench.planning.job import Job, Prepared

_FILES = {
    "models": (
        *("finetune_onnxruntime", "finetune_pytorch", "infer_onnxruntime", "infer_pytorch", "peer", "profiled"),
        *("write_onnxruntime", "write_pytorch"),
    ),
    "probes": ("copy", "gemm", "gemm_pytorch", "operators", "reference"),
    "requests": ("cold_start", "requests"),
}


def prepare(job: Job) -> Prepared:
    """Load the job's workload: one of these, or where it has a dot ``prepare`` of a module elsewhere (peers)."""
    if "." in job.workload:
        return import_module(job.workload).prepare(job)  # type: ignore[no-any-return]
    file = {name: file for file, names in _FILES.items() for name in names}[job.workload]
    return getattr(import_module(f"{__name__}.{file}"), job.workload)(job)  # type: ignore[no-any-return]
