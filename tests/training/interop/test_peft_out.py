"""A LoRA delta as a folder of PEFT's: the same tensors as PEFT's own files, and, where peft is installed, equal logits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from checkpoints import golden, imported
from deltas import random_delta
from safetensors.torch import load_file
from tolerance import exactly

from edgepeft.backbones.bert import LAYOUTS
from edgepeft.backbones.encoder import Encoder
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import UsageError
from edgepeft.heads.base import Head
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

GOLDEN = Path(__file__).parent / "golden"
EVERY = ("query", "key", "value", "attention_output", "ffn_output")


def back_to_peft(name, folder):
    backbone = open_backbone(str(GOLDEN / name.partition("-")[0]))
    Peft().write(importer_of(GOLDEN / name).read(GOLDEN / name, backbone, ImportRequest("task")), backbone, folder)
    return folder


def theirs_of(name):
    folder = GOLDEN / name
    if (folder / "adapter_model.bin").exists():
        return torch.load(folder / "adapter_model.bin", weights_only=True)
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(
    "kind",
    [
        "lora",
        "rslora-every-site",
        "lora-bias-all",
        "lora-bias-only",
        "lora-whole-modules",
        "dora",
        "vera",
        "loha",
        "lokr",
    ],
)
def test_what_peft_wrote_comes_back_tensor_by_tensor(family, kind, tmp_path):
    ours = load_file(back_to_peft(f"{family}-{kind}", tmp_path / "out") / "adapter_model.safetensors")
    # With bias="all" PEFT also writes the head's wrapped copies, of which it reads only the plain name.
    copies = (".original_module.", ".modules_to_save.")
    theirs = {n: t for n, t in theirs_of(f"{family}-{kind}").items() if not any(copy in n for copy in copies)}
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    golden = json.loads((GOLDEN / f"{family}-{kind}" / "adapter_config.json").read_text())
    same = ("peft_type", "task_type", "r", "lora_alpha", "use_rslora", "use_dora", "bias", "fan_in_fan_out")
    same += ("init_lora_weights", "projection_prng_key", "save_projection", "d_initial", "alpha")
    same += ("decompose_both", "decompose_factor")
    assert {name: config.get(name) for name in same} == {name: golden.get(name) for name in same}
    # What PEFT saved whole, by whole names.
    whole = {
        name.removeprefix("base_model.model.").rpartition(".")[0]
        for name in ours
        if not any(part in name for part in ("ra_", "hada_", "lokr_"))
    }
    saved = whole - {name for name in whole if name.startswith("classifier.")} if "whole" in kind else {"classifier"}
    assert set(config["modules_to_save"]) == saved | {"classifier"}


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_every_linear_layer_of_the_model_comes_back_whatever_pefts_form(family, tmp_path):
    """The pooler's as the whole tensor that it has become."""
    backbone, name = open_backbone(str(GOLDEN / family)), f"{family}-lora-all-linear"
    again = imported(back_to_peft(name, tmp_path / "out"), backbone)
    delta = golden(GOLDEN / name, backbone)
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in delta.tensors().items())
    assert ("override/pooler.dense.weight" in delta.tensors()) == (family == "bert")


@pytest.mark.numerical
@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "electra"])
@pytest.mark.parametrize("bias", ["none", "all", "lora_only"])
@pytest.mark.parametrize("method", ["lora", "dora"])
def test_peft_loads_our_delta_with_equal_logits(model_type, method, bias, tiny, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers
    from tiny import ragged

    folder = tiny(model_type)
    backbone = open_backbone(str(folder))
    whole = ("pooler.dense.weight",) if model_type == "bert" else ()
    settings = {"rank": 3, "alpha": 4.5, "roles": EVERY, "rank_stabilised": True, "bias": bias, "whole": whole}
    delta = random_delta(backbone, method, "task", ("a", "b", "c"), settings=settings, head=backbone.architecture.head)
    Peft().write(delta, backbone, tmp_path / "out")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, attn_implementation="eager"
    )
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()
    inputs = {n: torch.from_numpy(v) for n, v in ragged(6, 9, base.config.to_dict()).items()}
    inputs = {name: inputs[name] for name in backbone.architecture.inputs}
    model, theirs = load_model(backbone, "eager"), theirs.double()
    with torch.no_grad():
        expected = exactly(lambda: {"logits": theirs(**inputs).logits})["logits"]
        expected.require(delta.logits(model, inputs).numpy())
    again = importer_of(tmp_path / "out").read(tmp_path / "out", backbone, ImportRequest("task"))
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in delta.tensors().items())


