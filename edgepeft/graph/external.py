"""Which files beside it a graph reads: a downloaded one must not name any that it has no business with.

ONNX keeps a tensor's bytes in another file where ``data_location`` is EXTERNAL; tensors stand among the initializers,
in nodes' attributes, in the graphs of control flow and in functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from edgepeft.errors import BundleError

__all__ = ["all_tensors", "check_external", "external_files"]


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model, wherever it stands."""
    yield from _of_graph(model.graph)
    yield from _of_nodes(node for function in model.functions for node in function.node)


def external_files(model: onnx.ModelProto) -> set[str]:
    """The locations that the model's tensors name; "" where one names none."""
    external = [t for t in all_tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL or t.external_data]
    return {next((e.value for e in t.external_data if e.key == "location"), "") for t in external}


def check_external(model: onnx.ModelProto, allowed: str | None, where: object) -> None:
    """See that the model reads no other file than ``allowed``, or none at all.  Changes nothing.

    Raises:
        BundleError: it does; nothing was opened.
    """
    strange = external_files(model) - ({allowed} if allowed is not None else set())
    if strange:
        may = "it must be whole by itself" if allowed is None else f"only {allowed} lies there for it"
        raise BundleError(f"{where} wants to read the file {sorted(strange)[0]!r}; {may}. Do not use it.")


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in (
                *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
                *attribute.sparse_tensors,
            ):
                yield from (sparse.values, sparse.indices)
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _of_graph(graph)
