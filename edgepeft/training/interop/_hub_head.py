"""AdapterHub's heads: its flexible heads, and transformers' own ones saved beside an adapter.

Source: adapters 1.3.0, ``heads/base.py`` and ``loading.py``.  Those of a text read position 0.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from edgepeft.backbones.config import read_config
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.training.interop._hub_adapter import HubFile
from edgepeft.training.interop.base import ImportedHead, check_tensors, parsed, read_state_dict, usual_problem
from edgepeft.training.interop.classifier import ANSWERS, ENCODERS, SEQUENCES, TOKENS, Classifier, check_head

HEAD_CONFIG = "head_config.json"
HEAD_FILES = ("model_head.safetensors", "pytorch_model_head.bin")
# Their type of head -> how transformers' class for it ends, and its problem type, where it has one.
_TYPES: Mapping[str, tuple[str, str | None]] = {
    "classification": (SEQUENCES, None),
    "multilabel_classification": (SEQUENCES, "multi_label_classification"),
    "tagging": (TOKENS, None),
    "question_answering": (ANSWERS, None),
}
_WRITERS = ("seq2seq_lm", "T5ForConditionalGeneration", "MT5ForConditionalGeneration")

# (layers, activation, pooler) -> our kind, and its modules by their place in the head's sequence.
_KINDS: Mapping[tuple[int, str, bool], tuple[str, dict[str, int]]] = {
    (1, "", False): ("linear", {"classifier": 1}),
    (1, "", True): ("bert-pooler", {"classifier": 1}),
    (2, "tanh", False): ("roberta", {"dense": 1, "out_proj": 4}),
    (2, "relu", False): ("distilbert", {"pre_classifier": 1, "classifier": 4}),
    (2, "gelu", False): ("electra", {"dense": 1, "out_proj": 4}),
}


class _Flexible(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    head_type: str
    num_labels: int = Field(default=2, ge=1)
    layers: int = 2
    activation_function: str | None = "tanh"
    use_pooler: bool = False
    bias: bool = True
    label2id: dict[str, int] | None = None


def read_head(folder: Path, classifier: Classifier, asked: str | None) -> ImportedHead:
    """The head beside an adapter, else the backbone's own, which it is where labels are scored.

    ``asked`` is how the name of transformers' class ends for the kind of task that is asked for.
    """
    path = folder / HEAD_CONFIG
    if classifier.has_decoder:
        return _output_layer(folder, classifier)
    if not path.is_file():
        classifier = replace(classifier, model=asked if asked in ENCODERS else SEQUENCES)
        stored = any((folder / name).is_file() for name in HEAD_FILES)
        state = read_state_dict(folder, *HEAD_FILES) if stored else classifier.stored_head()
        if not state:
            raise BundleError(
                f"{folder} has no {HEAD_CONFIG}, and the backbone has no head either; without one nothing is answered. "
                "Save it with its head: AdapterHub's save_adapter with with_head=True."
            )
        return _static(state, classifier, folder)
    file = parsed(HubFile, read_config(path), path)
    file.check_architecture(classifier.architecture, path)
    state = read_state_dict(folder, *HEAD_FILES)
    if file.config is not None:
        return _flexible(parsed(_Flexible, file.config, path), file, state, classifier, folder)
    model = next((model for model in ENCODERS if file.model_class.endswith(model)), None)
    if model is None:
        known = ", ".join(f"...{model}" for model in ENCODERS)
        raise BundleError(f"{path}: a head of {file.model_class} cannot be imported; what can: {known}.")
    return _static(state, replace(classifier, model=model), folder, _labels(file.label2id))


def written_head(delta: Delta) -> tuple[dict[str, Any], dict[str, str]]:
    """The config of one of their flexible heads that is the delta's, and our tensors by their places in it."""
    card, kind = delta.card, delta.card.task_kind
    fitting = [name for name, (model, _) in _TYPES.items() if model == kind.model and not kind.writes]
    if not fitting:
        raise UsageError(
            f"the task {card.task!r} is {kind.title}, and no head of AdapterHub's that can be written is for it; what "
            f"can: {', '.join(_TYPES)}."
        )
    type_of = next((name for name in fitting if _TYPES[name][1] == kind.problem_type), fitting[0])
    forms = {ours: (form, modules) for form, (ours, modules) in _KINDS.items()}
    if kind.per_token:
        forms = {card.head: ((1, "", False), {"classifier": 1})}
    check_head(delta, list(forms), "AdapterHub")
    (layers, activation, pooler), modules = forms[card.head]
    labels = card.labels or [f"LABEL_{i}" for i in range(card.n_outputs)]
    settings = {
        "head_type": type_of,
        "num_labels": card.n_outputs,
        "layers": layers,
        "activation_function": activation or "tanh",
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    settings |= {"use_pooler": pooler, "bias": True} if kind.model == SEQUENCES else {}
    places = {f"{place}.{of}": f"head/{ours}.{of}" for ours, place in modules.items() for of in ("weight", "bias")}
    return settings, places


def _output_layer(folder: Path, classifier: Classifier) -> ImportedHead:
    """A model that writes text has the backbone's output layer: what is stored of one must be that."""
    path = folder / HEAD_CONFIG
    if path.is_file():
        file = parsed(HubFile, read_config(path), path)
        kind = file.config.get("head_type") if file.config is not None else file.model_class
        if kind not in _WRITERS:
            raise BundleError(
                f"{path}: a head of {kind} cannot be imported for a backbone that scores labels; what can: "
                f"{', '.join(_WRITERS)}."
            )
        own = classifier.backbone.checkpoint
        table = torch.from_numpy(own.read("lm_head.weight" if own.has("lm_head.weight") else "shared.weight").copy())
        for name, tensor in read_state_dict(folder, *HEAD_FILES).items():
            if tensor.shape == table.shape and not torch.equal(tensor, table):
                raise BundleError(
                    f"{folder}: {name} is an output layer of its own, which no delta holds. Train the adapter "
                    "with the backbone's frozen."
                )
    return ImportedHead(classifier.head, None, {})


def _static(
    state: Mapping[str, Tensor], classifier: Classifier, folder: Path, labels: tuple[str, ...] | None = None
) -> ImportedHead:
    weight = state.get(f"{classifier.last}.weight")
    outputs = len(weight) if weight is not None and weight.dim() and len(weight) else 1
    values = _values(state, classifier.head_tensors(outputs), folder)
    return ImportedHead(classifier.head, outputs, values, labels, classifier.model)


def _values(
    state: Mapping[str, Tensor], wanted: Mapping[str, tuple[str, tuple[int, ...]]], folder: Path
) -> dict[str, Tensor]:
    """Ours, of exactly these: theirs -> (ours, its shape)."""
    check_tensors(state, {theirs: shape for theirs, (_, shape) in wanted.items()}, folder)
    return {ours: state[theirs] for theirs, (ours, _) in wanted.items()}


def _flexible(
    config: _Flexible, file: HubFile, state: Mapping[str, Tensor], classifier: Classifier, folder: Path
) -> ImportedHead:
    if config.head_type not in _TYPES:
        known = ", ".join(_TYPES)
        raise BundleError(
            f"{folder / HEAD_CONFIG}: a head of type {config.head_type} cannot be imported; what can: {known}."
        )
    model, problem = _TYPES[config.head_type]
    if model == SEQUENCES:
        kind, modules, problem = *_kind(config, classifier, folder), problem or usual_problem(config.num_labels)
    elif config.layers == 1:
        kind, modules = replace(classifier, model=model).head, {"classifier": 1}
    else:
        raise BundleError(
            f"{folder / HEAD_CONFIG}: layers = {config.layers}; a head for each token can be imported with one layer."
        )
    d = classifier.architecture.hidden_size
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
    for ours, place in modules.items():
        last = place == max(modules.values())
        rows, start = config.num_labels if last else d, f"heads.{file.name}.{place}."
        wanted[f"{start}weight"] = (f"head/{ours}.weight", (rows, d))
        if config.bias or not last:
            wanted[f"{start}bias"] = (f"head/{ours}.bias", (rows,))
    values = _values(state, wanted, folder)
    if not config.bias:
        values[f"head/{list(modules)[-1]}.bias"] = torch.zeros(config.num_labels)
    return ImportedHead(kind, config.num_labels, values, _labels(config.label2id), model, problem)


def _kind(config: _Flexible, classifier: Classifier, folder: Path) -> tuple[str, dict[str, int]]:
    path = folder / HEAD_CONFIG
    activation = (config.activation_function or "none").lower() if config.layers > 1 else ""
    kind = _KINDS.get((config.layers, activation, config.use_pooler))
    pooler = f"use_pooler = {config.use_pooler}"
    if kind is None:
        raise BundleError(
            f"{path}: no head has layers = {config.layers}, activation_function = {config.activation_function!r}, "
            f"{pooler}; what can be imported: one layer, or two with tanh, relu or gelu between "
            "them and without the pooler."
        )
    if config.use_pooler and not classifier.architecture.pooler:
        raise BundleError(
            f"{path}: {pooler}: backbones of type {classifier.architecture.model_type} run without one; train a head "
            "with use_pooler = False."
        )
    return kind


def _labels(label2id: Mapping[str, int] | None) -> tuple[str, ...] | None:
    """In order; None where the file does not number them 0, 1, ..."""
    named = {index: label for label, index in (label2id or {}).items()}
    return tuple(named[i] for i in range(len(named))) if set(named) == set(range(len(named))) and named else None