def test_a_prefix_comes_back_to_peft_and_ours_gives_equal_logits_there(tiny, tmp_path):
    ours, theirs = (
        load_file(back_to_peft("bert-prefix", tmp_path / "out") / "adapter_model.safetensors"),
        theirs_of("bert-prefix"),
    )
    assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    peft = pytest.importorskip("peft")
    import transformers
    from tiny import ragged

    backbone = open_backbone(str(tiny("bert")))
    settings = {"length": 3, "projection": 4}
    stays = random_delta(backbone, "prefix", "task", ("a", "b", "c"), settings=settings)
    with pytest.raises(UsageError, match="--set text=follows"):
        Peft().write(stays, backbone, tmp_path / "refused")
    for model_type in ("mpnet", "distilbert"):
        other = open_backbone(str(tiny(model_type)))
        delta = random_delta(other, "prefix", "task", settings={"text": "follows"}, head=other.architecture.head)
        with pytest.raises(UsageError, match=f"past_key_values, which transformers' {model_type} does not take"):
            Peft().write(delta, other, tmp_path / "refused")
    delta = random_delta(backbone, "prefix", "task", ("a", "b", "c"), settings=settings | {"text": "follows"})
    Peft().write(delta, backbone, tmp_path / "projected")
    base = transformers.BertForSequenceClassification.from_pretrained(
        backbone.folder, num_labels=3, attn_implementation="eager"
    )
    model = peft.PeftModel.from_pretrained(base, tmp_path / "projected").eval().double()
    inputs = {n: torch.from_numpy(v) for n, v in ragged(6, 9, base.config.to_dict()).items()}
    with torch.no_grad():
        expected = exactly(lambda: {"logits": model(**inputs).logits})["logits"]
        expected.require(delta.logits(load_model(backbone, "eager"), inputs).numpy())


@pytest.mark.parametrize("name", ["bert-tags-lora", "roberta-tags-untyped", "bert-spans-lora"])
def test_heads_of_tokens_come_back_tensor_by_tensor(name, tmp_path):
    backbone = open_backbone(str(GOLDEN / name.partition("-")[0]))
    Peft().write(golden(GOLDEN / name, backbone), backbone, tmp_path / "out")
    ours, copies = load_file(tmp_path / "out" / "adapter_model.safetensors"), (".original_module.", ".modules_to_save.")
    theirs = {n: t for n, t in theirs_of(name).items() if not any(copy in n for copy in copies)}
    assert set(ours) == set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    head, task_type = {"t": ("classifier", "TOKEN_CLS"), "s": ("qa_outputs", "QUESTION_ANS")}[name.split("-")[1][0]]
    assert (config["modules_to_save"], config["task_type"]) == ([head], task_type)


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
@pytest.mark.parametrize(("kind", "labels"), [("tokens", ("O", "B-X", "I-X")), ("spans", None), ("labels", ("a", "b"))])
def test_peft_loads_a_delta_of_another_kind_with_equal_logits(model_type, kind, labels, tiny, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers
    from tiny import ragged

    folder = tiny(model_type)
    backbone = open_backbone(str(folder))
    head = backbone.architecture.head if kind == "labels" else None
    delta = random_delta(backbone, "lora", "task", labels, kind=kind, head=head, settings={"rank": 3, "bias": "all"})
    Peft().write(delta, backbone, tmp_path / "out")
    end = {"tokens": "ForTokenClassification", "spans": "ForQuestionAnswering", "labels": "ForSequenceClassification"}
    auto = getattr(transformers, f"AutoModel{end[kind]}")
    base = auto.from_pretrained(folder, num_labels=len(labels or "12"), attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval().double().base_model
    inputs = {n: torch.from_numpy(v) for n, v in ragged(6, 9, base.config.to_dict()).items()}
    inputs = {name: inputs[name] for name in backbone.architecture.inputs}

    def asked():
        found = theirs(**inputs)
        return {"logits": torch.stack([found.start_logits, found.end_logits], -1) if kind == "spans" else found.logits}

    with torch.no_grad():
        exactly(asked)["logits"].require(delta.logits(load_model(backbone, "eager"), inputs).numpy())
    request = ImportRequest("task", labels, kind="labels" if kind == "labels" else None)
    again = importer_of(tmp_path / "out").read(tmp_path / "out", backbone, request)
    assert again.card.kind == kind
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in delta.tensors().items())


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta"])
def test_an_embedding_is_pefts_feature_extraction_with_the_pooling_outside(model_type, tiny, tmp_path):
    """Of a checkpoint that PEFT wrote, and of ours: the mean of their states, of length 1."""
    peft = pytest.importorskip("peft")
    import transformers
    from tiny import ragged

    folder = tiny(model_type, mean=True)
    backbone, model = open_backbone(str(folder)), load_model(open_backbone(str(folder)), "eager")
    base = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    targets = ["q_lin", "v_lin"] if model_type == "distilbert" else ["query", "value"]
    theirs = peft.get_peft_model(base, peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=3, target_modules=targets))
    torch.manual_seed(0)
    for name, parameter in theirs.named_parameters():
        parameter.data += 0.1 * torch.randn_like(parameter) * ("lora_" in name)
    theirs.save_pretrained(tmp_path / "theirs")
    theirs = theirs.eval().double()
    inputs = {n: torch.from_numpy(v) for n, v in ragged(6, 9, base.config.to_dict()).items()}
    inputs = {name: inputs[name] for name in backbone.architecture.inputs}

    def asked():
        states, mask = theirs(**inputs).last_hidden_state, inputs["attention_mask"].unsqueeze(-1)
        return {"vectors": torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)}

    request = ImportRequest("near", kind="embedding")
    delta = importer_of(tmp_path / "theirs").read(tmp_path / "theirs", backbone, request)
    assert (delta.card.task_kind.name, delta.card.head_reads) == ("embedding", "mean")
    with torch.no_grad():
        exactly(asked)["vectors"].require(delta.logits(model, inputs).numpy())
    Peft().write(delta, backbone, tmp_path / "ours")
    ours, stored = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == stored.keys() and all(torch.equal(ours[name], stored[name]) for name in ours)
    assert json.loads((tmp_path / "ours" / "adapter_config.json").read_text())["task_type"] == "FEATURE_EXTRACTION"


