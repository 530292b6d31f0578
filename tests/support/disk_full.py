"""A disk that fills: add, remove, tune and cache building on a tmpfs with too little room.  Needs root.

    python tests/support/disk_full.py

Each operation is tried with less and less room; it must end with a message or do its work, and the bundle must be whole.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kills import OPERATIONS, check, prepare_spare
from subject import subject

from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import EdgepeftError

ROOMS_KB = (0, 4, 16, 64, 256, 1024, 4096)


def attempt(name: str, bundle: Path, spare: Path, pipe: Any) -> None:
    """In a process of its own, whose memory goes with it."""
    os.environ["TMPDIR"] = str(bundle.parent)
    tempfile.tempdir = None
    try:
        OPERATIONS[name](bundle, spare)
    except EdgepeftError as error:
        pipe.send(f"refused: {error}")
    except OSError as error:
        pipe.send(f"refused: {error.strerror}" if error.errno == 28 else f"FINDING {error!r}")
    except BaseException as error:
        pipe.send(f"FINDING {error!r}")
    else:
        pipe.send("done")


def trial(name: str, sound: Path, spare: Path, disk: Path, room_kb: int) -> str:
    """With ``room_kb`` left on the disk; how it ended."""
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    bundle = Path(shutil.copytree(sound, disk / "bundle"))
    before = Manifest.read(bundle)
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "filling").write_bytes(b"\0" * max(0, free - (room_kb << 10)))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=attempt, args=(name, bundle, spare, theirs))
    process.start()
    theirs.close()
    try:
        outcome = str(ours.recv())
    except EOFError:
        outcome = "FINDING the process died"
    process.join()
    try:
        problem = check(name, bundle, before)
    except Exception as error:
        problem = repr(error)
    return outcome if problem is None else f"FINDING {problem} (it had ended with: {outcome})"


def main() -> None:
    """Prints one JSON document; exit 1 where something was lost."""
    folder = Path(tempfile.mkdtemp(prefix="edgepeft-full."))
    sound = subject(folder / "subject")
    spare = prepare_spare(sound)
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
    outcomes: Counter[str] = Counter()
    findings = []
    try:
        for name in OPERATIONS:
            for room in ROOMS_KB:
                found = trial(name, sound, spare, disk, room)
                outcomes[found.split(":")[0].split()[0]] += 1
                if found.startswith("FINDING"):
                    findings.append({"operation": name, "room_kb": room, "what": found})
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    print(json.dumps({"trials": sum(outcomes.values()), "outcomes": dict(outcomes), "findings": findings}, indent=2))
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
