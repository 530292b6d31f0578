"""A task's training graph, made of its spliced inference graph: packed, so nothing is computed for padding.

What of the task is trained, and where its head has dropout, says its delta graph.

inputs    input_ids, attention_mask, [token_type_ids] int64 [batch, sequence], or the hidden states that they are cut
          at; labels [batch, ...], as the kind of task has them; shares float32 [batch], of the rows in the loss;
          where a row is several token rows, these two are [rows, ...], and places int64 [rows, most] has its own; where
          texts are read in windows, pooling float32 [texts, batch] takes the mean of each text's; every
          trained tensor by its name in the delta graph, or the ``generated:<tensor>`` that are made of some;
          where the head has dropout, ``dropout:<i>`` float32 [batch, width]: 0, or 1 / (1 - p) where a feature is kept
outputs   loss; logits [batch, outputs]; ``gradient:<tensor>`` for each of these tensors

Where a task answers for each token, labels, shares, dropout and logits are of packed tokens, [tokens, ...].

The loss is a sum over the rows.  The task's kind gives the nodes up to the sum of each row's terms.  A row's share is
1 over the terms of all the step's rows, or what its label weighs over what they all weigh (PyTorch's weighted mean).
So the losses and the gradients of a step's parts are simply added.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.emit import Writer
from edgepeft.common.errors import BundleError
from edgepeft.data.row_grouping import LOWEST
from edgepeft.graph.contract import Contract, all_used, closed, one_writer, standard, values_stay, well_formed
from edgepeft.graph.cut import prune
from edgepeft.graph.gradient.rule import Backward, differentiate
from edgepeft.graph.names import (
    LABELS,
    LOGITS,
    LOSS,
    PLACES,
    POOLING,
    SHARES,
    is_of_loader,
    with_prefix,
    without_prefix,
)
from edgepeft.graph.protos import copied, floats, integers, properties, trace_back, writers
from edgepeft.graph.shapes import Spec
from edgepeft.tasks.base import TaskType, kind_from_card

DROPPED = "edgepeft.dropped"  # of a delta graph: the head's weights whose products read what dropout leaves
# By kind of head, of graphs that were exported before they said so themselves.
_UNDECLARED = dict.fromkeys(("roberta", "electra"), ("head/dense.weight", "head/out_proj.weight"))
_LAST = ("head/classifier.weight",)


@dataclass(frozen=True)
class TrainingFacts:
    """What of a task is ``trained``, in order; ``dropouts`` are (probability, width) of the inputs ``dropout:<i>``.

    ``dropped`` are the weights of the products that read what each dropout leaves; ``generated`` are the inputs that a
    recipe makes of trained tensors; ``kind`` is of the task, whose loss it is.
    """

    trained: tuple[str, ...]
    kind: TaskType
    dropouts: tuple[tuple[float, int], ...] = ()
    dropped: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()

    @property
    def leaves(self) -> tuple[str, ...]:
        """Tensors that a training graph takes, and whose gradients it gives."""
        return tuple(name for name in self.trained if not (self.generated and is_of_loader(name))) + self.generated

    def tensors(self, delta: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
        """The trained tensors as the delta graph has them, to be written to."""
        stored = {tensor.name: tensor for tensor in delta.graph.initializer}
        return {name: numpy_helper.to_array(stored[name]).copy() for name in self.trained}


def training_facts(delta: onnx.ModelProto) -> TrainingFacts:
    """Read a task's from its delta graph."""
    stored = {tensor.name: tensor for tensor in delta.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    facts = properties(delta)
    try:
        card = json.loads(facts["edgepeft.card"])
        rate = float(card.get("head_dropout", 0.0))
        names = json.loads(facts[DROPPED]) if DROPPED in facts else _UNDECLARED.get(card["head"], _LAST)
        dropped = tuple(names) if rate > 0 else ()
        kind = kind_from_card(
            card.get("kind"), card.get("labels"), card.get("head_reads", ""), chosen=card.get("chosen") or {}
        )
        dropouts = tuple((rate, stored[name].dims[1]) for name in dropped)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise BundleError(
            f"the delta graph does not say what its loss is, or where its head has dropout ({error}); export it again."
        ) from error
    generated = tuple(i.name for i in delta.graph.input if without_prefix(i.name)[0] == "generated")
    return TrainingFacts(tuple(stored), kind, dropouts, dropped, generated)


@Contract(requires=[well_formed], ensures=[well_formed, all_used])
def with_loss(deployed: onnx.ModelProto, facts: TrainingFacts) -> onnx.ModelProto:
    """Add the head's dropout and the loss to a task's graph, whose trained tensors are inputs."""
    model = copied(deployed)
    graph = model.graph
    # See that the logits have the columns that the kind of task needs.
    shape = next(output.type.tensor_type.shape.dim for output in graph.output if output.name == LOGITS)
    if not facts.kind.writes and (len(shape) != 2 or shape[1].dim_value != facts.kind.n_outputs):
        found = ", ".join(dim.dim_param or str(dim.dim_value) for dim in shape)
        raise BundleError(
            f"its head gives logits [{found}], and {facts.kind.title} ({facts.kind.described}) has its loss of "
            f"[batch, {facts.kind.n_outputs}]."
        )
    for i, (weight, (_, width)) in enumerate(zip(facts.dropped, facts.dropouts, strict=True)):
        writer, kept = writers(graph), f"dropout/{i}"
        products = (node for node in graph.node if node.op_type in ("Gemm", "MatMul"))
        product = next((p for p in products if trace_back(p.input[1], writer, {"Transpose"})[-1] == weight), None)
        if product is None:
            raise BundleError(f"the task's head has no product with {weight}, before which features are dropped.")
        graph.node.append(helper.make_node("Mul", [product.input[0], with_prefix("dropout", i)], [kept], name=kept))
        graph.input.append(floats(with_prefix("dropout", i), ["tokens" if facts.kind.per_token else "batch", width]))
        product.input[0] = kept
    add_loss(graph, facts.kind)
    prune(graph)
    return model


@Contract(requires=[well_formed], ensures=[well_formed, all_used, standard])
def with_gradients(
    forward: onnx.ModelProto, facts: TrainingFacts, samples: Sequence[Mapping[str, Spec]], backward: Backward = "int8"
) -> onnx.ModelProto:
    """Add the gradients to what ``with_loss`` gives, whole or cut; ``samples`` hold the spec of each of its values.

    ``backward`` is the arithmetic of the way back through products in integers.
    """
    model = copied(forward)
    found = differentiate(model.graph, LOSS, facts.leaves, samples, backward)
    for name, value in found.items():
        output = with_prefix("gradient", name)
        model.graph.node.append(helper.make_node("Identity", [value], [output], name=output))
        spec = samples[0][name]
        model.graph.output.append(helper.make_tensor_value_info(output, spec.kind, spec.shape))
    prune(model.graph)
    return model


@Contract(requires=[closed, one_writer], ensures=[closed, one_writer], keeps=[values_stay], mutates=True)
def add_loss(graph: onnx.GraphProto, kind: TaskType) -> None:
    """Append the kind's loss of ``logits``, and the inputs ``labels`` and ``shares`` [batch], or [tokens] where the
    kind's labels are.

    Where a row has several token rows, an input ``places`` [rows, most] says which are its own, and the loss is of
    logits [rows, most, outputs], LOWEST where a row has no such token row; labels and shares are of rows then.  Where
    texts are read in windows whose logits are pooled, an input ``pooling`` [texts, batch] takes their means first.
    """
    add, logits = Writer("loss/"), LOGITS
    op, zero = add.op, add.number(0)
    if kind.pooled:
        graph.input.append(floats(POOLING, ["texts" if kind.several_texts else "rows", "batch"]))
        logits = op("MatMul", POOLING, logits)
    if kind.several_texts:
        graph.input.append(integers(PLACES, ["rows", "most"]))
        missing = op("Less", op("Unsqueeze", PLACES, add.ints(-1)), zero)
        found = op("Gather", logits, op("Max", PLACES, zero), axis=0)
        logits = op("Where", missing, add.number(LOWEST, np.float32), found)
    loss = kind.loss_graph(add, logits, LABELS)
    op("ReduceSum", op("Mul", loss.of_rows, SHARES), output=LOSS, keepdims=0)
    add.add_to(graph)
    rows = "rows" if kind.several_texts or kind.pooled else loss.dims[0]  # or tokens, where each has a loss of its own
    of_labels = TensorProto.INT64 if loss.integers else TensorProto.FLOAT
    graph.input.append(helper.make_tensor_value_info(LABELS, of_labels, (rows, *loss.dims[1:])))
    graph.input.append(floats(SHARES, [rows]))
    graph.output.append(floats(LOSS, []))
