"""AdapterHub's checkpoints become deltas: against logits that adapters itself gave for the folders that it wrote."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN as BACKBONES
from checkpoints import TAGS, backbone_of, exact_of, exact_of_golden, golden, imported, logits_of, theirs_of
from safetensors.torch import load_file, save_file

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.training.interop.base import importer_of

GOLDEN = BACKBONES / "adapterhub"
HOLDERS = ("adapters", "loras", "shared_parameters", "prompt_tunings", "prefix_tunings")
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/adapter_config.json"))
SAFE, PICKLED = "adapter.safetensors", "pytorch_adapter.bin"


def theirs(name):
    return theirs_of(GOLDEN / name)


def change_json(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def change_tensors(path, change):
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.fixture
def copy(tmp_path):
    """A golden folder to be changed: a function from its name and new settings of method and head to the copy."""

    def make(name, *, settings=None, head=None, card=None):
        folder = Path(shutil.copytree(GOLDEN / name, tmp_path / name))
        change_json(folder / "adapter_config.json", lambda found: found["config"].update(settings or {}))
        change_json(folder / "adapter_config.json", lambda found: found.update(card or {}))
        if head:
            change_json(folder / "head_config.json", lambda found: found["config"].update(head))
        return folder

    return make


def test_adapters_made_the_golden_checkpoints_of_both_backbones():
    versions = json.loads((GOLDEN / "versions.json").read_text())
    cards = [json.loads((GOLDEN / name / "adapter_config.json").read_text()) for name in NAMES]
    assert {card["version"] for card in cards} == {f"adapters.{versions['adapters']}"}
    kinds = [{name.partition("-")[2] for name in NAMES if name.startswith(family)} for family in ("bert-", "roberta-")]
    assert kinds[0] == kinds[1] | {"pooler-head"} and len(kinds[1]) == 36
    assert len([name for name in NAMES if name.startswith("deberta-")]) == 8
    for name in NAMES:  # in the names and containers that adapters writes, of which our code writes none
        folder = GOLDEN / name
        safe = (folder / SAFE).exists()
        state = load_file(folder / SAFE) if safe else torch.load(folder / PICKLED, weights_only=True)
        assert all(any(f".{kind}.sst." in key for kind in HOLDERS) for key in state)
        assert (folder / ("model_head.safetensors" if safe else "pytorch_model_head.bin")).exists()


def test_import_works_where_adapters_cannot_be_imported(tmp_path):
    code = (
        "import sys; sys.modules['adapters'] = None\n"
        f"sys.argv = ['edgepeft', 'import', {str(GOLDEN / 'bert-compacter')!r}, '--backbone', "
        f"{str(BACKBONES / 'bert')!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "from edgepeft.cli._main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"delta.json", "delta.safetensors"}


@pytest.mark.parametrize("name", NAMES)
def test_an_imported_checkpoint_gives_the_logits_that_adapters_gave(name):
    backbone = backbone_of(name)
    delta = imported(GOLDEN / name, backbone, labels=("a", "b", "c")) if "multilabel" in name else None
    exact, theirs = exact_of_golden(GOLDEN / name, backbone, delta or golden(GOLDEN / name, backbone))
    assert np.ptp(theirs, axis=0).min() > 0.1  # rows, or tokens, are told apart
    exact.require(theirs)


FUSIONS = ("bert-fusion", "roberta-fusion-static")


@pytest.mark.parametrize("name", FUSIONS)
def test_an_imported_fusion_gives_the_logits_that_adapters_gave(name, tmp_path):
    backbone = backbone_of(name)
    delta = imported(GOLDEN / name, backbone)
    exact_of(delta, backbone).require(theirs(name))
    settings = delta.card.hyperparameters
    assert (settings["adapters"], settings["value"]) == ((2, True) if name == "bert-fusion" else (3, False))
    delta.save(tmp_path / "delta")
    exact_of(Delta.load(tmp_path / "delta", backbone), backbone).require(theirs(name))


def test_what_is_fused_otherwise_is_refused_by_name(tmp_path):
    backbone = backbone_of("bert")

    def refused(match, path, change):
        folder = Path(shutil.copytree(GOLDEN / "bert-fusion", tmp_path / "copy", dirs_exist_ok=True))
        change_json(folder / path, change)
        with pytest.raises(BundleError, match=match):
            imported(folder, backbone)

    fusion, setup = "one,two/adapter_fusion_config.json", "adapter_setup.json"
    for name in ("query_before_ln", "residual_before", "temperature"):
        refused(f"{name} = True", fusion, lambda found, name=name: found["config"].update({name: True}))
    refused("query = False", fusion, lambda found: found["config"].update({"query": False}))
    refused("of type Stack", setup, lambda found: found["adapter_setup"].update({"type": "Stack"}))
    refused("is no delta", setup, lambda found: found["adapter_setup"]["children"].append({"type": "Stack"}))
    path = {"type": "single", "children": ["../bert-fusion"]}
    refused("is no delta", setup, lambda found: found["adapter_setup"]["children"].append(path))
    one = "two/adapter_config.json"
    refused("one activation", one, lambda found: found["config"].update({"non_linearity": "gelu"}))
    refused("Pfeiffer's form", one, lambda found: found["config"].update({"original_ln_before": False}))


def test_a_fusion_without_its_adapters_is_refused(tmp_path):
    folder = Path(shutil.copytree(GOLDEN / "bert-fusion" / "one,two", tmp_path / "alone"))
    with pytest.raises(BundleError, match="an AdapterFusion layer without its adapters"):
        imported(folder, backbone_of("bert"))


@pytest.mark.parametrize("kind", ["compacter-shared", "own-norms", "residual-after-ln", "lora-everywhere"])
def test_an_imported_delta_survives_saving_and_loading(kind, tmp_path):
    backbone = backbone_of("roberta")
    imported(GOLDEN / f"roberta-{kind}", backbone).save(tmp_path / "delta")
    loaded = Delta.load(tmp_path / "delta", backbone)
    exact_of(loaded, backbone).require(theirs(f"roberta-{kind}"))
    assert loaded.card.training["imported_from"] == "AdapterHub" and loaded.card.versions["adapters"] == "1.3.0"


@pytest.mark.parametrize(
    ("kind", "method", "settings"),
    [
        ("double-seq-bn", "houlsby", {"bottleneck": 4, "activation": "silu", "norms": False}),
        ("double-without-the-last", "houlsby", {"bottleneck": 32, "activation": "tanh", "leave_out": [1]}),
        ("seq-bn", "pfeiffer", {"bottleneck": 4, "activation": "relu", "placement": "ffn"}),
        ("seq-bn-reductions", "pfeiffer", {"bottleneck": 4, "activation": "tanh-gelu"}),
        ("attention-alone", "pfeiffer", {"placement": "attention", "activation": "leaky-relu", "skip_layers": 1}),
        ("par-bn", "bottleneck", {"reads": "residual", "keeps": "sublayer", "roles": ["ffn_output"]}),
        ("adapter-plus", "bottleneck", {"reads": "sublayer", "roles": ["layer_output"], "activation": "gelu"}),
        ("compacter", "compacter", {"bottleneck": 8, "n": 4, "rank": 1, "reads": "sublayer"}),
        ("compacter-plus-plus", "compacter++", {"reads": "norm", "rank": 2, "roles": ["ffn_output"]}),
        ("phm", "phm", {"n": 4, "bottleneck": 8, "reads": "sublayer"}),
        ("phm-seq-bn", "phm", {"n": 2, "reads": "norm", "roles": ["ffn_output"]}),
        ("lora-static", "lora", {"rank": 2, "alpha": 1.0, "roles": ["key"], "skip_layers": 1}),
    ],
)
def test_the_method_is_the_one_that_has_the_form(kind, method, settings):
    card = imported(GOLDEN / f"bert-{kind}", backbone_of("bert")).card
    assert card.method == method and card.hyperparameters.items() >= settings.items()


def test_factors_stay_factors():
    # Two layers, two places, r (in + out) of down and up and their biases; one rule [4, 4, 4]; the head of 3 labels.
    card = imported(GOLDEN / "bert-compacter", backbone_of("bert")).card
    assert card.trainable_parameters == 2 * 2 * 3 * (16 + 8) + 4**3 + (16 * 16 + 16) + 3 * 17


def test_labels_are_those_asked_for_or_the_heads_or_numbered():
    backbone = backbone_of("bert")
    assert imported(GOLDEN / "bert-double-seq-bn", backbone).card.labels == ("bad", "fair", "good")
    assert imported(GOLDEN / "bert-double-seq-bn", backbone, labels=("a", "b", "c")).card.labels == ("a", "b", "c")
    assert imported(GOLDEN / "bert-seq-bn", backbone).card.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert imported(GOLDEN / "bert-attention-alone", backbone).card.labels is None  # one output is a number
    with pytest.raises(UsageError, match="3 different labels"):
        imported(GOLDEN / "bert-double-seq-bn", backbone, labels=("a", "b"))


def test_the_kind_of_head_says_the_kind_of_task():
    kinds = {"tagging": "tokens", "multilabel": "labels", "question": "spans"}
    for name in NAMES:
        kind = next((kind for start, kind in kinds.items() if f"-{start}" in name), None)
        if kind:
            labels = {"labels": ("a", "b", "c"), "tokens": TAGS[:3]}.get(kind)
            card = imported(GOLDEN / name, backbone_of(name), labels=labels).card
            assert (card.kind, card.labels, card.pairs) == (kind, labels, kind == "spans")
    backbone = backbone_of("bert")
    assert imported(GOLDEN / "bert-tagging", backbone).card.labels == ("O", "B-X", "I-X")  # by the head's own names
    for name in ("tagging-prompt", "tagging-static", "multilabel"):  # LABEL_0, ... are none
        with pytest.raises(UsageError, match="answers by names"):
            imported(GOLDEN / f"bert-{name}", backbone)
    for name, asked in (("multilabel", "classification"), ("seq-bn", "labels"), ("tagging", "spans")):
        with pytest.raises(UsageError, match=f"--kind {asked} is"):
            imported(GOLDEN / f"bert-{name}", backbone, kind=asked)


def test_half_precision_is_read(copy):
    folder = copy("bert-seq-bn")
    change_tensors(folder / SAFE, lambda tensors: tensors.update({n: t.half() for n, t in tensors.items()}))
    backbone = backbone_of("bert")
    np.testing.assert_allclose(logits_of(imported(folder, backbone), backbone), theirs("bert-seq-bn"), atol=2e-2)


def test_older_names_and_activations_are_read_as_adapters_reads_them(copy):
    """Files of adapter-transformers have no version; what they call gelu is today's gelu_new."""
    folder, backbone = copy("bert-seq-bn-reductions", settings={"non_linearity": "gelu"}), backbone_of("bert")
    change_json(folder / "adapter_config.json", lambda card: card.pop("version"))

    def renamed(tensors):
        for name in list(tensors):
            tensors[name.replace(".adapters.", ".layer_text_task_adapters.")] = tensors.pop(name)

    change_tensors(folder / SAFE, renamed)
    expected = theirs("bert-seq-bn-reductions")
    exact_of(imported(folder, backbone), backbone).require(expected)


