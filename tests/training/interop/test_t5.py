"""Checkpoints of models that write text become tasks whose labels are scored: against the libraries' own logits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import GOLDEN, backbone_of, rows_beside
from deltas import random_delta
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tolerance import exact_logits
from verbs import edgepeft

from edgepeft.backbones.hooks import edge_logits, load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.heads.labels import Labels
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

TEXT = GOLDEN / "text"
LABELS = ("no", "not no", "not", "perhaps")  # one of them begins another
NAMES = sorted(path.parent.name for path in TEXT.glob("*/logits.safetensors"))
WHOLE = [name for name in NAMES if not name.endswith("static")]
RELATIVE = 1e-5


def text_backbone(name: str) -> Backbone:
    return open_backbone(str(TEXT / name.partition("-")[0]))


def imported(folder: Path, backbone: Backbone, labels: tuple[str, ...] | None = LABELS) -> Delta:
    return importer_of(folder).read(folder, backbone, ImportRequest("task", labels))


def theirs(name: str) -> NDArray[Any]:
    """[rows, labels]: each label's log-probability among the labels, from the logits that the library gave."""
    logits = load_file(TEXT / name / "logits.safetensors")
    encoder = text_backbone(name).encoder()
    targets = {label: (*encoder.plain_ids(label), 3) for label in LABELS}
    scores = []
    for label, target in targets.items():
        steps = []
        for t, token in enumerate(target):
            siblings = sorted({other[t] for other in targets.values() if other[:t] == target[:t]})
            among = logits[label][:, t, siblings].double().log_softmax(-1)
            steps.append(among[:, siblings.index(token)].numpy())
        scores.append(np.sum(steps, 0))
    return np.stack(scores, 1)


@pytest.fixture
def copy(tmp_path: Path) -> Callable[..., Path]:
    """A golden folder to be changed: a function from its name and new settings to the copy."""

    def make(name: str, **settings: Any) -> Path:
        folder = Path(shutil.copytree(TEXT / name, tmp_path / name))
        card = folder / "adapter_config.json"
        found = json.loads(card.read_text())
        found.get("config", found).update(settings)
        card.write_text(json.dumps(found))
        return folder

    return make


def test_both_libraries_made_golden_checkpoints_of_both_backbones():
    kinds = {f"{backbone}-{library}" for backbone in ("t5", "flan") for library in ("peft", "hub")}
    assert {"-".join(name.split("-")[:2]) for name in NAMES} == kinds and len(NAMES) == 2 * (8 + 13) + 1
    for library in ("peft", "adapters"):
        assert library in json.loads((TEXT / f"{library}-versions.json").read_text())


@pytest.mark.numerical
@pytest.mark.parametrize("name", WHOLE)
def test_an_imported_checkpoint_scores_labels_as_its_library_does(name: str):
    backbone, expected = text_backbone(name), theirs(name)
    assert np.ptp(expected, axis=0).min() > 0.01  # rows are told apart
    exact = exact_logits(imported(TEXT / name, backbone), load_model(backbone, "eager"), rows_beside(backbone))
    exact.require(expected)
    assert np.abs(exact.value - expected).max() <= RELATIVE * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "method", "settings"),
    [
        ("t5-peft-lora", "lora", {"roles": ["query", "value"], "cross_attention": True, "rank": 4}),
        ("flan-peft-lora-everywhere", "lora", {"rank_stabilised": True, "cross_attention": True}),
        ("t5-peft-ia3", "ia3", {"roles": ["key", "value", "ffn_activation"]}),
        ("t5-peft-prompt", "prompt-r", {"length": 3, "place": "words"}),
        ("t5-hub-double-seq-bn", "houlsby", {"bottleneck": 4, "cross_attention": False}),
        ("t5-hub-double-seq-bn-cross", "houlsby", {"bottleneck": 4, "cross_attention": True}),
        ("t5-hub-seq-bn-cross", "pfeiffer", {"placement": "ffn", "cross_attention": True}),
        ("t5-hub-without-the-lowest", "houlsby", {"skip_layers": 1, "bottleneck": 4}),
        ("t5-hub-lora", "lora", {"cross_attention": True}),
        ("flan-hub-lora-everywhere", "lora", {"roles": ["query", "key", "value", "ffn_gated", "ffn_output"]}),
        ("t5-hub-compacter", "compacter", {"n": 4, "bottleneck": 8, "cross_attention": False}),
    ],
)
def test_the_method_is_the_one_that_has_the_form(name: str, method: str, settings: dict[str, Any]):
    card = imported(TEXT / name, text_backbone(name)).card
    assert card.method == method and card.hyperparameters.items() >= settings.items()
    assert (card.head, card.head_reads, card.labels) == ("labels", "labels", LABELS)


