"""Other libraries' checkpoints, as the tests of their importers use them."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from tolerance import exact_logits

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.interop.base import ImportRequest, importer_of

GOLDEN = Path(__file__).parent / "interop" / "golden"


def backbone_of(name):
    """What the golden checkpoint of that name was trained on."""
    return open_backbone(str(GOLDEN / name.partition("-")[0]))


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
