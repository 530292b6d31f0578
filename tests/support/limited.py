"""A program run to its end under limits, for tests of the ways to limit."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from edgepeft.device.limited_process import BACKENDS, LimitedProcess
from edgepeft.device.placement import InForce


@dataclass(frozen=True)
class LimitedRun:
    returncode: int
    stdout: bytes
    stderr: bytes
    in_force: InForce
    peak_bytes: int | None


def run_limited(argv, limits, *, input=b"", env=None, backends=BACKENDS):
    with LimitedProcess(argv, limits, env=env, stderr=subprocess.PIPE, backends=backends) as process:
        out, err = process.popen.communicate(input, timeout=60)
        status = process.popen.returncode
        if status != 0:
            process.raise_if_out_of_memory(err.decode(errors="replace"))
        return LimitedRun(status, out, err, process.in_force, process.peak_bytes())
