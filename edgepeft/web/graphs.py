"""Graphs of a site: each once, under the hash of its bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx

from edgepeft.common.atomic import write_atomically

__all__ = ["STRUCTURES_FOLDER", "write_graph"]

STRUCTURES_FOLDER = "structures"


def write_graph(graph: onnx.ModelProto, out: Path) -> str:
    """Its name in the site; tasks whose graphs are alike have one."""
    content = graph.SerializeToString(deterministic=True)
    name = f"{STRUCTURES_FOLDER}/{hashlib.sha256(content).hexdigest()[:16]}.onnx"
    write_atomically(out / name, content)
    return name
