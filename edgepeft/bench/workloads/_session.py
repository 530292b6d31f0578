"""ONNX Runtime sessions of peers and of the GEMM probe, with the options that ours use."""

from __future__ import annotations

from typing import Any

__all__ = ["session_options"]


def session_options(threads: int) -> Any:
    """All optimisations, ``threads`` threads that stop spinning when a run ends.

    A pool that goes on spinning would take the cores from the worker whose turn is next.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3  # a peer's warnings are not ours to print
    return options
