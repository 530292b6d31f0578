"""What a merged model gives, by transformers' class for its kind of task, and how the task's check is read from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import TaskEntry
from edgepeft.graph.forms import as_choices, as_starts_and_ends, own_states
from edgepeft.graph.names import END, LOGITS, START, STATES
from edgepeft.graph.rows import logits_as_rows
from edgepeft.graph.splice import splice_states
from edgepeft.runtime.inputs import Inputs

__all__ = ["Form", "form_of"]

Values = NDArray[Any]


class Form:
    """``logits`` [batch, outputs], or [batch, length, outputs] of tokens, as the task's own graph gives them."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        """The model; weights stay in their file."""
        return logits_as_rows(bundle.graph(task))

    def notes(self, entry: TaskEntry, hidden_size: int) -> Mapping[str, Any]:
        """Further files of JSON that say how the outputs are read, by their path."""
        return {}

    def inputs(self, rows: Inputs) -> Inputs:
        """Token rows [batch, length] as the model takes them."""
        return rows

    def logits(self, outputs: Mapping[str, Values], rows: Inputs, entry: TaskEntry) -> Values:
        """What the check holds, of the model's outputs."""
        return outputs[LOGITS]


class _Answers(Form):
    """``start_logits`` and ``end_logits``, less the threshold of no answer at the first token's start."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        """As ``Form.graph``."""
        return as_starts_and_ends(super().graph(bundle, task), _threshold(bundle.entry(task)))

    def logits(self, outputs: Mapping[str, Values], rows: Inputs, entry: TaskEntry) -> Values:
        """As ``Form.logits``."""
        both = np.stack([outputs[START], outputs[END]], -1)
        both[:, 0, 0] += np.float32(_threshold(entry))
        return both


class _Choices(Form):
    """``logits`` [batch, choices] of token rows [batch, choices, length]."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        """As ``Form.graph``."""
        return as_choices(super().graph(bundle, task))

    def inputs(self, rows: Inputs) -> Inputs:
        """One choice a row."""
        return {name: values[:, None] for name, values in rows.items()}


class _States(Form):
    """``last_hidden_state`` [batch, length, d]; ``1_Pooling/config.json`` says how a text's vector is made of it."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        """As ``Form.graph``."""
        sites = bundle.manifest.backbone.sites
        return own_states(splice_states(bundle.backbone_graph, bundle.delta_graph(task), sites, bundle.checkpoint))

    def notes(self, entry: TaskEntry, hidden_size: int) -> Mapping[str, Any]:
        """sentence-transformers' note on pooling."""
        mean = entry.head_reads == "mean"
        pooling = {"pooling_mode_cls_token": not mean, "pooling_mode_mean_tokens": mean}
        return {"1_Pooling/config.json": {"word_embedding_dimension": hidden_size, **pooling}}

    def logits(self, outputs: Mapping[str, Values], rows: Inputs, entry: TaskEntry) -> Values:
        """Pooled, and of length 1."""
        states, real = outputs[STATES], (rows["attention_mask"] != 0)[..., None].astype(np.float32)
        pooled = (states * real).sum(1) / real.sum(1) if entry.head_reads == "mean" else states[:, 0]
        unit: Values = pooled / np.sqrt((pooled * pooled).sum(1, keepdims=True) + np.float32(1e-24))
        return unit


def _threshold(entry: TaskEntry) -> float:
    return float(entry.chosen.get("threshold", 0.0))


_FORMS: Mapping[str, Form] = {"ForQuestionAnswering": _Answers(), "ForMultipleChoice": _Choices(), "Model": _States()}


def form_of(entry: TaskEntry) -> Form:
    """That of the class that transformers has for the task's kind."""
    return _FORMS.get(entry.task_kind.model, Form())
