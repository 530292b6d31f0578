"""Under what a benchmark's figures came about, and what kind of figures they are, in words."""

from __future__ import annotations

from collections.abc import Iterable

from edgepeft.bench.result.parts import ProfileRecord
from edgepeft.bench.result.schema import BenchResult, BenchRow

__all__ = ["conditions_of", "figure_kind", "limits_in_force", "model_name", "of_mode", "warnings_by_kind"]

_MODES = {"calibrated": ", calibrated to {}", "measured": ", measured on {}", "predicted": ", predicted for {}"}


def figure_kind(result: BenchResult) -> str:
    """What kind of figure a throughput is: a reader must not take one for another."""
    return f"Throughput{of_mode(result)}"


def of_mode(result: BenchResult) -> str:
    """What follows a figure's name: nothing for limits, whose speed is the host's."""
    return _MODES.get(str(result.mode), "").format(result.profile.name)


def limits_in_force(profile: ProfileRecord) -> str:
    """The limits that the kernel reported, beside the cores that the profile asks for."""
    kept, requested = profile.limits.in_force, profile.limits.requested
    if kept is None:
        return "limits in force: none"
    cores = f"{kept.cores} core{'s' * (kept.cores != 1)}"
    if requested is not None and requested.cores not in (None, kept.cores):
        cores = f"{kept.cores} of the device's {requested.cores} cores"
    memory = f"{kept.memory_bytes / 1e6:,.0f} MB" if kept.memory_bytes else "unlimited memory"
    return f"limits in force: {cores}, {memory} ({kept.backend}; emulation {profile.emulation})"


def conditions_of(result: BenchResult) -> str:
    """Profile, limits in force and host, in a sentence; how far a figure about a device can be trusted."""
    host, profile = result.host, result.profile
    rate = f", {host.gemm_gflops:.0f} GFLOP/s of GEMM" if host.gemm_gflops else ""
    return f"Profile {profile.name}, {limits_in_force(profile)}, on {host.cpu}{rate}.{_trust(result)}"


def _trust(result: BenchResult) -> str:
    if calibration := result.calibration:
        return (
            f" Calibrated: {calibration.share:.1%} of the cores' time, at which the reference "
            f"({calibration.reference}) runs at {calibration.error:+.1%} of the device's rate; memory-bound work and "
            "work on one thread are not."
        )
    if result.mode != "predicted":
        return ""
    kinds = {row.predicted.calibration for row in result.results if row.predicted}
    return f" Predicted, nothing ran: {', '.join(sorted(kinds))}."


def warnings_by_kind(rows: Iterable[BenchRow]) -> list[list[tuple[str, BenchRow]]]:
    """The warnings with their rows, grouped by what comes before a colon, which names the kind."""
    kinds: dict[str, list[tuple[str, BenchRow]]] = {}
    for row in rows:
        for warning in row.warnings:
            kinds.setdefault(warning.split(":", 1)[0], []).append((warning, row))
    return list(kinds.values())


def model_name(result: BenchResult) -> str:
    """The model's, and whether its weights are random."""
    return f"{result.model.name}{', random weights' if result.model.random_weights else ''}"
