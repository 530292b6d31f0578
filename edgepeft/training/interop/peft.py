"""PEFT's checkpoints, in and out, without peft; ``peft_methods`` has a file for each of its methods.

Source of the names: peft 0.21.2, ``utils/save_and_load.py``; the golden checkpoints of ``tests/interop`` are its own.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import save_file
from torch import Tensor

from edgepeft.backbones.config import read_config
from edgepeft.backbones.pooling import READS, reads_of
from edgepeft.backbones.sentence_files import pooling_of, write_pooling
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.atomic import new_folder, write_json
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.methods.base import method_named
from edgepeft.training.interop.base import (
    ConversionPlan,
    ImportedHead,
    Importer,
    ImportRequest,
    check_tensors,
    read_state_dict,
)
from edgepeft.training.interop.classifier import ANSWERS, VECTORS, Classifier, check_head
from edgepeft.training.interop.peft_methods import base as configs

_POOLER = "pooler."  # of transformers' base models, past the states that a vector is made of
_SAVED, _ORIGINAL = ".modules_to_save.", ".original_module."


class Peft(Importer):
    """Folders of ``PeftModel.save_pretrained``."""

    library: ClassVar[str] = "PEFT"
    needs: ClassVar[str] = f"{configs.CONFIG_FILE} with peft_type, {configs.TENSORS_FILE} or .bin"

    def recognises(self, folder: Path) -> bool:
        path = folder / configs.CONFIG_FILE
        return path.is_file() and "peft_type" in read_config(path)

    def read(self, folder: Path, backbone: Backbone, request: ImportRequest) -> Delta:
        types = configs.task_types(backbone)
        config = configs.read_peft_config(folder, types)
        classifier = Classifier(backbone, config.model(types, request.model))
        head = set(classifier.head_modules.values())
        odd = [module for module in classifier.modules if module not in head and config.saves(module)]
        if odd and not config.keeps_whole:
            raise BundleError(
                f"{folder}: modules_to_save has more than the head, which no delta of {config.kind} can represent: "
                f"{', '.join(odd)}. Train it with the head alone there, or as LORA."
            )
        if classifier.model == ANSWERS and "token_type_ids" in backbone.architecture.inputs:
            warnings.warn(
                "PEFT's own model for question answering (0.21.2) does not pass token_type_ids on, and this task reads "
                "them, as transformers' class does. If it was trained through PEFT's, score it: edgepeft eval.",
                stacklevel=2,
            )
        plan = config.plan(classifier, folder)
        stored = read_state_dict(folder, configs.TENSORS_FILE, "adapter_model.bin")
        state = _canonical(stored, config, classifier, folder)
        outputs = _outputs(state, classifier, folder)
        of_head = ConversionPlan.renaming(plan.method, classifier.head_tensors(outputs or 0))
        if lost := sorted({name.rpartition(".")[0] for name in of_head.shapes if name not in state}):
            raise BundleError(
                f"{folder} lacks {', '.join(lost)}, which the head of {classifier.model} has and the backbone not: "
                "PEFT saves of a head what modules_to_save names, and without it the answers are lost. Train it with "
                f"modules_to_save={sorted({*lost, *config.modules_to_save})}."
            )
        check_tensors(state, {**plan.shapes, **of_head.shapes}, folder)
        imported = ImportedHead(classifier.head, outputs, of_head.convert(state), model=classifier.model)
        if classifier.model == VECTORS:  # sentence-transformers saves how it pools beside an adapter, too
            pooling = pooling_of(folder, backbone.pooling, backbone.encoder)
            imported = imported._replace(reads=reads_of(pooling))
        origin: dict[str, Any] = {"versions": {"peft": config.peft_version}}
        origin["training"] = {"peft_type": config.peft_type}
        values = plan.convert(state)
        return request.delta(backbone, plan.method, imported, values, folder=folder, library=self.library, **origin)

    def write(self, delta: Delta, backbone: Backbone, folder: Path, *, force: bool = False) -> str:
        card, architecture, types = delta.card, backbone.architecture, configs.task_types(backbone)
        scored = architecture.decoder is not None and (card.writes or not architecture.decoder_only)
        model = next(iter(types.values())) if scored else card.task_kind.model
        if model not in types.values():
            raise UsageError(
                f"the task {card.task!r} is {card.task_kind.title}, and PEFT has no task type for it; what can be "
                f"written for PEFT is what transformers calls {', '.join(f'...{each}' for each in types.values())}."
            )
        classifier = Classifier(backbone, model)
        written = {ours: config for config in configs.peft_methods().values() for ours in config.ours}
        if (config := written.get(card.method)) is None:
            raise UsageError(
                f"PEFT has no form for {card.method}, of which the task {card.task!r} is a delta; what can be written: "
                f"{', '.join(sorted(written))}."
            )
        check_head(delta, (classifier.head,), "PEFT")
        method = method_named(card.method).from_settings(card.hyperparameters)
        settings, tensors = config.written(delta, method, classifier)
        heads = {module.partition(".")[0] for module in classifier.head_modules.values()}
        settings |= {
            "peft_type": config.kind,
            "task_type": next(name for name, known in types.items() if known == model),
            "base_model_name_or_path": card.backbone.source,
            "modules_to_save": sorted({*heads, *settings.get("modules_to_save", ())}) or None,
            "inference_mode": True,
        }
        ours = delta.tensors()
        tensors |= {theirs: ours[name] for theirs, (name, _) in classifier.head_tensors(card.n_outputs).items()}
        with new_folder(folder, force=force) as new:
            named = {name if name in config.unprefixed else config.prefix + name: t for name, t in tensors.items()}
            stored = {name: tensor.detach().contiguous() for name, tensor in named.items()}
            save_file(stored, new / configs.TENSORS_FILE, metadata={"format": "pt"})
            write_json(new / configs.CONFIG_FILE, settings)
            if card.task_kind.gives_vectors:
                write_pooling(new, READS[card.head_reads], architecture.hidden_size)
        problem = f" and problem_type={card.task_kind.problem_type}" if card.task_kind.problem_type else ""
        over = f"AutoModel{card.task_kind.model} of {backbone.source} with num_labels={card.n_outputs}{problem}"
        if delta.trie is not None:
            over = f"model of {backbone.source} for conditional generation, which writes {', '.join(card.labels or ())}"
        return f"peft's PeftModel.from_pretrained, over transformers' {over}"


def _canonical(
    stored: Mapping[str, Tensor], config: configs.PeftConfig, classifier: Classifier, folder: Path
) -> dict[str, Tensor]:
    """The tensors by their names in the model without PEFT's wrappers; what the head lacks comes from the backbone."""
    start = config.prefix + classifier.prefix
    if isinstance(config, configs.WrapConfig) and not any(key.startswith(start) for key in stored):
        heads = tuple(f"{config.prefix}{module.partition('.')[0]}." for module in classifier.head_modules.values())
        shown = next((f" (for example {key})" for key in stored if not key.startswith(heads)), "")
        raise BundleError(
            f"{folder} belongs to another architecture: the backbone is {classifier.architecture.model_type}, whose "
            f"tensors PEFT stores as {start}*; the checkpoint has none{shown}. Use the backbone that it was trained on."
        )
    state, known = classifier.stored_head(), {*classifier.head_tensors(1), *classifier.tensors}
    # Wrapped copies first, so that the plain name, which is what PEFT reads, has the last word.
    for key in sorted(stored, key=lambda key: _SAVED not in key):
        if _ORIGINAL in key:
            continue  # with bias="all" the untrained head is written too, and not read back
        name = key.removeprefix(config.prefix).replace(".base_layer.", ".").replace(".ln_tuning_layers.", ".")
        if _SAVED in name:
            module, _, rest = name.partition(_SAVED)
            # The adapter's name may stand before the tensor's.
            rest = rest if f"{module}.{rest}" in known else rest.partition(".")[2]
            name = f"{module}.{rest}"
        if classifier.model != VECTORS or not name.startswith(_POOLER):
            state[name] = stored[key]
    return state


def _outputs(state: Mapping[str, Tensor], classifier: Classifier, folder: Path) -> int | None:
    if classifier.has_decoder:
        return None
    if not classifier.head_modules:
        return classifier.architecture.hidden_size
    weight = state.get(f"{classifier.last}.weight")
    if weight is None or weight.dim() != 2 or len(weight) == 0:
        raise BundleError(
            f"{folder} has no {classifier.last}.weight [labels, {classifier.architecture.hidden_size}], and the "
            "backbone has none either; without a head nothing is answered. Save it with the head, "
            "which PEFT's modules_to_save keeps."
        )
    return len(weight)
