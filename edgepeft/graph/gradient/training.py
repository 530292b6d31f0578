"""A task's training graph, made of its spliced inference graph: packed, so nothing is computed for padding.

inputs    input_ids, attention_mask, [token_type_ids] int64 [batch, sequence], or the hidden states that they are cut
          at; labels [batch, ...], as the kind of task has them; shares float32 [batch], of the rows in the loss;
          where a row is several token rows, these two are [rows, ...], and places int64 [rows, most] has its own; where
          texts are read in windows, pooling float32 [texts, batch] takes the mean of each text's; every
          trained tensor by its name in the delta graph, or the ``generated:<tensor>`` that are made of some;
          where the head has dropout, ``dropout:<i>`` float32 [batch, width]: 0, or 1 / (1 - p) where a feature is kept
outputs   loss; logits [batch, outputs]; ``gradient:<tensor>`` for each of these tensors

Where a task answers for each token, labels, shares, dropout and logits are of packed tokens, [tokens, ...].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from edgepeft.common.errors import BundleError
from edgepeft.graph.contract import Contract
from edgepeft.graph.gradient.build import differentiate
from edgepeft.graph.gradient.losses import add_loss
from edgepeft.graph.gradient.rule import Backward
from edgepeft.graph.names import LOGITS, LOSS, dropout, gradient
from edgepeft.graph.predicates import all_used, standard, well_formed
from edgepeft.graph.protos import copied, followed, writers
from edgepeft.graph.prune import prune
from edgepeft.graph.shapes import Spec
from edgepeft.graph.training import TrainingFacts

__all__ = ["with_gradients", "with_loss"]


@Contract(requires=[well_formed], ensures=[well_formed, all_used])
def with_loss(deployed: onnx.ModelProto, facts: TrainingFacts) -> onnx.ModelProto:
    """The task's graph, whose trained tensors are inputs, with its head's dropout and the loss behind its logits.

    Raises:
        BundleError: the head has no such product, before which features are dropped, or its logits no loss.
    """
    model = copied(deployed)
    graph = model.graph
    _check_head(graph, facts)
    for i, (weight, (_, width)) in enumerate(zip(facts.dropped, facts.dropouts, strict=True)):
        _drop(graph, weight, i, ["tokens" if facts.kind.per_token else "batch", width])
    add_loss(graph, TensorProto.FLOAT, facts.kind)
    prune(graph)
    return model


@Contract(requires=[well_formed], ensures=[well_formed, all_used, standard])
def with_gradients(
    forward: onnx.ModelProto,
    facts: TrainingFacts,
    samples: Sequence[Mapping[str, Spec]],
    backward: Backward = "int8",
) -> onnx.ModelProto:
    """What ``with_loss`` gives, whole or cut, and the gradients; ``samples`` hold the spec of each of its values.

    ``backward`` is the arithmetic of the way back through products in integers.

    Raises:
        BundleError: there is no gradient of an operator, or none reaches a tensor.
    """
    model = copied(forward)
    found = differentiate(model.graph, LOSS, facts.leaves, samples, backward)
    for name, value in found.items():
        output = gradient(name)
        model.graph.node.append(helper.make_node("Identity", [value], [output], name=output))
        spec = samples[0][name]
        model.graph.output.append(helper.make_tensor_value_info(output, spec.kind, spec.shape))
    prune(model.graph)
    return model


def _check_head(graph: onnx.GraphProto, facts: TrainingFacts) -> None:
    """See that the logits have the columns that the kind of task needs."""
    shape = next(output.type.tensor_type.shape.dim for output in graph.output if output.name == LOGITS)
    if not facts.kind.writes and (len(shape) != 2 or shape[1].dim_value != facts.kind.n_outputs):
        found = ", ".join(dim.dim_param or str(dim.dim_value) for dim in shape)
        raise BundleError(
            f"its head gives logits [{found}], and {facts.kind.title} ({facts.kind.described}) has its loss of "
            f"[batch, {facts.kind.n_outputs}]."
        )


def _drop(graph: onnx.GraphProto, weight: str, index: int, dims: list[str | int]) -> None:
    """Scale what the product with this weight reads by an input."""
    product, kept = next(_products(graph, weight), None), f"dropout/{index}"
    if product is None:
        raise BundleError(f"the task's head has no product with {weight}, before which features are dropped.")
    value, name = product.input[0], dropout(index)
    product.input[0] = kept
    graph.node.append(helper.make_node("Mul", [value, name], [kept], name=kept))
    graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))


def _products(graph: onnx.GraphProto, weight: str) -> Iterator[onnx.NodeProto]:
    writer = writers(graph)
    for node in graph.node:
        if node.op_type in ("Gemm", "MatMul") and followed(node.input[1], writer, {"Transpose"})[-1] == weight:
            yield node
