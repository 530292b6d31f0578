"""All tasks on one input: the layers that they leave to the backbone run once, then each task's rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture, Role
from edgepeft.graph.cut import above, below, untouched_values
from edgepeft.graph.names import LOGITS
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.runtime.passes import passes, put
from edgepeft.runtime.prediction import of_width
from edgepeft.runtime.session import run_session

if TYPE_CHECKING:
    from edgepeft.runtime.weights import TaskSession, Weights


class PrefixPlan(NamedTuple):
    """``layers`` run once for the tasks of ``shared``; those of ``whole`` run by themselves."""

    layers: int
    shared: tuple[str, ...]
    whole: tuple[str, ...]


class Prefix:
    """Sessions of a bundle's lower layers and of what its tasks put on them, opened when needed."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._bundle = weights, weights.bundle
        self._values = _layer_values(self._bundle.architecture, self._bundle.manifest.backbone.sites)
        self._sessions: dict[tuple[int, str | None], TaskSession] = weights.table("prefix")
        self._depths: dict[str, int] = {}

    def plan(self, tasks: Sequence[str]) -> PrefixPlan:
        """Plan what these tasks share; tasks with a prompt share nothing."""
        for task in tasks:
            if task not in self._depths:
                architecture, sites = self._bundle.architecture, self._bundle.manifest.backbone.sites
                self._depths[task] = shared_layers(self._bundle.spliced(task), architecture, sites)
        return plan_prefix({task: self._depths[task] for task in tasks}, self._bundle.architecture.n_layers)

    def logits(self, shared: PrefixPlan, inputs: Mapping[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
        """[batch, outputs] of each task of ``shared.shared``."""
        cut, shape = shared.layers, inputs["input_ids"].shape
        value = self._values[cut - 1]
        entries = {task: self._bundle.entry(task) for task in shared.shared}
        answers = {task: np.zeros(entry.task_kind.logits_shape(*shape), np.float32) for task, entry in entries.items()}
        known = self._bundle.architecture.inputs
        for rows, part in passes({name: inputs[name] for name in known}):
            hidden = run_session(self._session(cut, None), value, part)
            with_hidden: dict[str, NDArray[Any]] = {**part, value: hidden}
            for task, logits in answers.items():
                part_of = run_session(self._session(cut, task), LOGITS, with_hidden)
                put(logits, rows, of_width(logits.shape[-1], task, part_of))
        return answers

    def _session(self, cut: int, task: str | None) -> TaskSession:
        session = self._sessions.get((cut, task))  # another thread may close it at any time
        if session is None:
            model, value = self._bundle.spliced(task), self._values[cut - 1]
            width = self._bundle.architecture.hidden_size
            part = below(model, value) if task is None else above(model, {value: ("tokens", width)})
            drop_unread_rows(part)
            session = self._sessions[cut, task] = self._weights.open(part)
        return session


def _layer_values(architecture: Architecture, sites: Mapping[str, str]) -> tuple[str, ...]:
    """The value of each layer's output, from below."""
    return tuple(sites[site.name] for site in architecture.sites_of(Role.LAYER_OUTPUT))


def shared_layers(model: onnx.ModelProto, architecture: Architecture, sites: Mapping[str, str]) -> int:
    """How many of the lowest layers a spliced task leaves as the backbone has them, the embeddings included."""
    return untouched_values(model.graph, _layer_values(architecture, sites))


def plan_prefix(depths: Mapping[str, int], n_layers: int) -> PrefixPlan:
    """Cut where the fewest layers are run in all; ``depths`` are ``shared_layers`` by task.

    With a cut at c, c layers run once, n - c for each task that leaves so many alone, and n for each other.
    """

    def cost(cut: int) -> int:
        return cut + sum(n_layers - cut if depth >= cut else n_layers for depth in depths.values())

    best = min({0, *depths.values()}, key=lambda cut: (cost(cut), cut))
    shared = tuple(task for task, depth in depths.items() if depth >= best > 0)
    return PrefixPlan(best, shared, tuple(task for task in depths if task not in shared))
