"""Transformers' classifier has a head that edgepeft has not, of a ModernBERT and of DeBERTas whose pooler has another
activation: nothing comes in or goes out by halves."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from deltas import random_delta
from safetensors.torch import save_file
from tiny import SIZES, ragged, write_model

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import UsageError
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

LORA = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 4, "lora_alpha": 8, "modules_to_save": ["classifier"]}


def test_the_head_that_is_named_is_transformers(tiny):
    named = open_backbone(str(tiny("modernbert"))).architecture.foreign_head
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model("modernbert", **SIZES["modernbert"])
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    modules = {name.rpartition(".")[0] for name, _ in model.named_parameters() if not name.startswith("model.")}
    assert modules - {"classifier"} == set(named.split(" and "))


def test_a_delta_is_not_written_for_peft(tiny, tmp_path):
    backbone = open_backbone(str(tiny("modernbert")))
    with pytest.raises(UsageError, match=r"classifier of a modernbert has head\.dense and head\.norm"):
        Peft().write(random_delta(backbone, "lora", "mood"), backbone, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_of_pefts_is_refused(tiny, tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps(LORA | {"target_modules": ["mlp.Wo"]}))
    start = "base_model.model.model.layers.{}.mlp.Wo.lora_"
    tensors = {start.format(i) + "A.weight": torch.ones(4, 48) for i in range(3)}
    tensors |= {start.format(i) + "B.weight": torch.ones(32, 4) for i in range(3)}
    tensors |= {
        "base_model.model.classifier.weight": torch.ones(2, 32),
        "base_model.model.classifier.bias": torch.ones(2),
    }
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UsageError, match=r"Train the task here"):
        importer_of(tmp_path).read(tmp_path, open_backbone(str(tiny("modernbert"))), ImportRequest("task"))


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_a_deberta_whose_pooler_has_another_activation_than_our_head_is_refused(tmp_path, activation):
    backbone = open_backbone(str(write_model(tmp_path / "b", "deberta-v2", pooler_hidden_act=activation)))
    delta = random_delta(backbone, "lora", "mood")
    if activation == "tanh":
        with pytest.raises(UsageError, match="a pooler with the pooler_hidden_act 'tanh' before its last layer"):
            Peft().write(delta, backbone, tmp_path / "out")
        return
    peft = pytest.importorskip("peft")
    Peft().write(delta, backbone, tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        backbone.folder, num_labels=2, attn_implementation="eager"
    )
    rows = {n: torch.from_numpy(v) for n, v in ragged(5, 9, dict(backbone.config)).items() if n != "token_type_ids"}
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(model, tmp_path / "out").eval()(**rows).logits
        torch.testing.assert_close(delta.logits(load_model(backbone, "eager"), rows), theirs, atol=1e-5, rtol=1e-4)
