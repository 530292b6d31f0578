"""Scoring tensors that change from step to step: the task's own spliced graph, with them as inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.metrics import compute
from edgepeft.graph.names import LOGITS
from edgepeft.graph.splice import splice
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.passes import passes
from edgepeft.runtime.session import open_session, run_session
from edgepeft.runtime.tuning.step import Arrays
from edgepeft.runtime.tuning.subject import TuningSubject

__all__ = ["BATCH", "Evaluator", "Scored", "deployed_graph", "given_names"]

BATCH = 64


class Scored(NamedTuple):
    """The metric (higher is better) and the mean loss of a row."""

    score: float
    loss: float


def given_names(trained: Sequence[str]) -> dict[str, str]:
    """The deployed graph's names of trained tensors -> their own."""
    return {f"delta/{name}": name for name in trained}


def deployed_graph(bundle: Bundle, subject: TuningSubject) -> onnx.ModelProto:
    """The task's spliced graph, with the trained tensors as inputs."""
    model = splice(bundle.backbone_graph, subject.delta, bundle.manifest.backbone.sites, bundle.checkpoint)
    names = given_names(subject.facts.trained)
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in names]
    for tensor in model.graph.initializer:
        if tensor.name in names:
            model.graph.input.add(name=tensor.name).type.tensor_type.elem_type = tensor.data_type
            for extent in tensor.dims:
                model.graph.input[-1].type.tensor_type.shape.dim.add(dim_value=extent)
    copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in kept]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)
    return model


class Evaluator:
    """The deployed graph, which skips padding; what it scores is what will be served.

    ``model`` is ``deployed_graph``, or what is above the hidden states that ``packed`` gives for some rows.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        folder: Path,
        subject: TuningSubject,
        threads: int | None,
        packed: Callable[[Sequence[int]], Mapping[str, NDArray[np.float32]]] = lambda _: {},
    ) -> None:
        self._names, self._subject, self._packed = given_names(subject.facts.trained), subject, packed
        self._session = open_session(model, folder, threads)

    def logits(self, tensors: Arrays, rows: Encoded, chosen: Sequence[int]) -> NDArray[np.float32]:
        """[batch, outputs]."""
        given: dict[str, Any] = {new: tensors[name] for new, name in self._names.items()}
        data, (inputs, _) = self._subject.data, rows.batch(chosen)
        found = np.empty((len(chosen), 1 if data.labels is None else len(data.labels)), np.float32)
        for part, cut in passes(inputs, prompt=self._subject.prompt_length):
            states = self._packed([chosen[i] for i in part])
            found[part] = run_session(self._session, LOGITS, {**given, **cut, **states})
        return found

    def score(
        self, tensors: Arrays, rows: Encoded, metric: str, advance: Callable[[int], None] = lambda _: None
    ) -> Scored:
        """Score ``tensors`` on ``rows``; ``advance`` is told the number of rows after each batch."""
        labels = self._subject.data.labels
        guesses, loss = np.empty(len(rows.targets)), 0.0
        for chosen in sorted_batches(rows.lengths, BATCH):
            logits = self.logits(tensors, rows, chosen)
            loss += float(_losses(logits, rows.targets[chosen]).sum())
            guesses[chosen] = logits[:, 0] if labels is None else logits.argmax(1)
            advance(len(chosen))
        expected, found = rows.targets.tolist(), guesses.tolist()
        if labels is None:
            return Scored(compute(metric, expected, found), loss / len(found))
        right, guessed = ([labels[int(i)] for i in values] for values in (expected, found))
        return Scored(compute(metric, right, guessed, labels), loss / len(found))


def _losses(logits: NDArray[np.float32], targets: NDArray[Any]) -> NDArray[np.float64]:
    """Cross entropy, or squared error, of each row."""
    if targets.dtype.kind == "f":
        squares: NDArray[np.float64] = np.square(logits[:, 0].astype(np.float64) - targets)
        return squares
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    picked = shifted[np.arange(len(targets)), targets]
    losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(1)) - picked
    return losses
