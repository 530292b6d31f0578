"""Pass: remove doc strings and metadata that tell of the machine that wrote the graph."""

from __future__ import annotations

import onnx

from edgepeft.graph.contract import Contract, plain, same_interface, same_operators, values_stay

__all__ = ["strip"]


@Contract(ensures=[plain], keeps=[same_interface, same_operators, values_stay], mutates=True)
def strip(model: onnx.ModelProto) -> None:
    """Clear node, value and graph annotations (the exporter writes stack traces with file paths into them)."""
    graph = model.graph
    model.doc_string = graph.doc_string = ""
    for part in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
        for item in part:
            item.doc_string = ""
            del item.metadata_props[:]
    del graph.metadata_props[:]
