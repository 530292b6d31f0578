"""Other libraries' checkpoints, as the tests of their importers use them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from tolerance import exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.training.interop.base import ImportRequest, importer_of

GOLDEN = Path(__file__).parents[1] / "training" / "interop" / "golden"


def backbone_of(name):
    """What the golden checkpoint of that name was trained on."""
    return open_backbone(str(GOLDEN / name.partition("-")[0]))


TAGS = ("O", "B-X", "I-X", "B-Y", "I-Y")


def golden(folder, backbone):
    """A golden checkpoint as a delta; of tags, which checkpoints seldom name, with ``TAGS``."""
    logits = theirs_of(folder)
    return imported(folder, backbone, labels=TAGS[: logits.shape[-1]] if "tag" in folder.name else None)


def theirs_of(folder):
    """The logits that the library gave; of tokens those of the rows' own, not of a prompt in front."""
    logits = load_file(folder / "logits.safetensors")["logits"].numpy()
    length = load_file(GOLDEN / folder.name.partition("-")[0] / "inputs.safetensors")["input_ids"].shape[1]
    return logits[:, -length:] if logits.ndim > 2 else logits


def exact_of_golden(folder, backbone, delta):
    """``exact_of`` and ``theirs_of``, of tokens without those of padding."""
    exact, theirs, rows = exact_of(delta, backbone), theirs_of(folder), rows_beside(backbone)["attention_mask"] > 0
    return (exact, theirs) if theirs.ndim == 2 else (replace(exact, value=exact.value[rows]), theirs[rows])


def imported(folder, backbone, **request):
    return importer_of(folder).read(folder, backbone, ImportRequest(task="task", **request))


def rows_beside(backbone):
    """The golden rows of a backbone."""
    inputs = load_file(backbone.folder / "inputs.safetensors")
    return {name: inputs[name] for name in backbone.architecture.inputs}


def logits_of(delta, backbone):
    """Of the rows beside the backbone."""
    with torch.no_grad():
        return delta.logits(load_model(backbone, "eager"), rows_beside(backbone))


def exact_of(delta, backbone):
    """The same in float64, and what float32 may make of them."""
    return exact_logits(delta, load_model(backbone, "eager"), rows_beside(backbone))


def changed_copy(folder, target, **settings):
    """A copy of a checkpoint's folder, with other settings in its config."""
    copied = Path(shutil.copytree(folder, target))
    config = copied / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))
    return copied
