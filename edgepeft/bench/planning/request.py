"""The request for a benchmark, and which combinations of options are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgepeft.errors import UnknownName, UsageError

__all__ = ["ENGINES", "MODES", "WORKLOADS", "BenchRequest", "check_request"]

ENGINES = ("onnxruntime", "pytorch")
WORKLOADS = ("infer", "finetune")
MODES = ("limits", "calibrated", "predicted")


@dataclass(frozen=True)
class BenchRequest:
    """The options; None stands for the scenario's value, an empty tuple for everything there is."""

    profile: str
    bundle: Path | None = None
    backbone: str | None = None
    methods: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    batch_size: int | None = None
    length: int | None = None
    lengths: str | None = None
    peers: tuple[Path, ...] = ()
    rounds: int | None = None
    max_seconds: float | None = None
    seed: int = 0
    mode: str = "limits"
    scenario: str = "offline"
    cache: bool = True
    timed: bool = True  # else nothing is measured: with ``counted``, the figures that need no clock
    counted: bool = False
    instructions: bool = False  # also count those of one inference, under QEMU where it is
    profile_ops: bool = False  # with ``timed``: where the time of inference goes, by operator


def check_request(request: BenchRequest) -> None:
    """Refuse options that contradict each other, before anything is made.

    Raises:
        UsageError: the message names the options.
    """
    for kind, asked, known in (
        ("engine", request.engines, ENGINES),
        ("workload", request.workloads, WORKLOADS),
        ("mode", (request.mode,), MODES),
    ):
        for name in asked:
            if name not in known:
                raise UnknownName(kind, name, known)
    if request.profile_ops and not request.timed:
        raise UsageError("--profile-ops takes times, and --deterministic takes none; leave one out.")
    if request.mode == "predicted":
        _check_predictable(request)
    if request.mode != "limits" and (request.profile_ops or not request.timed):
        raise UsageError(f"--profile-ops and --deterministic are about this host; leave --mode {request.mode} out.")
    _check_numbers(request)
    _check_model(request)


def _check_numbers(request: BenchRequest) -> None:
    for option, number in (("--batch-size", request.batch_size), ("--length", request.length)):
        if number is not None and number < 1:
            raise UsageError(f"{option} must be at least 1, got {number}.")
    if request.rounds is not None and request.rounds < 1:
        raise UsageError(f"--rounds must be at least 1, got {request.rounds}.")
    if request.max_seconds is not None and not request.max_seconds > 0:
        raise UsageError(f"--max-seconds must be above 0, got {request.max_seconds}.")
    if request.length is not None and request.lengths is not None:
        raise UsageError("--length and --lengths exclude each other; give one.")


def _check_model(request: BenchRequest) -> None:
    if request.bundle is not None and (request.backbone is not None or request.settings):
        raise UsageError("--backbone and --set make a random model; they do not go with a bundle. Leave one out.")
    if request.bundle is None and request.tasks:
        raise UsageError("--task names a task of a bundle; give the bundle's folder, or --method for random weights.")
    for peer in request.peers:
        if not peer.is_file():
            raise UsageError(f"--peer {peer}: there is no such file.")


def _check_predictable(request: BenchRequest) -> None:
    infers = not request.workloads or "infer" in request.workloads
    if not set(request.engines) <= {"onnxruntime"} or not infers or request.peers:
        raise UsageError(
            "--mode predicted predicts inference with ONNX Runtime; another --engine, --workload or a --peer must run."
        )
