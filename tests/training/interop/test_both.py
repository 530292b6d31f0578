"""What holds of the imports from both libraries."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoints import GOLDEN, backbone_of, exact_of, imported, theirs_of

from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError

HUB = GOLDEN / "adapterhub"


@pytest.mark.parametrize("folder", [GOLDEN / "bert-lora", HUB / "bert-lora"], ids=["peft", "adapterhub"])
def test_the_head_reads_the_first_token_even_where_the_backbones_own_pooling_is_the_mean(folder, tmp_path):
    mean = Path(shutil.copytree(GOLDEN / "bert", tmp_path / "bert"))
    (mean / "1_Pooling").mkdir()
    (mean / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    backbone = open_backbone(str(mean))
    exact_of(imported(folder, backbone), backbone).require(theirs_of(folder))


# A fresh LoRA draws its A; where the checkpoint leaves a layer alone nothing of it may remain.
@pytest.mark.parametrize("folder", [GOLDEN / "bert-lora-one-layer", HUB / "bert-compacter-shared"], ids=["peft", "hub"])
def test_importing_twice_gives_the_same_bytes(folder, tmp_path):
    for seed in (0, 1):
        torch.manual_seed(seed)
        imported(folder, backbone_of("bert")).save(tmp_path / str(seed))
    first, second = ((tmp_path / str(seed) / "delta.safetensors").read_bytes() for seed in (0, 1))
    assert first == second


def test_a_folder_of_several_checkpoints_is_told_with_those_in_it(tmp_path):
    shutil.copytree(GOLDEN / "bert-lora", tmp_path / "one")
    shutil.copytree(HUB / "bert-lora", tmp_path / "two")
    (tmp_path / "other").mkdir()
    with pytest.raises(BundleError, match=r"no checkpoint of a known library .* There is one in one, two: give that"):
        imported(tmp_path, backbone_of("bert"))
