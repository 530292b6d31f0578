"""A task that says something else of itself: in its graph's metadata and in the manifest alike, or it would not be opened."""

from __future__ import annotations

import hashlib
import json

import onnx


def carded(graph, name, **facts):
    """The graph's bytes, its name and these facts of its card changed."""
    for entry in graph.metadata_props:
        if entry.key == "edgepeft.card":
            entry.value = json.dumps(json.loads(entry.value) | facts)
        elif entry.key == "edgepeft.task":
            entry.value = name
    return graph.SerializeToString(deterministic=True)


def restated(bundle, task, **facts):
    """Write it so into a bundle."""
    path, manifest = bundle / "tasks" / f"{task}.onnx", bundle / "edgepeft.json"
    document = json.loads(manifest.read_bytes())
    path.write_bytes(content := carded(onnx.load(path), task, **facts))
    document["tasks"][task] |= {**facts, "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(document))