def test_lora_from_before_its_scale_was_repaired_is_read_without_one(copy):
    backbone = backbone_of("bert")
    older = imported(copy("bert-lora", card={"version": "adapters.1.0.1"}), backbone).card.hyperparameters
    newer = imported(GOLDEN / "bert-lora", backbone).card.hyperparameters
    assert (older["alpha"], newer["alpha"], newer["rank"]) == (4.0, 6.0, 4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"use_gating": True}, "use_gating = True"),
        ({"inv_adapter": "nice"}, "inv_adapter = 'nice'"),
        ({"non_linearity": "prelu"}, "non_linearity = 'prelu'"),
        ({"scaling": "large"}, "scaling = 'large'"),
        ({"original_ln_after": False}, "original_ln_after = False"),
        ({"residual_before_ln": "pre_add"}, "residual_before_ln = 'pre_add'"),
        ({"residual_before_ln": "post_add", "original_ln_before": False}, "residual_before_ln = 'post_add'"),
        ({"output_adapter": False}, "output_adapter = False"),
        ({"phm_layer": True, "shared_W_phm": True, "factorized_phm_W": False}, "shared_W_phm = True"),
        ({"phm_layer": True, "phm_dim": 3}, "phm_dim = 3 does not divide"),
        ({"something_of_next_year": 3}, "something_of_next_year = 3"),
        ({"reduction_factor": 0}, "reduction_factor"),
        ({"reduction_factor": {"0": 4}}, "says nothing of layer 1"),
        ({"reduction_factor": 1e-320}, "reduction_factor"),
        ({"leave_out": [0, 1]}, "leave no layer|skip_layers must be"),
        ({"leave_out": ["first"]}, r"leave_out\.0"),
        ({"mh_adapter": "maybe"}, "mh_adapter"),
        ({"architecture": "reft"}, "reft cannot be imported; what can: bottleneck"),
        ({"architecture": "prompt_tuning"}, "no delta can represent .*non_linearity = 'relu'"),
        ({"architecture": "union"}, "configs is missing"),
        ({"architecture": "mtl_lora"}, "mtl_lora cannot be imported"),
        ({"architecture": ["lora"]}, "lora.* cannot be imported"),
    ],
)
def test_what_no_delta_can_represent_is_refused_by_name(copy, settings, named):
    with pytest.raises(BundleError, match=rf"adapter_config\.json: .*({named})"):
        imported(copy("bert-seq-bn", settings=settings), backbone_of("bert"))


