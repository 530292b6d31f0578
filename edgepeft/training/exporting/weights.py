"""A bundle's weights: the checkpoint byte for byte, or its 8-bit form with the graph rewritten to read it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import onnx
from safetensors.numpy import save_file

from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import INT8_WEIGHTS_FILE, WEIGHTS_FILE
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.manifest import WeightsDtype
from edgepeft.common.resources import sha256_of
from edgepeft.graph.quantise import quantise, quantised_tensors

__all__ = ["write_weights"]


def write_weights(graphs: Sequence[onnx.ModelProto], backbone: Backbone, folder: Path, dtype: WeightsDtype) -> str:
    """The weights file, whose SHA-256 is returned; ``graphs``, the backbone's own first, are changed to read it.

    Raises:
        BundleError: weights that cannot be quantised.
    """
    if dtype == "fp32":
        shutil.copyfile(backbone.weights, folder / WEIGHTS_FILE)
        return backbone.sha256
    tensors = quantised_tensors(graphs[0].graph, backbone.checkpoint)
    for name in backbone.architecture.pooler:  # no part of the graph, but read by heads
        if backbone.checkpoint.has(name):
            tensors[backbone.checkpoint.stored_name(name)] = backbone.checkpoint.read(name)
    path = folder / INT8_WEIGHTS_FILE
    save_file(tensors, path, metadata={"format": "edgepeft.int8/1"})
    for graph in graphs:
        quantise(graph, Checkpoint.open(path))
    return sha256_of(path)
