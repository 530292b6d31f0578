"""PEFT's checkpoints become deltas: against logits that peft itself gave for the folders that it wrote."""

import json
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from checkpoints import GOLDEN, TAGS, backbone_of, changed_copy, exact_of, exact_of_golden, golden, imported, logits_of
from deltas import random_delta
from safetensors.torch import load_file, save_file
from tiny import ragged
from tolerance import exactly

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.training.interop.peft import Peft

NAMES = sorted(path.parent.name for path in GOLDEN.glob("*-*/adapter_config.json"))
TENSORS = "adapter_model.safetensors"
KINDS = {name.partition("-")[2] for name in NAMES}


@pytest.fixture
def copy(tmp_path):
    """A golden folder to be changed: a function from its name and new settings to the copy."""
    return lambda name, **settings: changed_copy(GOLDEN / name, tmp_path / name, **settings)


def retensored(folder, change):
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def test_peft_made_the_golden_checkpoints_of_both_backbones_and_every_kind():
    versions = json.loads((GOLDEN / "peft-versions.json").read_text())
    made_by = {json.loads((GOLDEN / name / "adapter_config.json").read_text())["peft_version"] for name in NAMES}
    assert made_by == {versions["peft"]}
    refused = {"roberta-prefix", "roberta-prefix-projected"}  # by peft itself
    assert len(KINDS) >= 22
    own = {name for name in NAMES if name.startswith(("mpnet-", "deberta-"))}  # of modules that the others have not
    assert {name.split("-")[1] for name in own if "deberta" in name} == {
        *("lora", "dora", "vera", "loha", "lokr", "ia3", "ln", "prompt")
    }
    shared = KINDS - {name.partition("-")[2] for name in own}
    assert set(NAMES) == {f"{family}-{kind}" for family in ("bert", "roberta") for kind in shared} - refused | own


