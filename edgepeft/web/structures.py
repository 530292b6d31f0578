"""A bundle's tasks as a browser takes them: one graph for each structure, and each task's values beside it.

A graph refers to the weights by name, offset and length, as in the bundle, so the site has them once.  A task that
changes matrices of the backbone has a graph of its own, with these in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx
from safetensors.numpy import save

from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle
from edgepeft.bundle.versions import CHECK
from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.common.resources import sha256_of
from edgepeft.runtime.weights import Weights
from edgepeft.web.graphs import write_graph
from edgepeft.web.tuning import untunable, write_tuning

__all__ = ["require_answerable", "write_task"]


def require_answerable(bundle: Bundle, tasks: Sequence[str], *, places: bool) -> None:
    """See that a page can answer these tasks; ``places``: its tokenizer knows where in a text each token stands.

    Raises:
        UnknownName: there is no such task.
        UsageError: it cannot; names each of them, and says why.
    """
    refused = {task: reason for task in tasks if (reason := _reason(bundle, task, places))}
    if refused:
        listed = "; ".join(f"{task} {reason}" for task, reason in refused.items())
        rest = [task for task in tasks if task not in refused]
        others = " ".join(f"--task {task}" for task in rest)
        then = f"Make a site of the others: {others}." if rest else "No other task is left."
        raise UsageError(f"a page cannot answer every task of {bundle.folder}: {listed}. {then}")


def _reason(bundle: Bundle, task: str, places: bool) -> str:
    entry = bundle.entry(task)
    kind = entry.task_kind
    if kind.writes:
        return "writes text, which takes a decoder's loop"
    if entry.source is not None:
        return "is posed as text of a row's columns"
    if entry.weights_sha256 is not None:
        return "has more tensors of its own than a graph can hold"
    if kind.per_token and not places:
        return "answers with places in the text, which in a page only BERT's tokenizer gives"
    return ""


def write_task(bundle: Bundle, task: str, out: Path, *, tunable: bool = False) -> dict[str, Any]:
    """Write a task's graph, values and check file into the site, and what tunes it where that is asked for; returns its
    entry in ``site.json``.

    Raises:
        BundleError: a file is damaged.
    """
    entry = bundle.entry(task)
    model = bundle.graph(task)
    parted = Weights(bundle, cache=False, threads=1).parted(model)
    graph, values = (model, {}) if parted is None else (parted.structure, parted.feeds)
    structure = write_graph(graph, out)
    value_file = f"{TASKS_FOLDER}/{task}.safetensors" if values else None
    if value_file is not None:
        write_atomically(out / value_file, save(values))
    allowed = bundle.allowed(task)
    kind = entry.task_kind
    return {
        "method": entry.method,
        "head": entry.head,
        "kind": kind.name,
        "labels": entry.labels,
        "chosen": entry.chosen,
        "step": entry.step,
        "pairs": entry.pairs,
        "trained": bool(entry.training),
        "outputs": entry.n_outputs,
        "maxLength": entry.max_length,
        "promptLength": entry.prompt_length,
        "structure": structure,
        "values": value_file,
        "check": _write_check(bundle, task, out),
        "tolerance": {"difference": allowed.difference, "changed": allowed.changed},
        **(_tuning(bundle, task, model, values, out) if tunable else {}),
    }


def _tuning(bundle: Bundle, task: str, model: onnx.ModelProto, fed: Collection[str], out: Path) -> dict[str, Any]:
    reason = untunable(bundle, task, fed)
    return {"untunable": reason} if reason else {"tuning": write_tuning(bundle, task, model, fed, out)}


def _write_check(bundle: Bundle, task: str, out: Path) -> str:
    path, name = bundle.current(task, CHECK), f"{TASKS_FOLDER}/{task}{CHECK}"
    if not path.is_file() or sha256_of(path) != bundle.entry(task).check_sha256:
        raise BundleError(f"{path} is missing or altered; export or copy the bundle again.")
    write_atomically(out / name, path.read_bytes())
    return name
