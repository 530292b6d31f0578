"""Whether this machine is a profile's board: then the same commands measure instead of emulating."""

from __future__ import annotations

from pathlib import Path

from edgepeft.host.cores import usable_cores
from edgepeft.host.machine import board_name, cpu_model
from edgepeft.host.sensors import ROOT
from edgepeft.profiles.loader import known_profiles, load_profile
from edgepeft.profiles.schema import Profile

__all__ = ["is_this_board", "profile_of_board"]


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
