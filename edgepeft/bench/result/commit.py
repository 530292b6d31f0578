"""The commit that a result was measured of, and the time at which it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import edgepeft

__all__ = ["commit_under_test", "utc_now"]

_CI = ("GITHUB_SHA", "CI_COMMIT_SHA")  # GitHub's and GitLab's names for the commit under test


def commit_under_test(environment: Mapping[str, str] = os.environ) -> str | None:
    """The commit that CI names, else HEAD of the checkout that edgepeft runs from, else None."""
    return next((environment[name] for name in _CI if environment.get(name)), None) or _checkout()


def utc_now() -> str:
    """The time in UTC, to the second, as ISO 8601 writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _checkout() -> str | None:
    """HEAD of the repository whose top is the package's folder, with a + where files differ from it."""
    top = Path(edgepeft.__file__).resolve().parent.parent
    if not (top / ".git").exists():
        return None
    try:
        head = subprocess.run(["git", "-C", str(top), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run(["git", "-C", str(top), "diff", "--quiet", "HEAD"], capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+" if dirty.returncode else "")