@pytest.mark.parametrize(
    ("prefix", "adapter", "named"),
    [
        ({"use_gating": True}, {}, r"configs\[0\]: no delta can represent use_gating = True"),  # UniPELT's
        ({}, {"use_gating": True}, r"configs\[1\]: no delta can represent use_gating = True"),
        ({}, {"is_parallel": False}, "a union of Prefix tuning and .* is no delta; what can be is MAM"),
        ({}, {"mh_adapter": True}, "is no delta; what can be is MAM"),
    ],
)
def test_a_union_of_anything_but_mams_parts_is_refused_by_name(copy, prefix, adapter, named):
    theirs = json.loads((GOLDEN / "bert-mam" / "adapter_config.json").read_text())["config"]["configs"]
    union = [theirs[0] | prefix, theirs[1] | adapter]
    with pytest.raises(BundleError, match=rf"adapter_config\.json: .*{named}"):
        imported(copy("bert-mam", settings={"configs": union}), backbone_of("bert"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"composition_mode": "scale", "r": 1}, "composition_mode = 'scale'"),  # (IA)^3
        ({"use_gating": True}, "use_gating = True"),
        ({"use_dora": True}, "use_dora = True"),
        ({"vera_d": 0.0}, "vera_d = 0.0"),
        ({"attn_matrices": ["q", "o"]}, "attn_matrices"),
        ({"dtype": "float16"}, "dtype = 'float16'"),
        ({"r": 0}, "r must be a number of at least 1, found 0"),
        ({"selfattn_lora": False}, "at least one of query"),
    ],
)
def test_loras_that_no_delta_can_represent_are_refused_by_name(copy, settings, named):
    with pytest.raises(BundleError, match=named):
        imported(copy("bert-lora", settings=settings), backbone_of("bert"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"combine": "prefix_after_bos"}, "combine = 'prefix_after_bos'"),
        ({"prompt_length": 0}, "prompt_length must be a number of at least 1, found 0"),
        ({"prompt_length": 30}, "length must be at most 29: this bert has 32 positions"),
        ({"prompt_length": 4}, r"prompt_embedding\.weight \[5, 16\] instead of \[4, 16\]"),
    ],
)
def test_prompts_that_no_delta_can_represent_are_refused_by_name(copy, settings, named):
    with pytest.raises(BundleError, match=named):
        imported(copy("bert-prompt", settings=settings), backbone_of("bert"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"leave_out": [0]}, r"leave_out = \[0\]"),
        ({"use_gating": True}, "use_gating = True"),
        ({"prefix_length": 3}, r"self_prefix\.control_trans \[256\] instead of \[192\]"),
    ],
)
def test_prefixes_that_no_delta_can_represent_are_refused_by_name(copy, settings, named):
    with pytest.raises(BundleError, match=named):
        imported(copy("bert-prefix", settings=settings), backbone_of("bert"))


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ({"head_type": "masked_lm"}, "type masked_lm .*what can: classification, multilabel_classification, tagging"),
        ({"head_type": "multiple_choice"}, "multiple_choice"),
        ({"head_type": "tagging", "layers": 2}, "layers = 2; a head for each token"),
        ({"layers": 3}, "layers = 3"),
        ({"activation_function": "swish"}, "activation_function = 'swish'"),
        ({"activation_function": None}, "activation_function = None"),
        ({"use_pooler": True}, "use_pooler = True"),
        ({"num_labels": 0}, "num_labels"),
        ({"label2id": {"a": "first"}}, "label2id"),
    ],
)
def test_heads_that_edgepeft_lacks_are_refused_by_name(copy, head, named):
    with pytest.raises(BundleError, match=rf"head_config\.json: .*{named}"):
        imported(copy("bert-seq-bn", head=head), backbone_of("bert"))


