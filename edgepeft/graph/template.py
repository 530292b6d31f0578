"""Pass: a template's graph with a head for the labels of a task: the modules as they are, the head drawn from the seed.

Where a decoder scores labels there is nothing to draw: what the graph says of their tokens is replaced.
"""

import json

import numpy as np
import onnx
from onnx import numpy_helper

from edgepeft.backbones.trie import Trie
from edgepeft.common.errors import BundleError
from edgepeft.common.frozen_random import normal
from edgepeft.graph.contract import Contract, same_inputs, same_operators, values_stay, well_formed
from edgepeft.graph.names import LOGITS, adapted_name, labels_name
from edgepeft.graph.protos import copied, properties
from edgepeft.tasks.base import TaskType

OPEN = "edgepeft.open"  # metadata of a template: which axis of which tensor counts the labels
_STD = 0.02  # as BERT and its relatives start a head: `edgepeft.heads.base.fresh_linear`


@Contract(requires=[well_formed], ensures=[well_formed], keeps=[same_inputs, same_operators, values_stay])
def with_labels(
    template: onnx.ModelProto, task: str, kind: TaskType, *, pairs: bool, seed: int, trie: Trie | None = None
) -> onnx.ModelProto:
    """A delta graph of the task's own: weights of the head N(0, 0.02), biases zero; ``trie`` is of labels to score."""
    model, facts = copied(template), properties(template)
    try:
        axes, card = json.loads(facts[OPEN]), json.loads(facts["edgepeft.card"])
    except (KeyError, ValueError) as error:
        raise BundleError(f"the template does not say where its labels go ({error}); export it again.") from error
    for initializer in model.graph.initializer:
        if initializer.name.startswith("head/"):
            shape = list(initializer.dims)
            if initializer.name in axes:
                shape[axes[initializer.name]] = kind.n_outputs
            drawn = normal(f"{seed}/{initializer.name}", shape) * _STD if len(shape) > 1 else np.zeros(shape)
            initializer.CopyFrom(numpy_helper.from_array(drawn.astype(np.float32), initializer.name))
    for output in model.graph.output:
        if output.name == LOGITS:
            output.type.tensor_type.shape.dim[1].dim_value = kind.n_outputs
    if trie is not None:
        outputs = {output.name: output.type.tensor_type.shape.dim for output in model.graph.output}
        values = {labels_name(name): value for name, value in {**trie.values, **trie.tables}.items()}
        for initializer in model.graph.initializer:
            if initializer.name in values:
                initializer.CopyFrom(numpy_helper.from_array(values[initializer.name], initializer.name))
        for name, value in trie.values.items():
            for dim, extent in zip(outputs[adapted_name(name)], value.shape, strict=True):
                dim.dim_value = extent
    card |= {"task": task, "kind": kind.name, "labels": kind.labels, "pairs": pairs, "metrics": {}, "training": {}}
    facts |= {"edgepeft.task": task, "edgepeft.card": json.dumps(card)}
    del facts[OPEN], model.metadata_props[:]
    onnx.helper.set_model_props(model, facts)
    return model
