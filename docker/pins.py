"""The pins of constraints.txt, or with --wanted the runtime image's requirements, for another machine than this one.

`pip download --platform` chooses wheels for the platform, but reads the markers of requirements for the host.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


def for_machine(lines: list[str], machine: str) -> list[str]:
    """Those whose marker holds there, without it."""
    found = []
    for line in lines:
        requirement = Requirement(line.split(" #")[0])
        marker = requirement.marker
        if marker is None or marker.evaluate({"platform_machine": machine, "sys_platform": "linux"}):
            requirement.marker = None
            found.append(str(requirement))
    return found


def main() -> None:
    """Print one requirement a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machine", choices=("aarch64", "x86_64"))
    parser.add_argument("--wanted", action="store_true")
    asked = parser.parse_args()
    if asked.wanted:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        lines = [*project["dependencies"], *project["optional-dependencies"]["serve"], "hatchling"]
    else:
        text = (ROOT / "constraints.txt").read_text().splitlines()
        lines = [line for line in text if line and not line.startswith("#")]
    print("\n".join(for_machine(lines, asked.machine)))


if __name__ == "__main__":
    main()
