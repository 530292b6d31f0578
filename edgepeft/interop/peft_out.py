"""A LoRA delta as a folder that peft's ``PeftModel.from_pretrained`` loads, with equal logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from edgepeft.backbones.source import Backbone
from edgepeft.delta import Delta, write_tensors
from edgepeft.errors import UsageError
from edgepeft.interop._peft_config import CONFIG_FILE, PREFIX, TASK_TYPE, TENSORS_FILE
from edgepeft.interop.classifier import Classifier
from edgepeft.methods.lora import LoRA
from edgepeft.resources import new_folder, write_json

__all__ = ["write_peft"]


def write_peft(delta: Delta, backbone: Backbone, folder: Path, *, force: bool = False) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``, whole or not at all.

    Raises:
        UsageError: not LoRA, or a head that transformers' class does not have; or the folder exists.
    """
    classifier = Classifier(backbone)
    _check(delta, classifier)
    config, tensors = _config(delta, classifier), _tensors(delta, classifier)
    with new_folder(folder, force=force) as new:
        write_tensors(tensors, new / TENSORS_FILE)
        write_json(new / CONFIG_FILE, config)


def _check(delta: Delta, classifier: Classifier) -> None:
    card = delta.card
    if card.method != LoRA.name:
        raise UsageError(f"only LoRA can be written for PEFT; the task {card.task!r} is a delta of {card.method}.")
    if (card.head, card.head_reads) != (classifier.head, "first_token"):
        raise UsageError(
            f"PEFT wraps transformers' own head, here {classifier.head} over the first token; the task {card.task!r} "
            f"has {card.head} over {card.head_reads.replace('_', ' ')}, which it cannot hold."
        )


def _targets(delta: Delta, classifier: Classifier) -> dict[str, str]:
    """Site -> their linear layer, by its whole name: an end such as output.dense means two of them."""
    named = {site.name: module for module, site in classifier.linear_sites.items()}
    return {site: named[site] for site in delta.site_modules}


def _config(delta: Delta, classifier: Classifier) -> dict[str, Any]:
    method = LoRA.from_settings(delta.card.hyperparameters)
    whole = method.alpha.is_integer()
    return {
        "peft_type": "LORA",
        "task_type": TASK_TYPE,
        "base_model_name_or_path": delta.card.backbone.source,
        "r": method.rank,
        "lora_alpha": int(method.alpha) if whole else method.alpha,
        "use_rslora": method.rank_stabilised,
        "bias": method.bias,
        "target_modules": list(_targets(delta, classifier).values()),
        "modules_to_save": sorted({module.partition(".")[0] for module in classifier.head_modules.values()}),
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _tensors(delta: Delta, classifier: Classifier) -> dict[str, Tensor]:
    targets = _targets(delta, classifier)
    names = {ours: theirs for theirs, (ours, _) in classifier.head_tensors(delta.card.n_outputs).items()}
    for site, module in targets.items():
        names |= {f"{site}/{part}": f"{module}.lora_{part}.weight" for part in ("A", "B")}
    for theirs, ours in classifier.tensors.items():
        module, _, part = theirs.rpartition(".")
        wrapped = f"{module}.base_layer.{part}" if module in targets.values() else theirs
        names[f"override/{ours}"] = wrapped
    return {PREFIX + names[name]: tensor.detach().contiguous() for name, tensor in delta.tensors().items()}
