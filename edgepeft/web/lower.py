"""The layers that structures leave to the backbone, in graphs of their own: in memory once, and run once for a text.

ONNX Runtime Web gives each session its own copy of the weights that its graph names.  What tasks share below therefore
stands in graphs that follow each other, embeddings first, and a structure begins where its tasks begin to differ.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import onnx

from edgepeft.backbones.base import Role
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.graph.cut import above, below
from edgepeft.web.graphs import write_graph

__all__ = ["share_layers"]

_EMBEDDINGS = 2  # the first two values: what comes before the first layer takes no time to run
Axes = dict[str, tuple[str, int]]


def share_layers(bundle: Bundle, out: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Divide the structures that share layers; each entry's ``lower`` names the graphs to be run before its own."""
    backbone, values = bundle.backbone_graph, _values(bundle)
    structures = {entry["structure"] for entry in entries.values() if entry["values"]}
    graphs = {name: onnx.load(out / name, load_external_data=False) for name in sorted(structures)}
    depths = {name: _depth(graph, backbone, list(values)) for name, graph in graphs.items()}
    cuts = _cuts(depths, Counter(entry["structure"] for entry in entries.values()))
    axes: list[Axes] = [{}, *({value: ("tokens", width)} for value, width in values.items())]
    parts = [
        write_graph(below(above(backbone, axes[low]), *axes[high]), out) for low, high in itertools.pairwise([0, *cuts])
    ]
    upper = {}
    for name, graph in graphs.items():
        own = [cut for cut in cuts if cut <= depths[name]]
        if own:
            (out / name).unlink()
            upper[name] = write_graph(above(graph, axes[own[-1]]), out), parts[: len(own)]
    for entry in entries.values():
        entry["structure"], entry["lower"] = upper.get(entry["structure"], (entry["structure"], []))


def _values(bundle: Bundle) -> dict[str, int]:
    """The widths of the words' rows, of what the first layer reads, and of each layer's output."""
    sites, roles = bundle.manifest.backbone.sites, (Role.WORD_EMBEDDINGS, Role.EMBEDDINGS, Role.LAYER_OUTPUT)
    named = itertools.chain.from_iterable(bundle.architecture.sites_of(role) for role in roles)
    return {sites[site.name]: site.out_features for site in named}


def _depth(graph: onnx.ModelProto, backbone: onnx.ModelProto, values: list[str]) -> int:
    """How many of ``values``, from below, are computed as the backbone computes them: by the same nodes from the same
    tensors."""
    for depth, value in enumerate(values):
        try:
            same = _content(below(graph, value)) == _content(below(backbone, value))
        except BundleError:  # there is no such value where rows that no head reads were left out
            return depth
        if not same:
            return depth
    return len(values)


def _content(model: onnx.ModelProto) -> set[bytes]:
    parts = (*model.graph.node, *model.graph.initializer)
    return {part.SerializeToString(deterministic=True) for part in parts}


def _cuts(depths: dict[str, int], tasks: Counter[str]) -> list[int]:
    """Depths to be cut at: where the layers below would be in memory twice, or be run twice for a text."""
    found = []
    for cut in sorted({*depths.values()} - {0}):
        sharing = [name for name, depth in depths.items() if depth >= cut]
        if len(sharing) > 1 or (cut > _EMBEDDINGS and sum(tasks[name] for name in sharing) > 1):
            found.append(cut)
    return found