def test_a_pooler_that_the_backbone_runs_without_is_refused(copy):
    with pytest.raises(BundleError, match="use_pooler = True: backbones of type roberta"):
        imported(copy("roberta-seq-bn-reductions", head={"use_pooler": True}), backbone_of("roberta"))


def test_a_head_for_another_task_is_refused_by_its_class(copy):
    folder = copy("bert-seq-bn-static")
    change_json(folder / "head_config.json", lambda card: card.update(model_class="BertForMaskedLM"))
    with pytest.raises(BundleError, match=r"BertForMaskedLM .*\.\.\.ForTokenClassification"):
        imported(folder, backbone_of("bert"))


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("adapter_fusion_config.json", "AdapterFusion"),
        ("adapter_setup.json", "adapter_setup is missing"),
        ("adapter_interface.json", "interface of its own"),
    ],
)
def test_several_adapters_at_once_are_refused_by_name(copy, tmp_path, file, what):
    folder = copy("bert-seq-bn")
    (folder / file).write_text("{}")
    with pytest.raises(BundleError, match=what):
        imported(folder, backbone_of("bert"))
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / file).write_text("{}")
    with pytest.raises(BundleError, match=what):
        imported(tmp_path / "alone", backbone_of("bert"))


@pytest.mark.parametrize(("name", "other"), [("bert-lora", "roberta"), ("roberta-seq-bn", "bert")])
def test_another_architecture_is_refused_by_both_names(name, other):
    own = name.partition("-")[0]
    with pytest.raises(BundleError, match=rf"{own} of width 16; the backbone is {other} of width 16"):
        imported(GOLDEN / name, backbone_of(other))


