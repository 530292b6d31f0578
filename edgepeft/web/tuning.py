"""What a page needs to tune a task: the training graph, what comes below it, the tensors, and from these to the values.

The graphs are those that a board makes when a run starts (``edgepeft/tuning/``); a page has nothing that makes
them.  Tasks of one structure with as many labels have one training graph.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import onnx
from safetensors.numpy import save

from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle
from edgepeft.common.atomic import write_atomically
from edgepeft.graph.gradient.training import training_facts
from edgepeft.graph.half import is_half
from edgepeft.graph.parameters import feeds_graph
from edgepeft.tuning.activation_cache import training_graph
from edgepeft.tuning.target import deployed_graph, rates_of
from edgepeft.web.graphs import write_graph

__all__ = ["untunable", "write_tuning"]


def untunable(bundle: Bundle, task: str, fed: Collection[str]) -> str:
    """Why a page cannot tune this task, which feeds these values to its structure; empty where it can."""
    entry, delta = bundle.entry(task), bundle.delta_graph(task)
    trained = training_facts(delta).trained
    against = {
        f"{entry.task_kind.title}, and a page tunes classifications": not entry.task_kind.one_label,
        f"{entry.method} changes matrices of the backbone": not fed,
        "it reads long texts in windows": "stride" in entry.chosen,
        "it stands on 8-bit weights": bundle.manifest.backbone.weights_dtype != "fp32",
        "it is stored in half precision": is_half(delta.graph),
        f"{entry.method} trains a scalar, which its structure has as a constant": any(
            tensor.name in trained and not tensor.dims for tensor in delta.graph.initializer
        ),
    }
    return next((reason for reason, holds in against.items() if holds), "")


def write_tuning(bundle: Bundle, task: str, model: onnx.ModelProto, fed: Collection[str], out: Path) -> dict[str, Any]:
    """Write what tunes a task into the site; returns what ``site.json`` says of it.

    Args:
        bundle: the bundle's.
        task: one that ``untunable`` has nothing against.
        model: its spliced graph.
        fed: what it feeds to its structure.
        out: the site's folder.
    """
    entry, delta = bundle.entry(task), bundle.delta_graph(task)
    facts = training_facts(delta)
    deployed = deployed_graph(delta, facts, bundle.family, bundle.architecture, bundle.checkpoint)
    training, split = training_graph(deployed, facts, bundle.checkpoint, prefix_cache=True)
    tensors = f"{TASKS_FOLDER}/{task}.tensors.safetensors"
    write_atomically(out / tensors, save(facts.tensors(delta)))
    states = () if split is None else split.states
    return {
        "graph": write_graph(training, out),
        "below": None if split is None else write_graph(split.below, out),
        "states": [{"name": state.name, "byRow": state.by_row, "width": state.width} for state in states],
        "values": write_graph(feeds_graph(model, fed, facts.trained), out),
        "tensors": tensors,
        "rates": rates_of(entry.method, entry.training, entry.head_reads),
        "chosen": {},
        "task": entry.sha256,
        "backbone": bundle.manifest.backbone.identity,
    }
