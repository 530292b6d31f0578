"""Chromium on what ``prepare`` wrote: steps of ``drive.mjs``, with a server that isolates pages and counts bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.browser.prepare import pages
from bench.static_server import Served, serving
from edgepeft.common.errors import EdgepeftError, UsageError

TRANSFORMERS = "@huggingface/transformers"
MODULES = (TRANSFORMERS, "onnxruntime-web", "playwright-core")
# Shared memory, and so a second thread, needs the first two.
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cache-Control": "public, max-age=600",
}

Step = list[Any]  # a name of drive.mjs, and what it is given


@dataclass(frozen=True)
class Chromium:
    """Where it is, what it is driven by, and the server whose pages it opens."""

    executable: str
    modules: Path
    served: Served

    def steps(self, *steps: Step, profile: Path | None = None) -> list[Any]:
        """What each step gave, in a browser of its own; with ``profile`` the next one has what this one kept."""
        given: dict[str, Any] = {"modules": str(self.modules), "chromium": self.executable}
        given |= {
            "profile": profile and str(profile),
            "url": f"{self.served.address.replace('127.0.0.1', 'localhost')}/",
            "steps": steps,
        }
        command = ["node", str(Path(__file__).with_name("drive.mjs"))]
        done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if "Error" in line] or ["no message"]
            raise EdgepeftError(f"Chromium stopped: {' '.join(said)[:600]}")
        found: list[Any] = json.loads(done.stdout)
        return found


@contextmanager
def chromium(work: Path) -> Iterator[Chromium]:
    """Serve ``work`` to it."""
    modules = pages(work) / "lib"
    if not (pages(work) / "models").is_dir():
        raise UsageError(f"{work} is not what `python -m bench.browser prepare` writes; run that first.")
    for name in ("node", "chromium"):
        if shutil.which(name) is None:
            raise UsageError(f"{name} is not installed; on Debian: apt-get install {name}.")
    with serving(pages(work)) as served:
        served.headers.update(_HEADERS)
        yield Chromium(str(shutil.which("chromium")), modules.resolve(), served)


def versions(modules: Path) -> dict[str, str]:
    """Of the packages that are needed in a ``node_modules``."""
    found = {}
    for name in MODULES:
        path = modules / name / "package.json"
        if not path.is_file():
            wanted = " ".join((TRANSFORMERS, "playwright-core"))
            raise UsageError(
                f"{modules} has no {name}; fill a folder by `npm install --prefix FOLDER --ignore-scripts "
                f"{wanted}` and name its node_modules."
            )
        found[name] = str(json.loads(path.read_bytes())["version"])
    return found
