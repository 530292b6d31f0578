"""PEFT's (IA)^3: its checkpoints become deltas and ours its checkpoints, with the logits that peft gives where it is installed."""

import json

import pytest
import torch
from checkpoints import GOLDEN, backbone_of, changed_copy, imported
from deltas import random_delta
from safetensors.torch import load_file
from tiny import ragged

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

EVERY = ("query", "key", "value", "attention_output", "ffn_up", "ffn_activation")


def classifier_of(folder):
    import transformers

    return transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, attn_implementation="eager"
    )


def rows_of(backbone, config):
    rows = ragged(6, 9, config.to_dict())
    return {name: torch.from_numpy(rows[name]) for name in backbone.architecture.inputs}


def assert_same_logits(delta, theirs, backbone):
    inputs = rows_of(backbone, theirs.config)
    with torch.no_grad():
        wanted, ours = theirs.eval()(**inputs).logits, delta.logits(load_model(backbone, "eager"), inputs)
    torch.testing.assert_close(ours, wanted, atol=1e-5 * max(1.0, float(wanted.abs().max())), rtol=0)


@pytest.mark.parametrize(
    ("model_type", "modules"),
    [
        ("bert", {}),  # PEFT's default, whose output.dense is attention's projection too
        ("roberta", {}),
        ("bert", {"target_modules": ["value", "output.dense"], "feedforward_modules": []}),
        ("roberta", {"target_modules": ["query", "intermediate.dense"], "feedforward_modules": []}),
        ("bert", {"target_modules": r".*\.1\..*(key|output\.dense)", "feedforward_modules": r".*1\.output\.dense"}),
        ("distilbert", {"target_modules": ["k_lin", "v_lin", "lin2"], "feedforward_modules": ["lin2"]}),
        ("distilbert", {"target_modules": ["q_lin", "out_lin", "lin1"], "feedforward_modules": ["out_lin"]}),
        ("electra", {"target_modules": ["key", "value", "output.dense"], "feedforward_modules": ["output.dense"]}),
    ],
)
def test_what_peft_trained_gives_its_logits(model_type, modules, tiny, tmp_path):
    peft = pytest.importorskip("peft")
    backbone = open_backbone(str(tiny(model_type)))
    torch.manual_seed(0)
    theirs = peft.get_peft_model(classifier_of(tiny(model_type)), peft.IA3Config(task_type="SEQ_CLS", **modules))
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "ia3_l" in name:
                parameter.add_(0.5 * torch.randn(parameter.shape))
    theirs.save_pretrained(tmp_path / "theirs")
    delta = importer_of(tmp_path / "theirs").read(tmp_path / "theirs", backbone, ImportRequest("task"))
    assert delta.card.method == "ia3"
    assert_same_logits(delta, theirs, backbone)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "electra"])
@pytest.mark.parametrize("settings", [{}, {"roles": EVERY, "skip_layers": 1}], ids=["default", "every-role"])
def test_peft_loads_what_we_write_with_equal_logits(model_type, settings, tiny, tmp_path):
    peft = pytest.importorskip("peft")
    backbone = open_backbone(str(tiny(model_type)))
    head = backbone.architecture.head
    delta = random_delta(backbone, "ia3", "task", ("a", "b", "c"), settings=settings, head=head)
    Peft().write(delta, backbone, tmp_path / "out")
    theirs = peft.PeftModel.from_pretrained(classifier_of(tiny(model_type)), tmp_path / "out")
    assert_same_logits(delta, theirs, backbone)
    again = importer_of(tmp_path / "out").read(tmp_path / "out", backbone, ImportRequest("task")).tensors()
    ours = delta.tensors()
    assert all(torch.equal(again[name], tensor) for name, tensor in ours.items())
    assert all(torch.equal(again[name], torch.ones_like(again[name])) for name in set(again) - set(ours))


def test_attentions_own_vector_becomes_part_of_the_values():
    """l_o (sum_i p_i (l_v v_i)) = sum_i p_i (l_o l_v v_i), channel by channel."""
    stored = load_file(GOLDEN / "bert-ia3" / "adapter_model.safetensors")
    layer = "base_model.model.bert.encoder.layer.1."
    value, output = (stored[f"{layer}attention.{m}.ia3_l"].flatten() for m in ("self.value", "output.dense"))
    delta = imported(GOLDEN / "bert-ia3", backbone_of("bert")).tensors()
    torch.testing.assert_close(delta["layer.1.value/scale"], value * output)
    assert torch.equal(delta["layer.1.ffn_activation/scale"], stored[f"{layer}output.dense.ia3_l"].flatten())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"feedforward_modules": ["key", "output.dense"]}, r"scales the input of bert\.encoder\.layer\.0.*self\.key"),
        ({"feedforward_modules": None}, "feedforward_modules"),
        ({"feedforward_modules": "("}, "regular expression"),
        ({"target_modules": ["key", "pooler.dense"]}, r"bert\.pooler\.dense"),
        ({"target_modules": ["keys"]}, "keys.*matches nothing"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out = True"),
        ({"something_of_next_year": 3}, "something_of_next_year = 3"),
        ({"target_modules": ["key", "value"]}, r"not known: bert\.encoder\.layer\.0\.attention\.output\.dense\.ia3_l"),
    ],
)
def test_what_no_delta_can_represent_is_refused_by_name(settings, named, tmp_path):
    with pytest.raises(BundleError, match=named):
        imported(changed_copy(GOLDEN / "bert-ia3", tmp_path / "copy", **settings), backbone_of("bert"))


def test_two_scales_of_one_linear_layer_are_refused_by_name(tmp_path):
    backbone = backbone_of("bert")
    delta = random_delta(backbone, "ia3", "mood", settings={"roles": ("ffn_activation", "ffn_output")})
    with pytest.raises(UsageError, match=r"mood.* scales layer\.0\.ffn_output and what its linear layer reads"):
        Peft().write(delta, backbone, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["bert-ia3-own-modules", "roberta-ia3-own-modules"])
def test_what_peft_wrote_comes_back_tensor_by_tensor(kind, tmp_path):
    backbone = backbone_of(kind)
    Peft().write(imported(GOLDEN / kind, backbone), backbone, tmp_path / "out")
    ours = load_file(tmp_path / "out" / "adapter_model.safetensors")
    theirs = torch.load(GOLDEN / kind / "adapter_model.bin", weights_only=True)
    # Theirs scales attention's output too, as an output: a role of its own.
    assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    written = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (written["peft_type"], written["fan_in_fan_out"]) == ("IA3", False)
