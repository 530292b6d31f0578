"""When a result was measured, and of which commit: what a history is drawn by."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import edgepeft

__all__ = ["provenance"]

_CI = ("GITHUB_SHA", "CI_COMMIT_SHA")  # GitHub's and GitLab's names for the commit under test


def provenance(environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """``measured_at`` in UTC; ``commit`` as CI says it, else that of the checkout edgepeft runs from, else None."""
    said = next((environment[name] for name in _CI if environment.get(name)), None)
    return {"measured_at": datetime.now(UTC).isoformat(timespec="seconds"), "commit": said or _checkout()}


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
