"""Enters the limits, reports what is seen there, becomes the work: ``launcher.py SPEC PROGRAM ARGUMENTS...``.

Run as a file by ``python -I -S``, so it uses the standard library alone and starts in a few
milliseconds whatever the work's environment is. SPEC is JSON: ``joins``, ``cpus``, ``address_space_bytes`` and
``fds``, one or two sockets. The report goes to the first, which closes when the work starts; that it does after a byte
from there. While the parent holds the other end of the second, a keeper runs.
"""

import json
import os
import subprocess
import sys
from typing import Any


def _enter(spec: dict[str, Any]) -> dict[str, Any]:
    import resource  # a Unix has it; elsewhere this module is imported and never run

    for procs in spec["joins"]:
        descriptor = os.open(procs, os.O_WRONLY)
        try:
            os.write(descriptor, str(os.getpid()).encode())
        finally:
            os.close(descriptor)
    for keeper in spec["fds"][1:]:
        # A process that ends when the parent closes its end, for a scope lives as long as a process is in it.
        # Through a shell that ends at once: the work must not find a child that it did not start.
        script = "exec 3<&0; cat <&3 >/dev/null 2>&1 &"
        subprocess.run(["sh", "-c", script], stdin=keeper, start_new_session=True, check=True)
        os.close(keeper)
    if spec["cpus"] is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec["cpus"])
    if (asked := spec["address_space_bytes"]) is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        allowed = asked if hard == resource.RLIM_INFINITY else min(asked, hard)
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return {"pid": os.getpid(), "cpus": cpus, "address_space_bytes": None if space == resource.RLIM_INFINITY else space}


def main(spec_text: str, argv: list[str]) -> int:
    """Enter, report, wait for a byte, exec. Returns only if the work could not be started (127)."""
    spec = json.loads(spec_text)
    parent, stage = spec["fds"][0], "enter"
    os.set_inheritable(parent, False)
    try:
        os.write(parent, json.dumps(_enter(spec)).encode() + b"\n")
        if not os.read(parent, 1):  # the parent found the limits wanting, or died
            return 127
        stage = "exec"
        os.execvp(argv[0], argv)
    except (OSError, MemoryError, ValueError, subprocess.CalledProcessError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        failure = {"stage": stage, "errno": getattr(error, "errno", None), "reason": reason}
        os.write(parent, json.dumps(failure).encode() + b"\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