def test_import_works_where_peft_cannot_be_imported(tmp_path):
    code = (
        "import sys; sys.modules['peft'] = None\n"
        f"sys.argv = ['edgepeft', 'import', {str(GOLDEN / 'bert-lora')!r}, '--backbone', {str(GOLDEN / 'bert')!r}, "
        f"'--out', {str(tmp_path / 'out')!r}]\n"
        "from edgepeft.cli._main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"delta.json", "delta.safetensors"}


@pytest.mark.numerical
@pytest.mark.parametrize("name", NAMES)
def test_an_imported_checkpoint_gives_the_logits_that_peft_gave(name):
    backbone = backbone_of(name)
    exact, theirs = exact_of_golden(GOLDEN / name, backbone, golden(GOLDEN / name, backbone))
    assert np.ptp(theirs, axis=0).min() > 0.1  # rows, or tokens, are told apart
    exact.require(theirs)


@pytest.mark.parametrize("name", ["bert-lora-bias-all", "roberta-rslora-every-site", "roberta-ln-tuning-part"])
def test_an_imported_delta_survives_saving_and_loading(name, tmp_path):
    backbone = backbone_of(name)
    imported(GOLDEN / name, backbone).save(tmp_path / "delta")
    theirs = load_file(GOLDEN / name / "logits.safetensors")["logits"]
    loaded = Delta.load(tmp_path / "delta", backbone)
    exact_of(loaded, backbone).require(theirs)
    assert loaded.card.training["imported_from"] == "PEFT" and loaded.card.versions["peft"] == "0.21.2"


def test_the_settings_are_those_of_the_config():
    plain = imported(GOLDEN / "bert-lora", backbone_of("bert")).card
    every = imported(GOLDEN / "roberta-rslora-every-site", backbone_of("roberta")).card
    wanted = {"rank": 4, "alpha": 6.0, "roles": ["query", "value"], "rank_stabilised": False, "bias": "none"}
    assert plain.hyperparameters.items() >= wanted.items() and plain.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert every.hyperparameters["rank_stabilised"] and len(every.hyperparameters["roles"]) == 6
    # 2 layers, 2 roles, r (in + out), and BERT's classifier of 3 labels on the frozen pooler.
    assert plain.trainable_parameters == 2 * 2 * 4 * (16 + 16) + 3 * 17
    assert plain.max_length == 32 and every.max_length == 30  # RoBERTa keeps two positions for itself


def test_layers_that_are_left_alone_get_no_module():
    """Neither zeros that cost bytes, nor what keeps tasks from sharing the layers below."""
    first = imported(GOLDEN / "bert-lora-one-layer", backbone_of("bert")).card
    upper = imported(GOLDEN / "bert-lora-patterns", backbone_of("bert")).card
    assert [first.hyperparameters[name] for name in ("skip_layers", "leave_out")] == [0, [1]]
    assert [upper.hyperparameters[name] for name in ("skip_layers", "leave_out")] == [1, []]
    # One layer, two roles, r (in + out), and the classifier.
    assert first.trainable_parameters == 2 * 4 * (16 + 16) + 2 * 17
    assert upper.trainable_parameters == 2 * 4 * (16 + 16) + 17


@pytest.mark.parametrize("bias", ["none", "lora_only"])
def test_a_layer_without_a_site_becomes_the_tasks_own(tiny, tmp_path, bias):
    """W + (alpha / r) B A for ELECTRA's projection of its embeddings, which "all-linear" names, in transformers' model."""
    folder, module = tiny("electra", embedding_size=24), "electra.embeddings_project"
    backbone = open_backbone(str(folder))
    lora = {f"{module}.lora_A.weight": torch.randn(2, 24), f"{module}.lora_B.weight": torch.randn(32, 2)}
    for i in (0, 1):
        query = f"electra.encoder.layer.{i}.attention.self.query"
        lora |= {f"{query}.lora_A.weight": torch.randn(2, 32), f"{query}.lora_B.weight": torch.randn(32, 2)}
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, attn_implementation="eager"
    )
    head = {name: tensor for name, tensor in base.state_dict().items() if name.startswith("classifier.")}
    (tmp_path / "theirs").mkdir()
    adapted = {name.rpartition(".lora_")[0] for name in lora}
    if bias == "lora_only":  # of every layer that has factors, in the layer that PEFT wraps
        for name in adapted:
            base.get_submodule(name).bias.data += torch.randn_like(base.get_submodule(name).bias)
            head[f"{name}.base_layer.bias"] = base.get_submodule(name).bias.detach().clone()
    save_file({f"base_model.model.{name}": t for name, t in (lora | head).items()}, tmp_path / f"theirs/{TENSORS}")
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 2, "lora_alpha": 3}
    config |= {"target_modules": ["query", "embeddings_project"], "modules_to_save": ["classifier"], "bias": bias}
    (tmp_path / "theirs/adapter_config.json").write_text(json.dumps(config))
    delta = imported(tmp_path / "theirs", backbone)
    for name in adapted:
        weight = base.get_submodule(name).weight
        weight.data += 3 / 2 * lora[f"{name}.lora_B.weight"] @ lora[f"{name}.lora_A.weight"]
    inputs = {name: torch.from_numpy(values) for name, values in ragged(6, 9, base.config.to_dict()).items()}
    with torch.no_grad():
        expected = exactly(lambda: {"logits": base.double().eval()(**inputs).logits})["logits"]
        expected.require(delta.logits(load_model(backbone, "eager"), inputs).numpy())


def test_one_output_is_a_number_and_takes_no_labels():
    backbone = backbone_of("bert")
    assert imported(GOLDEN / "bert-lora-patterns", backbone).card.labels is None
    with pytest.raises(UsageError, match="no labels"):
        imported(GOLDEN / "bert-lora-patterns", backbone, labels=("a",))


def test_labels_are_taken_when_there_is_one_for_each_output():
    backbone = backbone_of("bert")
    assert imported(GOLDEN / "bert-lora", backbone, labels=("a", "b", "c")).card.labels == ("a", "b", "c")
    with pytest.raises(UsageError, match="3 different labels"):
        imported(GOLDEN / "bert-lora", backbone, labels=("a", "b"))