def test_how_sentence_transformers_pools_behind_an_adapter_is_kept_beside_it(tiny, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers

    backbone = open_backbone(str(tiny("bert")))  # of which nothing says how it pools
    base = transformers.AutoModel.from_pretrained(backbone.folder)
    config = peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=["query"])
    peft.get_peft_model(base, config).save_pretrained(tmp_path)
    request = ImportRequest("near", kind="embedding")
    assert importer_of(tmp_path).read(tmp_path, backbone, request).card.head_reads == "first_token"
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    delta = importer_of(tmp_path).read(tmp_path, backbone, request)
    assert delta.card.head_reads == "mean"
    importer_of(tmp_path).write(delta, backbone, tmp_path / "again")
    assert importer_of(tmp_path).read(tmp_path / "again", backbone, request).card.head_reads == "mean"


class TwoStory(Head):
    """A head of another form than those that are there."""

    __module__ = "edgepeft.heads.linear"  # where heads are looked for
    kind = "two-story"
    places: ClassVar = {"narrow": "top.narrow", "out": "top.out"}

    def __init__(self, hidden, outputs, dropout):
        super().__init__(hidden, outputs, dropout)
        self.narrow, self.out = torch.nn.Linear(hidden, 5), torch.nn.Linear(5, outputs, bias=False)

    def forward(self, pooled, *weights):
        return self.out(self.narrow(pooled))


class Elsewhere(Encoder):
    """A family that keeps its tensors under another name."""

    def architecture(self, config):
        return replace(super().architecture(config), head="two-story", prefix="elsewhere.")


