"""Measures what edgepeft claims, a suite after another, in a bounded time, and says how long it took.

    python -m bench.claims [--minutes 40] [--profile rpi4] [--out build/claims] [SUITE[:BACKBONE]...] [-- SUITE_OPTIONS]

A suite that is not done when its part of the time is over is stopped: it keeps the rows that it has, and that is said.
What a suite leaves of its part is the next ones'.  Without ``--minutes`` none is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.suites import suite_names
from edgepeft.common.errors import UnknownName

_PEERS = ("all-MiniLM-L6-v2", "mpnet-base", "roberta-base")
_GRACE_S, _AGAIN_S = 21.0, 3.0  # for a suite to end, asked every so often


class Claim(NamedTuple):
    """A suite on a shape ("": the suite's own) with options; ``minutes`` is its part, as reckoned for two cores."""

    suite: str
    backbone: str = ""
    minutes: float = 4.0
    options: tuple[str, ...] = ("--max-seconds", "60")

    @property
    def name(self) -> str:
        """Of its result."""
        return "-".join(filter(None, (self.suite, self.backbone)))


# Reckoned from the processor's time of each.  A batch of MiniLM takes an eighth of one of the two others, which are
# measured on one set of lengths here.
CLAIMS = (
    *(Claim("single", shape, n, ("--max-seconds", "100")) for shape, n in zip(_PEERS, (4.0, 4.5, 4.5), strict=True)),
    Claim("batches", _PEERS[0], 3.0, ("--max-seconds", "75")),
    *(Claim("batches", shape, 3.5, ("--max-seconds", "75", "--case", "sst2")) for shape in _PEERS[1:]),
    Claim("stream", _PEERS[0], 2.0, ("--max-seconds", "45")),
    Claim("speed", minutes=4.0, options=("--max-seconds", "40")),
    Claim("tuning", minutes=4.5, options=("--max-seconds", "25")),
    Claim("sharing", minutes=5.0, options=("--max-seconds", "20")),
    Claim("text", "t5-small", 3.0, ("--max-seconds", "10")),
    Claim("kinds", _PEERS[0], 2.5, ("--max-seconds", "5")),
    Claim("scale", _PEERS[0], 2.0),
    Claim("calls", minutes=1.0, options=("--max-seconds", "20")),
    Claim("decoders", minutes=4.0, options=("--max-seconds", "15", "--rounds", "8")),
)


def measured(
    claims: Sequence[Claim], command: Sequence[str], options: Sequence[str], out: Path, minutes: float | None
) -> tuple[str, bool]:
    """Run ``command SUITE`` with the claim's options and these; the report, and whether no suite failed."""
    started, whole, parts, well = time.monotonic(), sum(claim.minutes for claim in claims), 0.0, True
    lines = []
    for claim in claims:
        parts += claim.minutes
        began, file = time.monotonic(), out / f"{claim.name}.json"
        left = None if minutes is None else max(1.0, started + 60 * minutes * parts / whole - began - _GRACE_S)
        file.unlink(missing_ok=True)
        backbone = ("--backbone", claim.backbone) if claim.backbone else ()
        code = _run([*command, claim.suite, *backbone, *claim.options, *options, "--json", str(file)], left)
        rows = len(json.loads(file.read_bytes())["rows"]) if file.is_file() else 0
        said = {0: "whole", None: "stopped at its time"}.get(code, f"failed with exit code {code}")
        well &= code in (0, None)
        lines.append(f"{claim.name}: {rows} rows in {(time.monotonic() - began) / 60:.1f} min, {said}")
    bound = "" if minutes is None else f" of {minutes:g}"
    return "\n".join([*lines, f"all: {(time.monotonic() - started) / 60:.1f}{bound} min"]), well


def _run(command: Sequence[str], seconds: float | None) -> int | None:
    """Its exit code; None where it was stopped, with all that it had started."""
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            _stop(process)
            return None
        except KeyboardInterrupt:
            _stop(process)
            raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The first Ctrl-C ends a comparison, whose rows are kept, the next one the suite and its workers."""
    for _ in range(int(_GRACE_S / _AGAIN_S)):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_AGAIN_S)
            return
    os.killpg(process.pid, signal.SIGKILL)


def _claim(text: str) -> Claim:
    """The suite on that shape, whole; its part of the time is the plan's."""
    suite, _, backbone = text.partition(":")
    if suite not in suite_names():
        raise UnknownName("suite", suite, suite_names())
    planned = (claim.minutes for claim in CLAIMS if (claim.suite, claim.backbone) == (suite, backbone))
    return Claim(suite, backbone, next(planned, 4.0), ())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the report; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.claims", description=__doc__)
    parser.add_argument("suites", nargs="*", help="SUITE or SUITE:BACKBONE; without any, all that is claimed")
    parser.add_argument("--minutes", type=float, help="of all; without it there is no bound")
    parser.add_argument("--profile", default="rpi4", help="the device whose cores and memory are in force")
    parser.add_argument("--out", type=Path, default=Path("build", "claims"), help="a folder for the results")
    parser.add_argument("--work", type=Path, default=Path("build", "models"), help="a folder that keeps the models")
    given = list(sys.argv[1:] if arguments is None else arguments)
    at = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:at])
    try:
        claims = [*map(_claim, asked.suites)] or CLAIMS
    except UnknownName as error:
        parser.error(str(error))
    asked.out.mkdir(parents=True, exist_ok=True)
    options = ("--profile", asked.profile, "--work", str(asked.work), *given[at + 1 :])
    try:
        report, well = measured(claims, [sys.executable, "-m", "bench.suites"], options, asked.out, asked.minutes)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {asked.out}", file=sys.stderr)
        return 130
    print(report)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
