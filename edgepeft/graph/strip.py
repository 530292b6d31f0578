"""Pass: remove doc strings and metadata that tell of the machine that wrote the graph.

Mutates its argument.  Needs nothing; leaves the computation and the model's own metadata as they were.
"""

from __future__ import annotations

import onnx

__all__ = ["strip"]


def strip(model: onnx.ModelProto) -> onnx.ModelProto:
    """Clear node, value and graph annotations (the exporter writes stack traces with file paths into them)."""
    graph = model.graph
    model.doc_string = graph.doc_string = ""
    for part in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
        for item in part:
            item.doc_string = ""
            del item.metadata_props[:]
    del graph.metadata_props[:]
    return model