def test_another_width_is_refused_by_both(tiny):
    with pytest.raises(BundleError, match="bert of width 16; the backbone is bert of width 32"):
        imported(GOLDEN / "bert-seq-bn", open_backbone(str(tiny("bert"))))


def test_a_backbone_with_more_layers_is_refused_with_every_missing_tensor_named(copy, tiny):
    backbone = open_backbone(str(tiny("bert", num_hidden_layers=3, hidden_size=16)))
    with pytest.raises(BundleError) as failure:
        imported(GOLDEN / "bert-seq-bn", backbone)
    parts = ("adapter_down.0.weight", "adapter_down.0.bias", "adapter_up.weight", "adapter_up.bias")
    assert all(
        "missing: " in str(failure.value) and f"layer.2.output.adapters.sst.{p}" in str(failure.value) for p in parts
    )


def test_missing_and_unknown_tensors_are_all_named_of_adapter_and_head(copy):
    gone = [f"bert.encoder.layer.{i}.output.adapters.sst.adapter_up.weight" for i in (0, 1)]
    more = [f"bert.encoder.layer.{i}.attention.output.adapters.sst.adapter_up.weight" for i in (0, 1)]
    folder = copy("bert-seq-bn")

    def change(tensors):
        for name in gone:
            tensors.pop(name)
        tensors.update({name: torch.zeros(16, 4) for name in more})

    change_tensors(folder / SAFE, change)
    with pytest.raises(BundleError) as failure:
        imported(folder, backbone_of("bert"))
    missing, _, unknown = str(failure.value).partition("not known: ")
    assert all(name in missing for name in gone) and all(name in unknown for name in more)
    shutil.copy(GOLDEN / "bert-seq-bn" / SAFE, folder / SAFE)
    change_tensors(
        folder / "model_head.safetensors", lambda t: t.update({"heads.sst.9.weight": t.pop("heads.sst.4.bias")})
    )
    with pytest.raises(BundleError, match=r"missing: heads\.sst\.4\.bias; not known: heads\.sst\.9\.weight"):
        imported(folder, backbone_of("bert"))


