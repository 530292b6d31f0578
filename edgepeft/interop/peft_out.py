"""A delta as a folder that peft's ``PeftModel.from_pretrained`` loads, with equal logits."""

from __future__ import annotations

from pathlib import Path

from edgepeft.backbones.source import Backbone
from edgepeft.delta import Delta, write_tensors
from edgepeft.errors import UsageError
from edgepeft.interop.classifier import Classifier
from edgepeft.interop.peft_methods.base import CONFIG_FILE, PREFIX, TASK_TYPE, TENSORS_FILE, PeftConfig, peft_methods
from edgepeft.resources import new_folder, write_json

__all__ = ["write_peft"]


def write_peft(delta: Delta, backbone: Backbone, folder: Path, *, force: bool = False) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors``, whole or not at all.

    Raises:
        UsageError: a method that PEFT has no form for, or a head that transformers' class does not have; or the folder
            exists.
    """
    classifier = Classifier(backbone)
    config = _config_of(delta, classifier)
    settings, tensors = config.written(delta, classifier)
    settings |= {
        "peft_type": config.kind,
        "task_type": TASK_TYPE,
        "base_model_name_or_path": delta.card.backbone.source,
        "modules_to_save": sorted({module.partition(".")[0] for module in classifier.head_modules.values()}),
        "inference_mode": True,
    }
    ours = delta.tensors()
    tensors |= {theirs: ours[name] for theirs, (name, _) in classifier.head_tensors(delta.card.n_outputs).items()}
    with new_folder(folder, force=force) as new:
        write_tensors({PREFIX + name: t.detach().contiguous() for name, t in tensors.items()}, new / TENSORS_FILE)
        write_json(new / CONFIG_FILE, settings)


def _config_of(delta: Delta, classifier: Classifier) -> type[PeftConfig]:
    card = delta.card
    written = {config.ours: config for config in peft_methods().values() if config.ours}
    if card.method not in written:
        known = " and ".join(sorted(map(str, written)))
        raise UsageError(f"only {known} can be written for PEFT; the task {card.task!r} is a delta of {card.method}.")
    if (card.head, card.head_reads) != (classifier.head, "first_token"):
        raise UsageError(
            f"PEFT wraps transformers' own head, here {classifier.head} over the first token; the task {card.task!r} "
            f"has {card.head} over {card.head_reads.replace('_', ' ')}, which it cannot hold."
        )
    return written[card.method]
