"""Which board this is, and whether it is a profile's: then the same commands measure instead of emulating."""

from __future__ import annotations

from pathlib import Path

from edgepeft.profiles import groups
from edgepeft.profiles.cores import usable_cores
from edgepeft.profiles.host import cpu_model
from edgepeft.profiles.loader import known_profiles, load_profile
from edgepeft.profiles.schema import Profile
from edgepeft.profiles.sensors import ROOT

__all__ = ["board_name", "is_this_board", "profile_of_board"]


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


def is_this_board(profile: Profile, root: Path = ROOT) -> bool:
    """Whether the profile's device is what this runs on.

    A PC has no name of its own: it needs the processor's whole name, which many have, and as many cores.
    """
    name = board_name(root)
    if name is not None:
        return any(name.startswith(board) for board in profile.boards)
    return cpu_model(root / "proc") in profile.boards and usable_cores() == profile.cores.value


def profile_of_board(root: Path = ROOT) -> Profile | None:
    """The shipped profile of this board; None where there is none."""
    profiles = (load_profile(name) for name in known_profiles())
    return next((profile for profile in profiles if is_this_board(profile, root)), None)
