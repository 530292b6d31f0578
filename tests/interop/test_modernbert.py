"""Where several sites are one layer of another library's: a delta does not go there, theirs do not come by halves."""

from __future__ import annotations

import json

import pytest
import torch
from deltas import random_delta
from safetensors.torch import save_file

from edgepeft.backbones.source import open_backbone
from edgepeft.errors import BundleError, UsageError
from edgepeft.interop.base import ImportRequest, importer_of
from edgepeft.interop.peft import write_peft

LORA = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 4, "lora_alpha": 8, "modules_to_save": ["classifier"]}


@pytest.mark.parametrize("method", ["lora", "ia3"])
def test_a_delta_on_a_part_of_a_fused_layer_is_not_written_for_peft(tiny, tmp_path, method):
    backbone = open_backbone(str(tiny("modernbert")))
    with pytest.raises(UsageError, match=r"layer\.0\.(query|key) is a part of what layers\.0\.attn\.Wqkv gives"):
        write_peft(random_delta(backbone, method, "mood"), backbone, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_lora_of_pefts_on_the_fused_layer_is_refused_by_its_name(tiny, tmp_path):
    backbone = open_backbone(str(tiny("modernbert")))
    (tmp_path / "adapter_config.json").write_text(json.dumps(LORA | {"target_modules": ["Wqkv"]}))
    start = "base_model.model.model.layers.{}.attn.Wqkv.lora_"
    tensors = {start.format(i) + "A.weight": torch.ones(4, 32) for i in range(3)}
    tensors |= {start.format(i) + "B.weight": torch.ones(96, 4) for i in range(3)}
    tensors |= {
        "base_model.model.classifier.weight": torch.ones(2, 32),
        "base_model.model.classifier.bias": torch.ones(2),
    }
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BundleError, match=r"Wqkv"):
        importer_of(tmp_path).read(tmp_path, backbone, ImportRequest("task"))
