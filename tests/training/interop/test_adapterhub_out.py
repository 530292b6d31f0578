"""A delta as a folder of AdapterHub's: the tensors of adapters' own files, and every form back through the importer."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoints import GOLDEN as BACKBONES
from checkpoints import backbone_of, golden, imported
from deltas import random_delta, saved
from safetensors.torch import load_file
from verbs import edgepeft

from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.training.interop.adapterhub import AdapterHub

GOLDEN = BACKBONES / "adapterhub"
CONFIGS = ("adapter_config.json", "head_config.json")
# Goldens whose tensors an import takes as they are, and whose head is one of AdapterHub's own.
SAME = (
    "double-seq-bn", "seq-bn", "double-without-the-last", "own-norms", "post-add", "compacter",
    "phm", "lora", "lora-everywhere", "prompt", "prefix", "tagging", "multilabel", "question-answering",
)  # fmt: skip


def stored(folder: Path, *names: str) -> dict[str, torch.Tensor]:
    path = next(folder / name for name in names if (folder / name).exists())
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)


OF_DEBERTA = ("double-seq-bn", "own-norms", "compacter", "phm", "lora", "lora-everywhere", "tagging")


@pytest.mark.parametrize(
    ("family", "kind"), [*product(("bert", "roberta"), SAME), *(("deberta", kind) for kind in OF_DEBERTA)]
)
def test_what_adapters_wrote_comes_back_tensor_by_tensor_and_with_its_settings(family: str, kind: str, tmp_path: Path):
    name = f"{family}-{kind}"
    backbone, out = backbone_of(name), tmp_path / "out"
    of_labels = {"labels": ("a", "b", "c")} if kind == "multilabel" else {}
    delta = imported(GOLDEN / name, backbone, **of_labels) if of_labels else golden(GOLDEN / name, backbone)
    delta.card = delta.card.model_copy(update={"task": "sst"})
    AdapterHub().write(delta, backbone, out)
    for files in (("adapter.safetensors", "pytorch_adapter.bin"), ("model_head.safetensors", "pytorch_model_head.bin")):
        ours, theirs = stored(out, *files), stored(GOLDEN / name, *files)
        theirs = {key: tensor for key, tensor in theirs.items() if ".pool." not in key}  # all prefixes in each layer
        assert set(ours) == set(theirs) and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    for file in CONFIGS:
        ours, theirs = (json.loads((folder / file).read_text()) for folder in (out, GOLDEN / name))
        config = ours.pop("config")
        names = ("model_name", "version")
        assert {key: ours[key] for key in ours if key not in names} == {
            key: theirs[key] for key in ours if key not in names
        }
        # What is called otherwise there: silu is swish too, and labels may be ours.
        config.pop("label2id", None)
        aliases = {"swish": "silu"}
        for key, value in config.items():
            assert value == aliases.get(str(theirs["config"][key]), theirs["config"][key]), key


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])  # whose modules are called otherwise
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("houlsby", {"norms": False, "bottleneck": 5, "skip_layers": 1}),
        ("adapterdrop", {"norms": False, "bottleneck": 8, "skip_layers": 1}),
        ("pfeiffer", {"placement": "attention", "bottleneck": 7}),
        ("compacter++", {"norms": False, "reads": "norm", "bottleneck": 8, "rank": 2}),
        ("bottleneck", {"reads": "residual", "bottleneck": 6, "norm_before": True, "norm_after": "change"}),
        ("bottleneck", {"reads": "sublayer", "roles": ("layer_output",), "activation": "gelu"}),
        ("bottleneck", {"reads": "norm", "keeps": "norm", "roles": ("attention_output", "ffn_output")}),
        ("lora", {"rank": 4, "alpha": 3.0, "rank_stabilised": True, "roles": ("key", "ffn_up")}),
    ],
)
def test_every_method_comes_back_through_the_importer(model_type, method, settings, tiny, tmp_path):
    backbone = open_backbone(str(tiny(model_type)))
    delta = random_delta(backbone, method, "a.task", ("a", "b", "c"), settings=settings, head="roberta")
    AdapterHub().write(delta, backbone, tmp_path / "out")
    again = imported(tmp_path / "out", backbone)
    ours, theirs = delta.tensors(), again.tensors()
    assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (again.card.labels, again.card.head) == (("a", "b", "c"), "roberta")
    one, other = (next(iter(of.site_modules.values())) for of in (delta, again))
    assert getattr(one, "scale", 1.0) == pytest.approx(getattr(other, "scale", 1.0))


@pytest.mark.parametrize("model_type", ["bert", "roberta"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("prefix", {"length": 3}),
        ("prefix", {"length": 3, "projection": 5}),
        ("mam", {"length": 3, "bottleneck": 8, "activation": "gelu"}),
        ("mam", {"length": 2, "projection": 5, "bottleneck": 6}),
    ],
)
def test_prefixes_come_back_with_what_their_mlp_made_of_them(model_type, method, settings, tiny, tmp_path):
    backbone = open_backbone(str(tiny(model_type)))
    delta = random_delta(backbone, method, "mood", ("a", "b", "c"), settings=settings, head="roberta")
    AdapterHub().write(delta, backbone, tmp_path / "out")
    ours, again = delta.folded(backbone).tensors(), imported(tmp_path / "out", backbone)
    theirs = again.tensors()
    assert set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (again.card.method, again.card.hyperparameters["projection"]) == (method, 0)


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("ia3", {}, r"no form for ia3\. What can be: adapterdrop, bottleneck, compacter, .*prompt-r"),
        ("houlsby", {}, "LayerNorms are trained too.*--set norms=false"),
        ("lora", {"roles": ("attention_output",)}, "no matrices at attention_output.*Roles that can be: ffn_output"),
        ("lora", {"bias": "all"}, "--set bias=none"),
        ("bottleneck", {"reads": "residual", "keeps": "sum"}, "reads=residual with keeps=sum at ffn_output"),
        ("bottleneck", {"norm_after": "sum"}, "norm_after=change"),
        ("prefix", {"text": "follows"}, "--set text=stays"),
        ("mam", {"length": 2, "text": "follows"}, "--set text=stays"),
        ("prompt-r", {"length": 2}, "--set place=embeddings|over the first position"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_remedy(method, settings, said, tiny, tmp_path):
    backbone = open_backbone(str(tiny("bert")))
    with pytest.raises(UsageError, match=said):
        AdapterHub().write(random_delta(backbone, method, "mood", settings=settings), backbone, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_heads_kinds_and_backbones_without_a_form_are_refused(tiny, tmp_path):
    backbone, mpnet = open_backbone(str(tiny("bert"))), open_backbone(str(tiny("mpnet")))
    with pytest.raises(UsageError, match=r"a choice among candidates.*what can: classification, multilabel"):
        AdapterHub().write(random_delta(backbone, "lora", "mood", None, kind="choice"), backbone, tmp_path / "out")
    distilbert, past = open_backbone(str(tiny("distilbert"))), {"length": 2, "place": "embeddings"}
    prompt = random_delta(distilbert, "prompt-r", "mood", ("O", "B-X"), kind="tokens", settings=past)
    prefix = random_delta(distilbert, "prefix", "mood", ("O", "B-X"), kind="tokens")
    for delta in (prompt, prefix):
        with pytest.raises(EdgepeftError, match="of a DistilBERT AdapterHub"):
            AdapterHub().write(delta, distilbert, tmp_path / "out")
    with pytest.raises(UsageError, match=r"of a mpnet\. Backbones that can go: bert, roberta"):
        AdapterHub().write(random_delta(mpnet, "lora", "mood"), mpnet, tmp_path / "out")


def test_the_verb_writes_a_folder_and_says_how_it_is_loaded(tiny, tmp_path):
    folder = tiny("bert")
    backbone = open_backbone(str(folder))
    delta = saved(random_delta(backbone, "pfeiffer", "mood", ("a", "b")), tmp_path / "delta")
    arguments = ("export", "--backbone", folder, "--delta", delta, "--to-adapterhub", tmp_path / "out")
    done = edgepeft(*arguments)
    assert done.returncode == 0 and "use_safetensors=True) of a BertAdapterModel" in done.stderr
    assert "note:" not in done.stderr
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {*CONFIGS, "adapter.safetensors", "model_head.safetensors"}
    assert edgepeft(*arguments).returncode == 2  # it exists
    assert edgepeft(*arguments, "--force", "--to-peft", tmp_path / "peft").returncode == 2
    again = edgepeft("import", tmp_path / "out", "--backbone", folder, "--out", tmp_path / "again")
    assert (
        again.returncode == 0
        and (tmp_path / "again/delta.safetensors").read_bytes() == (delta / "delta.safetensors").read_bytes()
    )


@pytest.mark.parametrize(("option", "library"), [("--to-adapterhub", "AdapterHub"), ("--to-peft", "PEFT")])
def test_a_temperature_that_stays_behind_is_said(tiny, tmp_path, option, library):
    folder = tiny("bert")
    delta = random_delta(open_backbone(str(folder)), "lora", "mood", ("a", "b"))
    delta.card = delta.card.model_copy(update={"chosen": {"temperature": 1.4}})
    written = saved(delta, tmp_path / "delta")
    done = edgepeft("export", "--backbone", folder, "--delta", written, option, tmp_path / "out")
    assert done.returncode == 0
    assert f"note: {library} has no place for the task's temperature (chosen in its card)" in done.stderr
