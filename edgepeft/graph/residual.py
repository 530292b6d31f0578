"""Pass: (y + c) + r becomes (y + r) + c where y + r stands in the graph already.

Up to rounding no value changes; what was y + c is left without a reader, for ``prune``.  AdapterHub's Pfeiffer form
computes LN(y + r) for itself and gives y + A(...), to which the layer adds r: with the sum shared an addition over all
tokens is saved a layer.
"""

from __future__ import annotations

from collections import Counter

import onnx

from edgepeft.graph.contract import Contract, one_writer, same_interface, same_operators, values_stay

__all__ = ["share_residual_sums"]


@Contract(
    requires=[one_writer], ensures=[one_writer], keeps=[same_interface, same_operators, values_stay], mutates=True
)
def share_residual_sums(graph: onnx.GraphProto) -> None:
    """Rewrite each such Add whose inner sum nothing else reads."""
    sums = {node.output[0]: node for node in graph.node if node.op_type == "Add"}
    by_terms = {frozenset(node.input): node for node in sums.values()}
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(output.name for output in graph.output)
    for node in sums.values():
        for inner, r in (tuple(node.input), tuple(node.input)[::-1]):
            if inner in sums and readers[inner] == 1 and _rewrite(node, sums[inner], r, by_terms):
                break


def _rewrite(
    node: onnx.NodeProto, inner: onnx.NodeProto, r: str, by_terms: dict[frozenset[str], onnx.NodeProto]
) -> bool:
    y, c = inner.input
    for kept, other in ((y, c), (c, y)):
        shared = by_terms.get(frozenset((kept, r)))
        if shared is not None and shared is not node and shared is not inner:
            node.input[:] = [shared.output[0], other]
            return True
    return False
