"""AdapterHub's checkpoints, in and out, without adapters: folders of an adapter, or of several that are fused.

Names: adapters 1.3.0, ``loading.py`` and ``heads/base.py``, whose own the golden checkpoints of the tests are.

A fusion is a folder of ``save_adapter_setup`` with a Fuse of adapters, each in a folder of its own.  Heads are their
flexible ones, or transformers' own ones saved beside an adapter; those of a text read position 0.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.config import read_config
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.atomic import new_folder, write_json
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.training.interop._hub_adapter import SHARED, HubFile, Places
from edgepeft.training.interop._hub_methods import FusionConfig, plan_of, refuse, settings_of
from edgepeft.training.interop.base import (
    ConversionPlan,
    ForeignConfig,
    ForeignFile,
    ImportedHead,
    Importer,
    ImportRequest,
    check_tensors,
    read_state_dict,
    usual_problem,
)
from edgepeft.training.interop.classifier import ANSWERS, CAUSAL, ENCODERS, SEQUENCES, TOKENS, Classifier, check_head

SETUP_FILE = "adapter_setup.json"
CONFIG_FILE, HEAD_CONFIG, FUSION_CONFIG = "adapter_config.json", "head_config.json", "adapter_fusion_config.json"
TENSORS_FILES = ("adapter.safetensors", "pytorch_adapter.bin")
HEAD_FILES = ("model_head.safetensors", "pytorch_model_head.bin")
FUSION_FILES = ("model_adapter_fusion.safetensors", "pytorch_model_adapter_fusion.bin")
# Files that say that a folder holds more than one adapter's forward pass.
_COMPOSITIONS = {
    FUSION_CONFIG: "an AdapterFusion layer without its adapters",
    "adapter_interface.json": "an adapter of a model with an interface of its own",
}

_POOL = ".prefix_tuning.pool."
_FLEXIBLE = "transformer."  # what their own class puts before T5's names
# Their older names -> today's, as their loader has them.
_LEGACY = {
    "attention_text_task_adapters": "adapters",
    "attention_text_lang_adapters": "adapters",
    "layer_text_task_adapters": "adapters",
    "layer_text_lang_adapters": "adapters",
}
_VERSION = "adapters.1.3.0"  # whose names these are
# Of the classes that have any head; adapters has none for MPNet and ModernBERT.
_CLASSES = {
    "bert": "BertAdapterModel",
    "roberta": "RobertaAdapterModel",
    "xlm-roberta": "XLMRobertaAdapterModel",
    "distilbert": "DistilBertAdapterModel",
    "electra": "ElectraAdapterModel",
    "deberta-v2": "DebertaV2AdapterModel",
}
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


class AdapterHub(Importer):
    """Folders of ``save_adapter``."""

    library: ClassVar[str] = "AdapterHub"
    needs: ClassVar[str] = f"{CONFIG_FILE} with model_type, {' or '.join(TENSORS_FILES)}, or {SETUP_FILE}"

    def recognises(self, folder: Path) -> bool:
        if any((folder / name).is_file() for name in (*_COMPOSITIONS, SETUP_FILE)):
            return True
        path = folder / CONFIG_FILE
        if not path.is_file():
            return False
        document = read_config(path)
        return "peft_type" not in document and ("model_type" in document or "config" in document)

    def read(self, folder: Path, backbone: Backbone, request: ImportRequest) -> Delta:
        for name, what in _COMPOSITIONS.items():
            if (folder / name).is_file():
                raise BundleError(
                    f"{folder} has {name}: {what}, which no delta can represent. A folder of save_adapter, with one "
                    "adapter, can be imported, and one of save_adapter_setup with a Fuse of several."
                )
        classifier, of_head = Classifier(backbone, CAUSAL if backbone.architecture.decoder_only else SEQUENCES), folder
        if (folder / SETUP_FILE).is_file():
            (file, config, plan, state), of_head = _fused(folder, classifier)
        else:
            file, config, plan, state = _single(folder, classifier)
        check_tensors(state, plan.shapes, folder)
        head, values = _read_head(of_head, classifier, request.model), plan.convert(state)
        # adapter-transformers, the predecessor of adapters, wrote no version or a bare one.
        origin: dict[str, Any] = {"versions": {"adapters": (file.version or "unknown").removeprefix("adapters.")}}
        origin["training"] = {"config": {"name": file.name, **config.model_dump(mode="json", exclude_unset=True)}}
        return request.delta(backbone, plan.method, head, values, folder=folder, library=self.library, **origin)

    def write(self, delta: Delta, backbone: Backbone, folder: Path, *, force: bool = False) -> str:
        card, architecture = delta.card, backbone.architecture
        model = _CLASSES.get(architecture.model_type)
        if model is None:
            refuse(delta, f"it is of a {architecture.model_type}", f"Backbones that can go: {', '.join(_CLASSES)}")
        name = re.sub(r"\W", "_", card.task)  # a module's name has no dots
        around = {"hidden_size": architecture.hidden_size, "model_class": model, "model_name": card.backbone.source}
        around |= {"model_type": architecture.model_type, "name": name, "version": _VERSION}
        head, places = FlexibleHead.written(delta)
        settings = settings_of(delta)
        _, plan = plan_of(settings, Places(Classifier(backbone), name), folder / CONFIG_FILE)
        ours = delta.folded(backbone).tensors()
        adapter, of_method = plan.back(ours), {own for own in ours if own.partition("/")[0] != "head"}
        held = {own for _, own in plan.names}.union(*plan.joined.values())
        if adapter.keys() != plan.shapes.keys() or of_method - held:
            refuse(delta, "it has modules where AdapterHub has none, or none where it has some", "Train other roles")
        of_head = {f"heads.{name}.{place}": ours[own] for place, own in places.items()}
        with new_folder(folder, force=force) as new:
            for file, tensors in ((TENSORS_FILES[0], adapter), (HEAD_FILES[0], of_head)):
                own = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
                save_file(own, new / file, metadata={"format": "pt"})
            write_json(new / CONFIG_FILE, {**around, "config": settings})
            write_json(new / HEAD_CONFIG, {**around, "config": head})
        return f"adapters' load_adapter(FOLDER, use_safetensors=True) of a {model} of {backbone.source}"


def _file_of(path: Path, classifier: Classifier) -> tuple[HubFile, Places]:
    file = HubFile.of(read_config(path), path)
    file.check_architecture(classifier.architecture, path)
    if file.name is None or file.config is None:
        absent = "name" if file.name is None else "config"
        raise BundleError(f"{path} has no {absent}; it is no config that save_adapter writes: save the adapter again.")
    return file, Places(classifier, file.name)


_Read = tuple[HubFile, ForeignConfig, ConversionPlan, dict[str, Tensor]]


def _single(folder: Path, classifier: Classifier) -> _Read:
    path = folder / CONFIG_FILE
    file, places = _file_of(path, classifier)
    config, plan = plan_of(file.method_settings(), places, path)
    # By today's names, in transformers' own class.
    stored = read_state_dict(folder, *TENSORS_FILES)
    state = {}
    for name, tensor in stored.items():
        if _POOL in name:
            continue  # each layer has all prefixes once more
        if classifier.has_decoder:
            name = name.removeprefix(_FLEXIBLE)  # noqa: PLW2901
        for old, new in _LEGACY.items():
            name = name.replace(old, new)  # noqa: PLW2901
        state[name] = tensor
    missing = [name for name in plan.shapes if name.startswith(f"{classifier.prefix}{SHARED}") and name not in state]
    if classifier.has_decoder and missing:
        raise BundleError(
            f"{folder} has no {', '.join(missing)}: over transformers' own class AdapterHub does not save what all "
            "adapters of a T5 share, and without it they are lost. Save the adapter from AdapterHub's T5AdapterModel."
        )
    return file, config, plan, state


class _Setup(ForeignFile):
    adapter_setup: dict[str, Any]
    head_setup: Any = None


def _is_name(value: object) -> bool:
    """Whether it is a folder's in the setup's, and no path to another place."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\\", "\0"} & set(value)


