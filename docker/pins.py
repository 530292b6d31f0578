"""What docker/runtime.lock has for another machine than this one, with hashes and without markers.

`pip download --platform` chooses wheels for the platform, but reads the markers of requirements for the host.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).resolve().parent / "runtime.lock"


def for_machine(lock: str, machine: str) -> list[str]:
    """The requirements whose marker holds there, each with its hashes."""
    kept = []
    for line in lock.replace("\\\n", " ").splitlines():
        written, _, hashes = line.partition(" --hash=")
        requirement = Requirement(written)
        marker = requirement.marker
        if marker is None or marker.evaluate({"platform_machine": machine, "sys_platform": "linux"}):
            requirement.marker = None
            kept.append(f"{requirement} --hash={' '.join(hashes.split())}")
    return kept


def main() -> None:
    """Print one requirement a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machine", choices=("aarch64", "x86_64"))
    print("\n".join(for_machine(LOCK.read_text(), parser.parse_args().machine)))


if __name__ == "__main__":
    main()
