"""What the kernel calls the board that this runs on."""

from __future__ import annotations

from pathlib import Path

from edgepeft.host import groups
from edgepeft.host.sensors import ROOT

__all__ = ["board_name"]


def board_name(root: Path = ROOT) -> str | None:
    """What the kernel calls the board: the device tree's model, else /proc/cpuinfo's; None on a PC."""
    for name in ("proc/device-tree/model", "sys/firmware/devicetree/base/model"):
        if text := (groups.read(root / name) or "").strip("\0 \n"):
            return text
    for line in (groups.read(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "Model" and value.strip():
            return value.strip()
    return None