def test_labels_are_asked_for_and_must_be_told_apart():
    backbone, folder = text_backbone("t5"), TEXT / "t5-peft-lora"
    with pytest.raises(UsageError, match=r"checkpoints do not say which.*--labels a,b,c"):
        imported(folder, backbone, None)
    with pytest.raises(UsageError, match="are the same tokens"):
        imported(folder, backbone, ("ham", "spam"))
    assert imported(folder, backbone, ("yes", "no")).card.labels == ("yes", "no")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("t5-peft-lora", {"task_type": "SEQ_CLS"}, "task type SEQ_CLS .* what can: SEQ_2_SEQ_LM"),
        ("t5-peft-lora", {"target_modules": ["shared"]}, "no linear layer .*: shared"),
        (
            "t5-peft-lora",
            {"modules_to_save": ["shared"]},
            r"modules_to_save has shared\.weight, .* reads in other places",
        ),
        ("flan-peft-lora", {"modules_to_save": ["shared"]}, r"modules_to_save has shared\.weight, .* in other places"),
        ("flan-peft-lora", {"target_modules": ["q", "lm_head"]}, "no linear layer .*: lm_head"),
        ("t5-peft-prompt", {"num_layers": 5}, "5 layers; the backbone's are 16 and 2"),
        ("t5-hub-double-seq-bn", {"leave_out": [0]}, "a layer of one stack and not 2"),
        ("t5-hub-adapter-plus", {"cross_adapter": True}, "cross_adapter = True"),
        ("t5-hub-lora", {"attn_matrices": ["o"]}, "attn_matrices"),
    ],
)
def test_what_no_delta_can_represent_is_refused_by_name(
    copy: Callable[..., Path], name: str, settings: dict[str, Any], said: str
):
    with pytest.raises(EdgepeftError, match=said):
        imported(copy(name, **settings), text_backbone(name))


def test_a_checkpoint_of_text_is_none_of_an_encoder_and_the_other_way_round():
    with pytest.raises(BundleError, match=r"task type SEQ_2_SEQ_LM .* what can: SEQ_CLS"):
        imported(TEXT / "t5-peft-lora", backbone_of("bert"))
    with pytest.raises(BundleError, match=r"task type SEQ_CLS .* what can: SEQ_2_SEQ_LM"):
        imported(GOLDEN / "bert-lora", text_backbone("t5"))
    with pytest.raises(BundleError, match="num_transformer_submodules = 2"):
        folder = GOLDEN / "bert-prompt"
        config = json.loads((folder / "adapter_config.json").read_text()) | {"num_transformer_submodules": 2}
        importer = importer_of(folder)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("edgepeft.training.interop.peft_methods.base.read_config", lambda _: config)
            importer.read(folder, backbone_of("bert"), ImportRequest("task"))


def test_a_rule_that_adapterhub_did_not_save_is_missed_by_name():
    with pytest.raises(BundleError, match=r"shared_parameters\.sst\.phm_rule.*T5AdapterModel"):
        imported(TEXT / "t5-hub-compacter-static", text_backbone("t5"))


