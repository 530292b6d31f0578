"""What PEFT stores beside a LoRA's factors: modules that are saved whole, all biases, a pooler that no vector reads."""

from __future__ import annotations

import pytest
import torch
import transformers
from deltas import TEXTS, random_delta, saved
from tiny import ragged

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

LAYER = "encoder.layer.0.output.dense"
peft = pytest.importorskip("peft")


def trained(of, folder, out, **settings):
    """PEFT's model on that backbone with every trained tensor moved, and saved."""
    torch.manual_seed(0)
    model = peft.get_peft_model(of.from_pretrained(folder, attn_implementation="eager"), peft.LoraConfig(**settings))
    with torch.no_grad():
        for parameter in filter(lambda each: each.requires_grad, model.parameters()):
            parameter.add_(0.3 * torch.rand(parameter.shape))
    model.save_pretrained(out)
    return model.eval()


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("bias", ["none", "all"])
@pytest.mark.parametrize("whole", ["layer.0.output.dense", "LayerNorm"])
def test_a_module_that_is_saved_whole_gives_pefts_logits(whole, bias, dora, tiny, tmp_path):
    """In the other layer the same linear layer has factors, and DoRA's magnitudes."""
    asked = {
        "task_type": "SEQ_CLS",
        "r": 2,
        "target_modules": ["output.dense"],
        "modules_to_save": ["classifier", whole],
    }
    of, folder = transformers.AutoModelForSequenceClassification, tiny("bert")
    theirs = trained(of, folder, tmp_path / "theirs", bias=bias, use_dora=dora, **asked)
    backbone = open_backbone(str(folder))
    delta = importer_of(tmp_path / "theirs").read(tmp_path / "theirs", backbone, ImportRequest("task"))
    rows = {name: torch.from_numpy(values) for name, values in ragged(5, 9, dict(backbone.config)).items()}
    with torch.no_grad():
        expected, model = theirs(**rows).logits, load_model(backbone, "eager")
        torch.testing.assert_close(delta.logits(model, rows), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(delta.folded(backbone).logits(model, rows), expected, atol=1e-5, rtol=1e-5)
    if dora and whole != "LayerNorm":
        export_bundle(backbone, [saved(delta, tmp_path / "delta")], tmp_path / "bundle", texts=TEXTS[:8])  # as PyTorch


@pytest.mark.parametrize("method", ["lora", "dora"])
@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize("role", ["ffn_output", "query"])
def test_peft_loads_factors_beside_a_layer_that_is_trained_whole_with_equal_logits(method, part, role, tiny, tmp_path):
    backbone, settings = open_backbone(str(tiny("bert"))), {"roles": (role,), "whole": (f"{LAYER}.{part}",)}
    delta = random_delta(backbone, method, "task", ("a", "b", "c"), settings=settings, head="bert-pooler")
    Peft().write(delta, backbone, tmp_path / "out")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        backbone.folder, num_labels=3, attn_implementation="eager"
    )
    rows = {name: torch.from_numpy(values) for name, values in ragged(5, 9, dict(backbone.config)).items()}
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()(**rows).logits
        torch.testing.assert_close(delta.logits(load_model(backbone, "eager"), rows), theirs, atol=1e-5, rtol=1e-5)


def test_where_every_layer_with_factors_is_trained_whole_nothing_is_written(tiny, tmp_path):
    backbone, settings = open_backbone(str(tiny("bert"))), {"roles": ("ffn_output",), "skip_layers": 1}
    settings["whole"] = (f"{LAYER.replace('0', '1')}.weight",)
    delta = random_delta(backbone, "lora", "task", settings=settings, head="bert-pooler")
    with pytest.raises(UsageError, match="is trained whole too"):
        Peft().write(delta, backbone, tmp_path / "out")


@pytest.mark.parametrize(("bias", "targets"), [("none", "all-linear"), ("all", ["query"]), ("lora_only", ["dense"])])
def test_the_pooler_of_a_model_whose_states_are_pooled_outside_does_not_matter(bias, targets, tiny, tmp_path):
    folder, asked = tiny("bert"), {"task_type": "FEATURE_EXTRACTION", "r": 2, "bias": bias, "target_modules": targets}
    theirs = trained(transformers.AutoModel, folder, tmp_path / "theirs", **asked)
    backbone = open_backbone(str(folder))
    delta = importer_of(tmp_path / "theirs").read(tmp_path / "theirs", backbone, ImportRequest("task"))
    rows = {name: torch.from_numpy(values) for name, values in ragged(5, 9, dict(backbone.config)).items()}
    with torch.no_grad():
        first = torch.nn.functional.normalize(theirs(**rows).last_hidden_state[:, 0])
        torch.testing.assert_close(delta.logits(load_model(backbone, "eager"), rows), first, atol=1e-5, rtol=1e-5)


def test_a_head_of_which_peft_saved_the_last_layer_alone_is_refused_with_the_remedy(tiny, tmp_path):
    """PEFT's own default saves DeBERTa's classifier; its next load starts the pooler anew."""
    folder, asked = tiny("deberta-v2"), {"task_type": "SEQ_CLS", "r": 2, "target_modules": ["query_proj"]}
    trained(transformers.AutoModelForSequenceClassification, folder, tmp_path / "theirs", **asked)
    remedy = r"lacks pooler\.dense, .*modules_to_save=\['classifier', 'pooler\.dense', 'score'\]"
    with pytest.raises(BundleError, match=remedy):
        importer_of(tmp_path / "theirs").read(tmp_path / "theirs", open_backbone(str(folder)), ImportRequest("task"))