def test_a_wrong_reduction_factor_is_refused_with_both_shapes(copy):
    with pytest.raises(BundleError, match=r"adapter_down\.0\.weight \[4, 16\] instead of \[8, 16\]"):
        imported(copy("bert-seq-bn", settings={"reduction_factor": 2}), backbone_of("bert"))


@pytest.mark.parametrize("file", [PICKLED, "pytorch_model_head.bin"])
def test_code_in_a_pickle_is_refused_and_not_run(copy, tmp_path, file):
    class Code:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = copy("bert-double-seq-bn")
    for write in (
        lambda path: path.write_bytes(pickle.dumps({"w": Code()})),
        lambda path: torch.save({"w": Code()}, path),
    ):
        write(folder / file)
        with pytest.raises(BundleError, match=rf"{file} .*never run"):
            imported(folder, backbone_of("bert"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["adapter_config.json", "head_config.json"])
@pytest.mark.parametrize(
    "content", ["{", "[]", '{"config": 3, "model_type": "bert"}', '{"model_type": "bert"}', "\x00"]
)
def test_damaged_configs_are_refused_by_name(copy, file, content):
    folder = copy("bert-seq-bn")
    (folder / file).write_text(content)
    with pytest.raises(EdgepeftError, match=file.partition("_")[0]):
        imported(folder, backbone_of("bert"))


def test_damaged_and_absent_files_are_refused_by_name(copy):
    folder = copy("bert-seq-bn")
    weights = folder / SAFE
    weights.write_bytes(weights.read_bytes()[:-7])
    with pytest.raises(BundleError, match=r"adapter\.safetensors is damaged"):
        imported(folder, backbone_of("bert"))
    weights.unlink()
    with pytest.raises(BundleError, match=r"adapter\.safetensors nor pytorch_adapter\.bin"):
        imported(folder, backbone_of("bert"))
    (folder / "adapter_config.json").unlink()
    with pytest.raises(BundleError, match="AdapterHub: adapter_config"):
        imported(folder, backbone_of("bert"))


def test_a_head_that_was_not_saved_is_the_backbones_own_or_refused(copy, tmp_path):
    folder, heads = copy("bert-seq-bn-static"), torch.load(
        GOLDEN / "bert-seq-bn-static" / "pytorch_model_head.bin", weights_only=True
    )  # fmt: skip
    for file in ("head_config.json", "pytorch_model_head.bin"):
        (folder / file).unlink()
    with pytest.raises(BundleError, match=r"no head_config\.json.*with_head=True"):
        imported(folder, backbone_of("bert"))
    whole = Path(shutil.copytree(BACKBONES / "bert", tmp_path / "whole"))
    base = {f"bert.{name}": tensor for name, tensor in load_file(whole / "model.safetensors").items()}
    save_file(base | heads, whole / "model.safetensors")
    backbone = open_backbone(str(whole))
    exact_of(imported(folder, backbone), backbone).require(theirs("bert-seq-bn-static"))


def test_the_two_libraries_folders_are_told_apart():
    assert importer_of(GOLDEN / "bert-lora").library == "AdapterHub"
    assert importer_of(BACKBONES / "bert-lora").library == "PEFT"
