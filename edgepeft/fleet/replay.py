"""A task from elsewhere, held to what its publisher states of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.bundle.versions import Content
from edgepeft.common.errors import VerificationFailed
from edgepeft.common.task_name import CHECK, GRAPH, WEIGHTS
from edgepeft.deploy.install import PreparedTask, prepare_task

__all__ = ["replayed"]


def replayed(bundle: Bundle, task: str, entry: TaskEntry, content: Mapping[str, Content]) -> PreparedTask:
    """A task's files, by suffix, after their check was replayed on this processor; writes nothing.

    Raises:
        BundleError: damaged, or of another backbone.
        VerificationFailed: it does not give here what it gave the publisher, or is another task than ``task``.
    """
    graph, check, weights = content[GRAPH], content[CHECK], content.get(WEIGHTS)
    assert isinstance(graph, bytes) and isinstance(check, bytes) and not isinstance(weights, bytes)
    prepared = prepare_task(bundle, graph, check, Path(f"{task}{GRAPH}"), weights, stated=entry)
    if prepared.name != task:
        raise VerificationFailed(
            f"what is published as {task} is the task {prepared.name}; it must be published again."
        )
    return prepared
