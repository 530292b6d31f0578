"""``edgepeft import`` as a user calls it, and its delta through export into ONNX Runtime."""

import json
import shutil
from pathlib import Path

import pytest
from checkpoints import TAGS, exact_of, exact_of_golden
from safetensors.numpy import load_file
from verbs import edgepeft

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import Delta
from edgepeft.runtime.runtime import Runtime

GOLDEN = Path(__file__).parent / "golden"


def exported(backbone, deltas, folder):
    """The bundle of these deltas, verified by the verb."""
    options = [part for delta in deltas for part in ("--delta", delta)]
    assert edgepeft("export", "--backbone", backbone, *options, "--out", folder).returncode == 0
    assert edgepeft("verify", folder).returncode == 0
    return Runtime(folder)


@pytest.mark.parametrize(
    ("library", "family", "kinds"),
    [
        ("PEFT", "bert", ("lora-all-linear", "lora-bias-all", "ln-tuning-part", "ia3")),
        ("PEFT", "roberta", ("lora", "rslora-every-site", "lora-patterns", "ia3-own-modules")),
        (
            "AdapterHub",
            "bert",
            ("double-seq-bn", "residual-after-ln", "own-norms", "compacter", "phm-seq-bn", "pooler-head"),
        ),
        (
            "AdapterHub",
            "roberta",
            ("scaled-par-bn", "adapter-plus", "post-add", "compacter-plus-plus", "seq-bn-static", "lora"),
        ),
    ],
)
def test_what_is_imported_and_exported_gives_its_librarys_logits_in_onnxruntime(library, family, kinds, tmp_path):
    backbone, theirs = GOLDEN / family, GOLDEN / "adapterhub" if library == "AdapterHub" else GOLDEN
    for kind in kinds:
        done = edgepeft("import", theirs / f"{family}-{kind}", "--backbone", backbone, "--out", tmp_path / kind)
        assert done.returncode == 0 and f"from {library}" in done.stdout, done.stderr
    runtime = exported(backbone, [tmp_path / kind for kind in kinds], tmp_path / "bundle")
    inputs, opened = load_file(backbone / "inputs.safetensors"), open_backbone(str(backbone))
    for kind in kinds:
        expected = exact_of(Delta.load(tmp_path / kind, opened), opened)
        expected.require(load_file(theirs / f"{family}-{kind}" / "logits.safetensors")["logits"])
        expected.require(runtime.logits(f"{family}-{kind}", inputs))
    if library == "PEFT":
        shared = {name for name, entry in runtime.bundle.manifest.tasks.items() if entry.shared_layers}
        assert shared == {"roberta-lora-patterns"} & {*runtime.tasks}  # which adapts the upper layer alone


def test_heads_of_every_kind_give_their_librarys_logits_in_onnxruntime(tmp_path):
    labels = {"tags-prompt": TAGS[:3], "adapterhub/bert-multilabel": ("a", "b", "c")}
    names = ("tags-prompt", "spans-ia3", "adapterhub/bert-multilabel", "adapterhub/bert-question-answering-static")
    backbone, folders = GOLDEN / "bert", {}
    for name in names:
        folder, out = GOLDEN / (name if "/" in name else f"bert-{name}"), tmp_path / name.replace("/", "-")
        asked = ("--labels", ",".join(labels[name])) if name in labels else ()
        done = edgepeft("import", folder, "--backbone", backbone, "--out", out, "--task", out.name, *asked)
        assert done.returncode == 0, done.stderr
        folders[out.name] = folder
    runtime = exported(backbone, [tmp_path / task for task in folders], tmp_path / "bundle")
    inputs, opened = load_file(backbone / "inputs.safetensors"), open_backbone(str(backbone))
    for task, folder in folders.items():
        exact, theirs = exact_of_golden(folder, opened, Delta.load(tmp_path / task, opened))
        exact.require(theirs)
        found = runtime.logits(task, inputs)
        exact.require(found[inputs["attention_mask"] > 0] if found.ndim > 2 else found)
    kinds = [entry.kind for entry in runtime.bundle.manifest.tasks.values()]
    assert sorted(kinds) == ["labels", "spans", "spans", "tokens"]
    spans = runtime.predict("spans-ia3", [("w5 w6", "w7 w8 w9")])[0].as_json()
    assert spans["answered"] and "w7 w8 w9"[spans["start"] : spans["end"]] == spans["text"]
    assert {*runtime.predict("adapterhub-bert-multilabel", ["w5"])[0].scores} == {"a", "b", "c"}


def test_what_of_adapterhub_cannot_be_imported_exits_with_1_and_writes_nothing(tmp_path):
    folder = Path(shutil.copytree(GOLDEN / "adapterhub" / "bert-seq-bn", tmp_path / "sst"))
    config = folder / "adapter_config.json"
    for text, named in [
        (config.read_text().replace('"use_gating": false', '"use_gating": true'), "use_gating = True"),
        (config.read_text()[:-9], "cannot be read as JSON"),
    ]:
        config.write_text(text)
        done = edgepeft("import", folder, "--backbone", GOLDEN / "bert", "--out", tmp_path / "out")
        assert done.returncode == 1 and named in done.stderr
    assert not (tmp_path / "out").exists()


def test_import_prints_the_card_as_one_document_and_takes_names(tmp_path):
    arguments = ("--backbone", GOLDEN / "bert", "--out", tmp_path / "out", "--task", "mood", "--labels", "a,b,c")
    done = edgepeft("import", GOLDEN / "bert-lora", *arguments, "--max-length", 20, "--json")
    card = json.loads(done.stdout)
    assert (card["task"], card["labels"], card["max_length"], card["method"]) == ("mood", ["a", "b", "c"], 20, "lora")


def test_import_refuses_with_exit_codes_and_writes_nothing(tmp_path):
    def run(folder, *more, backbone="bert"):
        return edgepeft("import", folder, "--backbone", GOLDEN / backbone, "--out", tmp_path / "out", *more)

    foreign = run(GOLDEN / "bert-lora", backbone="roberta")
    assert foreign.returncode == 1 and "another architecture" in foreign.stderr
    assert run(tmp_path / "nothing").returncode == 2
    assert run(GOLDEN / "bert-lora", "--task", "a/b").returncode == 2
    assert run(GOLDEN / "bert-lora", "--max-length", "500").returncode == 2
    assert run(GOLDEN / "bert-lora", "--labels", "a,a,b").returncode == 2
    assert not (tmp_path / "out").exists()
    assert run(GOLDEN / "bert-lora").returncode == 0
    assert "--force" in run(GOLDEN / "bert-lora").stderr


def test_export_to_peft_writes_one_folder_and_no_bundle(tmp_path):
    backbone = ("--backbone", GOLDEN / "roberta")
    edgepeft("import", GOLDEN / "roberta-lora", *backbone, "--out", tmp_path / "delta")
    arguments = ("export", *backbone, "--delta", tmp_path / "delta", "--to-peft", tmp_path / "peft")
    done = edgepeft(*arguments)
    assert done.returncode == 0 and "num_labels=3" in done.stderr
    assert {path.name for path in (tmp_path / "peft").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert edgepeft(*arguments).returncode == 2  # it exists
    assert edgepeft(*arguments, "--force").returncode == 0
    assert edgepeft(*arguments, "--out", tmp_path / "bundle").returncode == 2
    assert edgepeft(*arguments[:-2]).returncode == 2
