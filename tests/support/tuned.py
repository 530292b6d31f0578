"""Tuning in one call, as ``edgepeft tune`` would with these rows and settings, and without its bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgepeft.options.verbs import TuneOptions, TuneSettings
from edgepeft.tuning import tune
from edgepeft.tuning.target import Files
from edgepeft.tuning.tune import TuneResult


def tune_task(
    bundle: Path,
    task: str,
    files: Files | Path,
    settings: TuneSettings | None = None,
    *,
    threads: int = 1,
    **asked: Any,
) -> TuneResult:
    files = files if isinstance(files, Files) else Files(files)
    told = {name: asked.pop(name) for name in ("watch", "stop", "note") if name in asked}
    rows: dict[str, Any] = {"data": files.train, "eval": files.eval, "test": files.test}
    numbers = {} if settings is None else settings.model_dump(by_alias=True)
    options = TuneOptions(bundle=bundle, task=task, threads=threads, **rows, **numbers, **asked)
    return tune.tune_task(options, **told)
