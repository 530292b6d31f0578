"""Under what a benchmark's figures came about, and what kind of figures they are, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["conditions_of", "figure_kind", "of_mode"]

_MODES = {"calibrated": ", calibrated to {}", "measured": ", measured on {}", "predicted": ", predicted for {}"}


def figure_kind(document: Mapping[str, Any]) -> str:
    """What kind of figure a throughput is: a reader must not take one for another."""
    return f"Throughput{of_mode(document)}"


def of_mode(document: Mapping[str, Any]) -> str:
    """What follows a figure's name: nothing for limits, whose speed is the host's."""
    told = _MODES.get(str(document.get("mode")), "")
    return told.format((document.get("profile") or {}).get("name"))


def conditions_of(document: Mapping[str, Any]) -> str:
    """Profile, limits in force and host, in a sentence; how far a figure about a device can be trusted."""
    host, profile = document.get("host", {}), document.get("profile", {})
    kept = (profile.get("limits") or {}).get("in_force")
    limits = "no limits in force"
    if kept:
        memory = f"{kept['memory_bytes'] / 1e6:,.0f} MB" if kept.get("memory_bytes") else "unlimited memory"
        limits = f"{kept['cores']} cores and {memory} in force ({kept['backend']})"
    gemm = host.get("gemm_gflops")
    rate = f", {gemm:.0f} GFLOP/s of GEMM" if gemm else ""
    return f"Profile {profile.get('name')}: {limits}, on {host.get('cpu')}{rate}.{_trust(document)}"


def _trust(document: Mapping[str, Any]) -> str:
    """For what claims to be the device's speed."""
    if found := document.get("calibration"):
        return (
            f" Calibrated: {found['share']:.1%} of the cores' time, at which the reference "
            f"({found['reference']}) runs at {found['error']:+.1%} of the device's rate; memory-bound work and "
            "work on one thread are not."
        )
    if document.get("mode") != "predicted":
        return ""
    kinds = {(row.get("predicted") or {}).get("calibration") for row in document["results"]}
    return f" Predicted, nothing ran: {', '.join(sorted(filter(None, kinds)))}."