def test_a_head_and_a_family_that_are_new_go_to_peft_and_come_back(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("edgepeft.heads.linear.TwoStory", TwoStory, raising=False)
    backbone = open_backbone(str(tiny("bert")))
    architecture = Elsewhere("bert", LAYOUTS, limits=()).architecture(backbone.config)
    backbone.__dict__["architecture"] = architecture  # a cached property's place
    delta = random_delta(backbone, "lora", "task", ("a", "b", "c"), head="two-story")
    Peft().write(delta, backbone, tmp_path / "out")
    written = {name.removeprefix("base_model.model.") for name in load_file(tmp_path / "out/adapter_model.safetensors")}
    assert {name for name in written if not name.startswith("elsewhere.encoder.layer.")} == {
        "top.narrow.weight",
        "top.narrow.bias",
        "top.out.weight",
    }
    again = importer_of(tmp_path / "out").read(tmp_path / "out", backbone, ImportRequest("task"))
    assert all(torch.equal(again.tensors()[name], tensor) for name, tensor in delta.tensors().items())


@pytest.mark.parametrize(
    "name", ["bert-ln-tuning", "roberta-ln-tuning", "bert-prompt", "roberta-prompt", "bert-tags-prompt"]
)
def test_norms_and_prompts_come_back_tensor_by_tensor(name, tmp_path):
    backbone = open_backbone(str(GOLDEN / name.partition("-")[0]))
    Peft().write(golden(GOLDEN / name, backbone), backbone, tmp_path / "out")
    ours, theirs = load_file(tmp_path / "out" / "adapter_model.safetensors"), theirs_of(name)
    assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    config, golden_config = (
        json.loads((folder / "adapter_config.json").read_text()) for folder in (tmp_path / "out", GOLDEN / name)
    )
    of_prompts = ("num_virtual_tokens", "token_dim", "num_layers", "num_attention_heads", "num_transformer_submodules")
    for key in ("peft_type", "task_type", *of_prompts):
        assert config.get(key) == golden_config.get(key)


@pytest.mark.numerical
@pytest.mark.parametrize("model_type", ["bert", "distilbert", "rembert"])
@pytest.mark.parametrize(
    ("method", "settings"), [("layernorm", {}), ("prompt-r", {"length": 4}), ("prompt-t", {"length": 3})]
)
def test_peft_loads_norms_and_prompts_with_equal_logits(model_type, method, settings, tiny, tmp_path):
    peft = pytest.importorskip("peft")
    import transformers
    from tiny import ragged

    folder, labels = tiny(model_type), ("O", "B-X", "I-X")
    backbone = open_backbone(str(folder))
    delta = random_delta(backbone, method, "task", labels, kind="tokens", settings=settings)
    Peft().write(delta, backbone, tmp_path / "out")
    base = transformers.AutoModelForTokenClassification.from_pretrained(
        folder, num_labels=3, attn_implementation="eager"
    )
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval().double()
    inputs = {n: torch.from_numpy(v) for n, v in ragged(6, 9, base.config.to_dict()).items()}
    inputs, rows = {name: inputs[name] for name in backbone.architecture.inputs}, inputs["attention_mask"] > 0
    with torch.no_grad():
        ours = delta.logits(load_model(backbone, "eager"), inputs)[rows].numpy()
        exactly(lambda: {"logits": theirs(**inputs).logits[:, -9:][rows]})["logits"].require(ours)
    again = imported(tmp_path / "out", backbone, labels=labels).tensors()
    assert all(torch.equal(again[name], tensor) for name, tensor in delta.tensors().items())


def test_other_methods_and_other_heads_are_refused_by_name(tiny, tmp_path):
    roomy = open_backbone(str(tiny("bert")))
    backbone = open_backbone(str(GOLDEN / "bert"))
    with pytest.raises(
        UsageError,
        match=r"no form for bitfit.* what can be written: dora, ia3, layernorm, loha, lokr, lora, prefix, prompt-r",
    ):
        Peft().write(random_delta(backbone, "bitfit", "mood"), backbone, tmp_path / "out")
    with pytest.raises(UsageError, match=r"bert-pooler over the first token; .* has linear .*Train it with --head"):
        Peft().write(random_delta(backbone, "lora", "mood", head="linear"), backbone, tmp_path / "out")
    with pytest.raises(UsageError, match=r"over the first position; .* over the first token"):
        Peft().write(random_delta(roomy, "prompt-r", "mood", settings={"length": 2}), roomy, tmp_path / "out")
    past = {"length": 2, "place": "embeddings"}
    with pytest.raises(UsageError, match="--set place=words"):
        tagged = random_delta(roomy, "prompt-r", "mood", ("O", "B-X"), kind="tokens", settings=past)
        Peft().write(tagged, roomy, tmp_path / "out")
    shutil.copytree(GOLDEN / "bert", tmp_path / "mean")
    (tmp_path / "mean" / "1_Pooling").mkdir()
    (tmp_path / "mean" / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    mean = open_backbone(str(tmp_path / "mean"))
    with pytest.raises(UsageError, match=r"linear over the mean, .*--head bert-pooler on a copy .* without 1_Pooling"):
        Peft().write(random_delta(mean, "lora", "mood"), mean, tmp_path / "out")
    with pytest.raises(UsageError, match="a choice among candidates, and PEFT has no task type for it"):
        Peft().write(random_delta(backbone, "lora", "mood", None, kind="choice"), backbone, tmp_path / "out")
    assert not (tmp_path / "out").exists()