def _fused(folder: Path, classifier: Classifier) -> tuple[_Read, Path]:
    """A Fuse of several adapters, each in a folder of its own, which stands as one; and the folder of the head."""
    path = folder / SETUP_FILE
    setup = _Setup.of(read_config(path), path)
    kind, children = setup.adapter_setup.get("type"), setup.adapter_setup.get("children") or []
    single = [each.get("children") for each in children if isinstance(each, dict) and each.get("type") == "single"]
    names = [name for each in single if isinstance(each, list) for name in each]
    if kind != "Fuse" or len(names) != len(children) or not all(map(_is_name, names)):
        raise BundleError(
            f"{path}: a composition of type {kind} with these parts is no delta; what can be is a Fuse of adapters. A "
            "folder of save_adapter, with one adapter, can be imported too."
        )
    if classifier.has_decoder:
        raise BundleError(f"{folder}: a fusion in a T5 cannot be imported; import one of its adapters.")
    fusion, of_head = folder / ",".join(names), folder / (setup.head_setup if _is_name(setup.head_setup) else "")
    file, places = _file_of(fusion / FUSION_CONFIG, classifier)
    config = FusionConfig.read(file.config or {}, fusion / FUSION_CONFIG)
    state = read_state_dict(fusion, *FUSION_FILES)
    parts = []
    for name in names:
        *_, plan, own = _single(folder / name, classifier)
        parts.append(plan)
        state |= own
    return (file, config, config.plan(parts, places), state), of_head


