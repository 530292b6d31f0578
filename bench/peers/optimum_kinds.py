"""optimum's export of transformers' class for a kind of task: a bundle's backbone with the head of one of its tasks.

``python -m bench.peers optimum_kinds BUNDLE OUT TASK`` writes it, ``infer`` runs it: a step is a batch to the values
that our task gives.  The export of an embedding is of hidden states; pooling and normalising them is part of the step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bench.planning.job import Job, Prepared

if TYPE_CHECKING:
    import onnxruntime as ort
    from transformers import PreTrainedModel

Values = NDArray[Any]
Inputs = Mapping[str, Values]


def _unit_first(found: list[Values]) -> Values:
    pooled = found[0][:, 0]
    unit: Values = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return unit


@dataclass(frozen=True)
class _Theirs:
    """``model`` is the end of transformers' class, ``task`` optimum's name for it; ``places`` are those of a head's
    modules that its class for classification has elsewhere, BASE being its encoder."""

    model: str
    task: str
    places: Mapping[str, str] = field(default_factory=dict)
    given: Callable[[Inputs], dict[str, Values]] = dict
    values: Callable[[list[Values]], Values] = itemgetter(0)


_BASE = "BASE"
_CHOICES = 2  # of a row, as ``synthetic_per_row`` has it where all are as many

KINDS: dict[str, _Theirs] = {
    "classification": _Theirs("SequenceClassification", "text-classification"),
    "labels": _Theirs("SequenceClassification", "text-classification"),
    "tokens": _Theirs("TokenClassification", "token-classification"),
    "spans": _Theirs(
        "QuestionAnswering",
        "question-answering",
        {"classifier": "qa_outputs"},
        values=lambda found: np.stack(found, axis=-1),  # start and end
    ),
    "embedding": _Theirs("", "feature-extraction", values=_unit_first),
    "choice": _Theirs(
        "MultipleChoice",
        "multiple-choice",
        {"classifier.dense": f"{_BASE}.pooler.dense", "classifier.out_proj": "classifier"},
        given=lambda inputs: {name: rows.reshape(-1, _CHOICES, rows.shape[1]) for name, rows in inputs.items()},
        values=lambda found: found[0].reshape(-1, 1),
    ),
}


def transformers_model(bundle: Path, task: str) -> PreTrainedModel:
    """Transformers' class for the task's kind, with the bundle's backbone and the task's head; other parts of the delta
    are left out, so it is to be fresh."""
    import torch
    import transformers
    from onnx import numpy_helper

    from edgepeft.bundle.bundle import Bundle
    from edgepeft.heads.base import head_named

    opened = Bundle(bundle)
    entry, theirs = opened.entry(task), KINDS[opened.entry(task).task_kind.name]
    known = getattr(transformers, f"AutoModelFor{theirs.model}" if theirs.model else "AutoModel")
    more = {"num_labels": entry.n_outputs} if entry.labels else {}
    model: PreTrainedModel = known.from_pretrained(bundle, **more).eval()
    tensors = {each.name: numpy_helper.to_array(each) for each in opened.delta_graph(task).graph.initializer}
    for own, place in head_named(entry.head).places.items():
        module = model.get_submodule(theirs.places.get(place, place).replace(_BASE, model.base_model_prefix))
        for name, parameter in module.named_parameters():
            parameter.data.copy_(torch.from_numpy(tensors[f"head/{own}.{name}"].copy()))
    return model


def export(bundle: Path, out: Path, task: str) -> None:
    """Write ``out/model.onnx`` as ``optimum-cli export onnx`` does."""
    from optimum.exporters.onnx import main_export

    from edgepeft.bundle.bundle import Bundle

    kind = Bundle(bundle).entry(task).task_kind.name
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        transformers_model(bundle, task).save_pretrained(folder)
        main_export(folder, str(out), task=KINDS[kind].task, do_validation=False)


def infer(job: Job) -> Prepared:
    """Open ``job.model`` as its publisher's users would: default optimisations, the same threads."""
    from edgepeft.runtime.session import plain_session

    session = plain_session(str(job.model), job.threads)

    def step(batch: int) -> None:
        values_of(session, str(job.kind), job.batch(batch))

    return Prepared(step)


def values_of(session: ort.InferenceSession, kind: str, inputs: Inputs) -> Values:
    """What our task of that kind gives for the same rows."""
    theirs = KINDS[kind]
    read = [value.name for value in session.get_inputs()]
    return theirs.values(session.run(None, theirs.given({name: inputs[name] for name in read})))
