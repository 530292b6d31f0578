"""``edgepeft profiles new NAME --measure``: a profile of the board that this runs on."""

from __future__ import annotations

import re
from pathlib import Path

from edgepeft.cli._output import messages
from edgepeft.errors import UsageError
from edgepeft.profiles.write import toml_of
from edgepeft.resources import write_atomically

__all__ = ["write_profile"]


def write_profile(name: str | None, out: Path | None, *, measure: bool, force: bool) -> Path:
    """Measure this board and write its profile's file, which is returned.

    Raises:
        UsageError: no name, no --measure, or a file that is there already.
    """
    from edgepeft.bench.board_profile import measured_profile

    if name is None or not measure:
        raise UsageError("give the new profile's name and --measure: edgepeft profiles new my-board --measure.")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise UsageError(f"a profile's name is small letters, digits, dots and dashes, got {name!r}.")
    target = out or Path(f"{name}.toml")
    if target.suffix != ".toml":
        raise UsageError(f"--out {target}: a profile is a .toml file.")
    if target.exists() and not force:
        raise UsageError(f"{target} exists already. Give --force to replace it, or another --out.")
    console = messages()
    with console.status("measuring") as status:
        document, notes = measured_profile(
            name, progress=lambda what, done, total: status.update(f"measuring: {what} ({done + 1} of {total})")
        )
    comment = "Measured on the board itself. How to read profiles: profiles/README.md in edgepeft's repository."
    write_atomically(target, toml_of(document, comment).encode())
    for note in notes:
        console.print(f"note: {note}", markup=False)
    return target