def test_labels_that_the_backbones_config_names_are_taken(tmp_path):
    folder = Path(shutil.copytree(GOLDEN / "bert", tmp_path / "bert"))
    config = json.loads((folder / "config.json").read_text()) | {"id2label": {"0": "bad", "1": "fair", "2": "good"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert imported(GOLDEN / "bert-lora", open_backbone(str(folder))).card.labels == ("bad", "fair", "good")
    two = imported(GOLDEN / "bert-ln-tuning", open_backbone(str(folder))).card.labels
    assert two == ("LABEL_0", "LABEL_1")


def test_the_class_that_was_trained_says_the_kind_of_task():
    cards = {name: golden(GOLDEN / name, backbone_of(name)).card for name in NAMES if "tags" in name or "spans" in name}
    for name, card in cards.items():
        kind, labels, reads = ("spans", None, "tokens") if "spans" in name else ("tokens", card.labels, "tokens")
        assert (card.kind, card.labels, card.head, card.head_reads) == (kind, labels, "tokens", reads)
        assert card.pairs == (kind == "spans")
    assert cards["bert-tags-lora"].labels == TAGS and cards["bert-tags-prompt"].max_length == 32 - 4


def test_several_labels_are_asked_for_or_said_by_a_config(copy, tmp_path):
    names, backbone = ("a", "b", "c"), backbone_of("bert")
    assert imported(GOLDEN / "bert-lora", backbone, labels=names, kind="labels").card.kind == "labels"
    folder = Path(shutil.copytree(GOLDEN / "bert", tmp_path / "bert"))
    several = {"problem_type": "multi_label_classification", "id2label": {"0": "x", "1": "y", "2": "z"}}
    config = json.loads((folder / "config.json").read_text()) | several
    (folder / "config.json").write_text(json.dumps(config))
    whole = open_backbone(str(folder))
    said = imported(GOLDEN / "bert-lora", whole).card
    assert (said.kind, said.labels) == ("labels", ("x", "y", "z"))
    assert imported(GOLDEN / "bert-lora", whole, kind="classification").card.kind == "classification"
    assert imported(GOLDEN / "bert-lora-patterns", whole, labels=("x",)).card.kind == "labels"  # one of one
    beside = copy("bert-lora")
    (beside / "config.json").write_text(json.dumps(several))
    theirs = load_file(GOLDEN / "bert-lora" / "logits.safetensors")["logits"]
    exact_of(imported(beside, backbone), backbone).require(theirs)
    assert imported(beside, backbone).card.kind == "labels"
    for odd in (3, [], {"a": 1}):
        (beside / "config.json").write_text(json.dumps({"problem_type": odd, "id2label": odd}))
        assert imported(beside, backbone).card.kind == "classification"


def test_names_that_answers_are_made_of_are_needed(copy, tmp_path):
    tags, backbone = copy("bert-tags-prompt"), backbone_of("bert")
    for asked in ({}, {"kind": "tokens"}):
        with pytest.raises(
            UsageError, match="names the 3 outputs of its head, and a tagging of words answers by names"
        ):
            imported(tags, backbone, **asked)
    with pytest.raises(UsageError, match=r"several labels answers by names; .*--labels a,b,c"):
        imported(GOLDEN / "bert-lora", backbone, kind="labels")
    for labels, said in (
        (("O", "B-X"), "3 different"),
        (("O", "", "X"), "3 different"),
        (("O", "B-X", "Y"), "one way"),
    ):
        with pytest.raises(UsageError, match=said):
            imported(tags, backbone, labels=labels)
    (tags / "config.json").write_text(json.dumps({"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}))
    with pytest.raises(UsageError, match="answers by names"):
        imported(tags, backbone)
    (tags / "config.json").write_text(json.dumps({"id2label": {"0": "O", "1": "NOUN", "2": "VERB"}}))
    assert imported(tags, backbone).card.labels == ("O", "NOUN", "VERB")


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        (
            "bert-tags-prompt",
            {"kind": "labels"},
            r"--kind labels is .*ForTokenClassification with 3 .* a tagging of words",
        ),
        ("bert-lora", {"kind": "spans"}, r"--kind spans is .*ForSequenceClassification"),
        ("bert-lora", {"kind": "regression"}, "is of a classification or a task of several labels"),
        ("bert-lora-patterns", {"kind": "classification"}, "with 1 outputs, is of"),
        ("bert-lora", {"kind": "choice"}, "a choice among candidates"),
        ("bert-lora", {"kind": "answers"}, "no kind of task is called 'answers'"),
        ("bert-spans-ia3", {"labels": ("a", "b")}, "no labels, for a search for answers in passages has none"),
    ],
)
def test_a_kind_that_the_head_is_not_of_is_refused(name, asked, said):
    with pytest.raises(UsageError, match=said):
        imported(GOLDEN / name, backbone_of(name), **asked)


def test_three_outputs_are_no_start_and_end(copy):
    def change(tensors):
        tensors["base_model.model.qa_outputs.weight"] = torch.zeros(3, 16)
        tensors["base_model.model.qa_outputs.bias"] = torch.zeros(3)

    with pytest.raises(BundleError, match=r"no kind of task has a head of .*ForQuestionAnswering with 3 outputs"):
        imported(retensored(copy("bert-spans-ia3"), change), backbone_of("bert"))


def test_what_peft_leaves_out_of_a_search_for_answers_is_said():
    with pytest.warns(UserWarning, match="does not pass token_type_ids on"):
        imported(GOLDEN / "bert-spans-ia3", backbone_of("bert"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        imported(GOLDEN / "roberta-spans-ia3", backbone_of("roberta"))


def test_half_precision_is_read(copy):
    folder = retensored(copy("bert-lora"), lambda t: t.update({n: v.half() for n, v in t.items()}))
    backbone = backbone_of("bert")
    theirs = load_file(folder / "logits.safetensors")["logits"]
    np.testing.assert_allclose(logits_of(imported(folder, backbone), backbone), theirs, atol=2e-2)


def test_a_head_that_was_not_saved_is_the_backbones_own(copy, tmp_path):
    """As PEFT does with a base checkpoint that is a classifier already."""
    whole = Path(shutil.copytree(GOLDEN / "bert", tmp_path / "whole"))
    heads, names = {}, ("classifier.weight", "classifier.bias")
    folder = retensored(
        copy("bert-lora", modules_to_save=None),
        lambda tensors: heads.update({name: tensors.pop(f"base_model.model.{name}") for name in names}),
    )
    base = {f"bert.{name}": tensor for name, tensor in load_file(whole / "model.safetensors").items()}
    save_file(base | heads, whole / "model.safetensors")
    backbone = open_backbone(str(whole))
    theirs = load_file(folder / "logits.safetensors")["logits"]
    exact_of(imported(folder, backbone), backbone).require(theirs)


def test_a_checkpoint_without_a_head_is_refused(copy):
    folder = retensored(
        copy("bert-lora", modules_to_save=None), lambda t: [t.pop(n) for n in list(t) if "classifier" in n]
    )
    with pytest.raises(BundleError, match=r"classifier\.weight.*modules_to_save"):
        imported(folder, backbone_of("bert"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"task_type": "SEQ_2_SEQ_LM"}, "SEQ_2_SEQ_LM .*what can: SEQ_CLS, TOKEN_CLS, QUESTION_ANS"),
        ({"task_type": ["SEQ_CLS"]}, "SEQ_CLS"),
        ({"task_type": "FEATURE_EXTRACTION"}, "bert.encoder.layer"),  # of the base model alone
        ({"peft_type": "P_TUNING"}, "P_TUNING"),
        ({"peft_type": "BOFT"}, "BOFT"),
        ({"peft_type": ["LORA"]}, "LORA"),
        ({"use_dora": True}, "missing: .*lora_magnitude_vector"),
        ({"lora_bias": True}, "lora_bias"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"something_of_next_year": 3}, "something_of_next_year = 3"),
        ({"r": 0}, "r must be a number of at least 1, found 0"),
        ({"rank_pattern": {"query": 0}}, r"rank_pattern\.query must be a number of at least 1, found 0"),
        ({"r": "four"}, r"adapter_config\.json: r"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"bias": "some"}, "bias"),
        ({"target_modules": "("}, "regular expression"),
        ({"target_modules": r"((.|\w)+)+[#!]"}, "takes too long"),
        ({"target_modules": ".*query|.*value$|("}, "regular expression"),
        ({"target_modules": None}, "matches nothing"),
        ({"target_modules": ["q_proj"]}, "q_proj.*matches nothing"),
        ({"target_modules": ["query", "word_embeddings"]}, r"no linear layer .*: bert\.embeddings\.word_embeddings"),
        ({"target_modules": ["query", "pooler.dense"]}, r"missing: bert\.pooler\.dense\.lora_A\.weight"),
        ({"target_modules": ["pooler.dense"]}, r"adapts bert\.pooler\.dense alone"),
        ({"modules_to_save": ["classifier", "LayerNorm"]}, r"missing: .*layer\.1\.output\.LayerNorm\.weight"),
    ],
)
def test_what_no_delta_can_represent_is_refused_by_name(copy, settings, named):
    with pytest.raises(EdgepeftError, match=named):
        imported(copy("bert-lora", **settings), backbone_of("bert"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_virtual_tokens": 0}, "num_virtual_tokens must be a number of at least 1, found 0"),
        ({"num_virtual_tokens": 30}, "length must be at most 29"),
        ({"num_virtual_tokens": 4}, r"prompt_embeddings \[5, 16\] instead of \[4, 16\]"),
        ({"token_dim": 32}, "hidden size 32 and 2 layers; the backbone's are 16 and 2"),
        ({"num_transformer_submodules": 2}, "num_transformer_submodules"),
        ({"encoder_hidden_size": 8}, "encoder_hidden_size = 8"),
        ({"modules_to_save": ["classifier", "pooler"]}, r"bert\.pooler\.dense"),
    ],
)
def test_a_prompt_that_no_delta_can_represent_is_refused_by_name(copy, settings, named):
    with pytest.raises(EdgepeftError, match=named):
        imported(copy("bert-prompt", **settings), backbone_of("bert"))


def test_an_imported_prompt_is_read_at_the_first_position_and_leaves_room_for_its_text():
    card = imported(GOLDEN / "bert-prompt", backbone_of("bert")).card
    assert (card.head_reads, card.prompt_length, card.max_length) == ("first_position", 5, 32 - 5)
    with pytest.raises(UsageError, match="3 to 27, the backbone's positions beside a prompt of 5; found 28"):
        imported(GOLDEN / "bert-prompt", backbone_of("bert"), max_length=28)


def test_words_that_a_decoders_output_reads_too_neither_come_nor_go_as_a_copy(tiny, tmp_path):
    """PEFT's output layer goes on with the table that was pretrained."""
    backbone, table = open_backbone(str(tiny("qwen2", tie_word_embeddings=True))), "model.embed_tokens.weight"
    template = {"source": "{text}", "target": "{text}", "max_target_length": 8}
    of_text = {"labels": None, "kind": "text", "template": template}
    Peft().write(random_delta(backbone, "lora", "task", **of_text), backbone, tmp_path / "peft")
    folder = changed_copy(tmp_path / "peft", tmp_path / "copy", modules_to_save=["embed_tokens"])
    with pytest.raises(BundleError, match=r"modules_to_save has model\.embed_tokens\.weight, .* in other places too"):
        imported(folder, backbone)
    delta = random_delta(backbone, "lora", "task", settings={"whole": (table,)}, **of_text)
    with pytest.raises(UsageError, match=r"replaces model\.embed_tokens\.weight wherever the model reads it"):
        Peft().write(delta, backbone, tmp_path / "refused")
    untied = open_backbone(str(tiny("qwen2", tie_word_embeddings=False)))
    delta = random_delta(untied, "lora", "task", settings={"whole": (table,)}, **of_text)
    Peft().write(delta, untied, tmp_path / "untied")
    again = imported(tmp_path / "untied", untied)
    assert torch.equal(again.tensors()[f"override/{table}"], delta.tensors()[f"override/{table}"])


def test_layernorm_tuning_of_another_module_is_refused_by_name(copy):
    with pytest.raises(BundleError, match=r"bert\.encoder\.layer\.0\.attention\.self\.query"):
        imported(copy("bert-ln-tuning", target_modules=["LayerNorm", "query"]), backbone_of("bert"))


@pytest.mark.parametrize(("name", "other"), [("bert-lora", "roberta"), ("roberta-ln-tuning", "bert")])
def test_another_architecture_is_refused_by_both_names(name, other):
    own = name.partition("-")[0]
    with pytest.raises(BundleError, match=rf"backbone is {other}.*base_model\.model\.{own}\."):
        imported(GOLDEN / name, backbone_of(other))


def test_a_backbone_of_other_sizes_is_refused_with_every_tensor_named(tiny):
    with pytest.raises(BundleError) as failure:
        imported(GOLDEN / "bert-lora", open_backbone(str(tiny("bert"))))
    names = [
        name for name in load_file(GOLDEN / "bert-lora" / "adapter_model.safetensors") if not name.endswith("bias")
    ]
    assert all(name.removeprefix("base_model.model.") in str(failure.value) for name in names)


def test_missing_and_unknown_tensors_are_all_named(copy):
    gone = [f"bert.encoder.layer.{i}.attention.self.value.lora_B.weight" for i in (0, 1)]
    more = [f"bert.encoder.layer.{i}.attention.self.key.lora_A.weight" for i in (0, 1)]

    def change(tensors):
        for name in gone:
            del tensors[f"base_model.model.{name}"]
        tensors.update({f"base_model.model.{name}": torch.zeros(4, 16) for name in more})

    with pytest.raises(BundleError) as failure:
        imported(retensored(copy("bert-lora"), change), backbone_of("bert"))
    missing, _, unknown = str(failure.value).partition("not known: ")
    assert all(name in missing for name in gone) and all(name in unknown for name in more)


def test_code_in_a_pickle_is_refused_and_not_run(copy, tmp_path):
    class Code:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = copy("bert-rslora-every-site")
    (folder / "adapter_model.bin").write_bytes(pickle.dumps({"weight": Code()}))
    with pytest.raises(BundleError, match=r"adapter_model\.bin .*never run"):
        imported(folder, backbone_of("bert"))
    torch.save({"weight": Code()}, folder / "adapter_model.bin")
    with pytest.raises(BundleError, match=r"adapter_model\.bin"):
        imported(folder, backbone_of("bert"))
    assert not (tmp_path / "ran").exists()


def test_damaged_and_absent_files_are_refused_by_name(copy, tmp_path):
    folder = copy("bert-lora")
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    with pytest.raises(BundleError, match=r"adapter_model\.safetensors is damaged"):
        imported(folder, backbone_of("bert"))
    weights.unlink()
    with pytest.raises(BundleError, match=r"adapter_model\.safetensors nor adapter_model\.bin"):
        imported(folder, backbone_of("bert"))
    (folder / "adapter_config.json").unlink()
    with pytest.raises(BundleError, match="PEFT: adapter_config"):
        imported(folder, backbone_of("bert"))
    with pytest.raises(UsageError, match="there is no folder"):
        imported(tmp_path / "nothing", backbone_of("bert"))


def test_integers_in_a_state_dict_are_refused_by_name(copy):
    folder = retensored(copy("bert-lora"), lambda tensors: tensors.update(steps=torch.tensor([3])))
    with pytest.raises(BundleError, match="floating-point tensor: steps"):
        imported(folder, backbone_of("bert"))