class FlexibleHead(ForeignFile):
    """Its config; a module's place in its sequence counts dropout and activations too."""

    head_type: str
    num_labels: int = Field(default=2, ge=1)
    layers: int = 2
    activation_function: str | None = "tanh"
    use_pooler: bool = False
    bias: bool = True
    label2id: dict[str, int] | None = None

    def imported(
        self, name: str | None, state: Mapping[str, Tensor], classifier: Classifier, path: Path
    ) -> ImportedHead:
        """As one of our kinds, with these tensors of the adapter of that name."""
        if self.head_type not in _TYPES:
            known = ", ".join(_TYPES)
            raise BundleError(f"{path}: a head of type {self.head_type} cannot be imported; what can: {known}.")
        model, problem = _TYPES[self.head_type]
        if model == SEQUENCES:
            kind, modules = self._kind(classifier.architecture, path)
            problem = problem or usual_problem(self.num_labels)
        elif self.layers == 1:
            kind, modules = replace(classifier, model=model).head, {"classifier": 1}
        else:
            raise BundleError(f"{path}: layers = {self.layers}; a head for each token can be imported with one layer.")
        d = classifier.architecture.hidden_size
        wanted: dict[str, tuple[str, tuple[int, ...]]] = {}
        for ours, place in modules.items():
            last = place == max(modules.values())
            rows, start = self.num_labels if last else d, f"heads.{name}.{place}."
            wanted[f"{start}weight"] = (f"head/{ours}.weight", (rows, d))
            if self.bias or not last:
                wanted[f"{start}bias"] = (f"head/{ours}.bias", (rows,))
        values = _values(state, wanted, path.parent)
        if not self.bias:
            values[f"head/{list(modules)[-1]}.bias"] = torch.zeros(self.num_labels)
        return ImportedHead(kind, self.num_labels, values, _labels(self.label2id), model, problem)

    def _kind(self, architecture: Architecture, path: Path) -> tuple[str, dict[str, int]]:
        activation = (self.activation_function or "none").lower() if self.layers > 1 else ""
        kind = _KINDS.get((self.layers, activation, self.use_pooler))
        pooler = f"use_pooler = {self.use_pooler}"
        if kind is None:
            raise BundleError(
                f"{path}: no head has layers = {self.layers}, activation_function = {self.activation_function!r}, "
                f"{pooler}; what can be imported: one layer, or two with tanh, relu or gelu between them and without "
                "the pooler."
            )
        if self.use_pooler and not architecture.pooler:
            raise BundleError(
                f"{path}: {pooler}: backbones of type {architecture.model_type} run without one; train a head "
                "with use_pooler = False."
            )
        return kind

    @staticmethod
    def written(delta: Delta) -> tuple[dict[str, Any], dict[str, str]]:
        """The config of one of their flexible heads that is the delta's, and our tensors by their places in it."""
        card, kind = delta.card, delta.card.task_kind
        fitting = [name for name, (model, _) in _TYPES.items() if model == kind.model and not kind.writes]
        if not fitting:
            raise UsageError(
                f"the task {card.task!r} is {kind.title}, and no head of AdapterHub's that can be written is for it; "
                f"what can: {', '.join(_TYPES)}."
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


def _read_head(folder: Path, classifier: Classifier, asked: str | None) -> ImportedHead:
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
    file = HubFile.of(read_config(path), path)
    file.check_architecture(classifier.architecture, path)
    state = read_state_dict(folder, *HEAD_FILES)
    if file.config is not None:
        return FlexibleHead.of(file.config, path).imported(file.name, state, classifier, path)
    model = next((model for model in ENCODERS if file.model_class.endswith(model)), None)
    if model is None:
        known = ", ".join(f"...{model}" for model in ENCODERS)
        raise BundleError(f"{path}: a head of {file.model_class} cannot be imported; what can: {known}.")
    return _static(state, replace(classifier, model=model), folder, _labels(file.label2id))


def _output_layer(folder: Path, classifier: Classifier) -> ImportedHead:
    """A model that writes text has the backbone's output layer: what is stored of one must be that."""
    path = folder / HEAD_CONFIG
    if path.is_file():
        file = HubFile.of(read_config(path), path)
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


def _labels(label2id: Mapping[str, int] | None) -> tuple[str, ...] | None:
    """In order; None where the file does not number them 0, 1, ..."""
    named = {index: label for label, index in (label2id or {}).items()}
    return tuple(named[i] for i in range(len(named))) if set(named) == set(range(len(named))) and named else None