def test_an_output_layer_of_its_own_is_refused(copy: Callable[..., Path]):
    folder = copy("t5-hub-compacter")
    path = folder / "model_head.safetensors"
    tensors = load_file(path)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path)
    with pytest.raises(BundleError, match="an output layer of its own"):
        imported(folder, text_backbone("t5"))
    card = folder / "head_config.json"
    changed = json.loads(card.read_text())
    changed["config"]["head_type"] = "classification"
    card.write_text(json.dumps(changed))
    with pytest.raises(BundleError, match=r"a head of classification cannot be imported .* what can: seq2seq_lm"):
        imported(folder, text_backbone("t5"))


@pytest.mark.parametrize("labels", [None, LABELS])
def test_a_task_that_writes_text_is_refused_with_what_can_be_imported(labels: tuple[str, ...] | None):
    folder, backbone = TEXT / "t5-peft-lora", text_backbone("t5")
    with pytest.raises(UsageError, match=r"--kind text is text; .* answers by labels that its decoder scores"):
        importer_of(folder).read(folder, backbone, ImportRequest("task", labels, kind="text"))


@pytest.mark.parametrize(
    "name", ["t5-peft-lora", "flan-peft-lora-everywhere", "t5-peft-ia3", "flan-peft-ia3", "t5-peft-ln-tuning"]
)
def test_what_peft_wrote_comes_back_tensor_by_tensor(name: str, tmp_path: Path):
    backbone = text_backbone(name)
    Peft().write(imported(TEXT / name, backbone), backbone, tmp_path / "out")
    ours, golden = (load_file(folder / "adapter_model.safetensors") for folder in (tmp_path / "out", TEXT / name))
    assert set(ours) == set(golden) and all(torch.equal(ours[key], golden[key]) for key in golden)
    written = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (written["task_type"], written["modules_to_save"]) == ("SEQ_2_SEQ_LM", None)


@pytest.mark.numerical
@pytest.mark.parametrize(
    ("method", "settings"), [("lora", {"cross_attention": True}), ("lora", {"roles": ("ffn_up",)}), ("ia3", {})]
)
def test_peft_loads_our_delta_with_equal_scores(method: str, settings: dict[str, Any], tmp_path: Path):
    peft = pytest.importorskip("peft")
    import transformers

    backbone = text_backbone("t5")
    delta = random_delta(backbone, method, "task", LABELS, settings=settings)
    Peft().write(delta, backbone, tmp_path / "out")
    base = transformers.AutoModelForSeq2SeqLM.from_pretrained(backbone.folder, attn_implementation="eager")
    rows, trie = rows_beside(backbone), backbone.trie(LABELS)
    with torch.no_grad():
        wrapped = peft.PeftModel.from_pretrained(base, tmp_path / "out").eval()
        expected = Labels(16, len(LABELS), 0.0, trie)(edge_logits(wrapped, rows, trie)).numpy()
    exact_logits(delta, load_model(backbone, "eager"), rows).require(expected)


def test_what_is_imported_and_exported_scores_alike_in_onnxruntime(tmp_path: Path):
    kinds = ("peft-lora", "peft-prompt", "hub-double-seq-bn-cross", "hub-compacter")
    backbone, deltas = TEXT / "t5", []
    for kind in kinds:
        deltas += ["--delta", tmp_path / kind]
        more = ("--backbone", backbone, "--out", tmp_path / kind, "--labels", ",".join(LABELS))
        done = edgepeft("import", TEXT / f"t5-{kind}", *more)
        assert done.returncode == 0, done.stderr
    assert edgepeft("export", "--backbone", backbone, *deltas, "--out", tmp_path / "bundle").returncode == 0
    assert edgepeft("verify", tmp_path / "bundle").returncode == 0
    opened, runtime = open_backbone(str(backbone)), Runtime(tmp_path / "bundle")
    rows = {name: tensor.numpy() for name, tensor in rows_beside(opened).items()}
    for kind in kinds:
        exact = exact_logits(Delta.load(tmp_path / kind, opened), load_model(opened, "eager"), rows_beside(opened))
        exact.require(runtime.logits(f"t5-{kind}", rows))
    refused = edgepeft("import", TEXT / "t5-peft-lora", "--backbone", backbone, "--out", tmp_path / "no")
    assert refused.returncode == 2 and "--labels" in refused.stderr and not (tmp_path / "no").exists()
