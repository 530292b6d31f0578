"""Tasks whose head reads the last token of a decoder alone: methods, gradients, and transformers' own classes.

``LlamaForSequenceClassification`` and its kin are what is expected: the last token's state, and a layer without bias.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import suite
import torch
import transformers
from deltas import TEXTS, bundled, random_delta, saved
from method_examples import examples
from safetensors.numpy import load_file, save_file
from tiny import DECODERS, SIZES, ragged
from tolerance import exactly, require_alike

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import VerificationFailed
from edgepeft.graph.protos import copied
from edgepeft.graph.prune_last_layer import drop_unread_rows
from edgepeft.graph.splice import splice
from edgepeft.methods.base import methods
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

from .test_gradients import Tuned, require_pytorchs

# A way each to join a backbone, on one model type in turn; one with norms of heads and one with norms past sub-layers.
JOINED = {"bitfit": "qwen2", "full": "llama", "lora": "qwen3", "pfeiffer": "gemma3_text", "prompt-t": "mistral"}
JOINED |= {"mam": "gemma3_text", "prefix": "qwen2"}


@pytest.mark.parametrize(("name", "model_type"), JOINED.items())
def test_it_conforms_and_its_gradients_are_pytorchs(
    tiny: Callable[..., Path], tmp_path: Path, name: str, model_type: str
):
    backbone = open_backbone(str(tiny(model_type, tie_word_embeddings=True)))
    case = suite.Case(examples(methods()[name])[0], backbone)
    suite.conforms(case, tmp_path / "delta")
    for batch, length in suite.SHAPES[1:3]:
        require_pytorchs(Tuned(case), batch, length)


@pytest.mark.numerical
@pytest.mark.parametrize("model_type", DECODERS)
def test_logits_of_ragged_rows_and_of_rows_padded_in_front_are_transformers(
    tiny: Callable[..., Path], tmp_path: Path, model_type: str
):
    backbone = open_backbone(str(tiny(model_type)))
    delta = random_delta(backbone, "lora", "mood", ("a", "b", "c"), settings={"rank": 2})
    for name, tensor in delta.tensors().items():
        if not name.startswith("head/"):
            tensor.data.zero_()  # the model is the backbone as it is
    export_bundle(backbone, [saved(delta, tmp_path / "delta")], tmp_path / "bundle", texts=TEXTS[:20], weights="fp32")
    of = transformers.AutoModelForSequenceClassification
    theirs = of.from_pretrained(backbone.folder, attn_implementation="eager", num_labels=3).double().eval()
    theirs.score.weight.data = delta.tensors()["head/score.weight"].detach().double()
    rows = ragged(6, 9, SIZES[model_type], seed=3)
    rows.pop("token_type_ids")
    in_front = {name: np.flip(values, 1).copy() for name, values in rows.items()}
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        for given in (rows, in_front):
            found = runtime.logits("mood", given)
            for i, (ids, mask) in enumerate(zip(given["input_ids"], given["attention_mask"], strict=True)):
                alone = torch.from_numpy(ids[mask == 1])[None]
                with torch.no_grad():
                    exact = exactly(lambda alone=alone: {"logits": theirs(input_ids=alone).logits[0]})["logits"]
                exact.require(found[i])
                exact.require(runtime.logits("mood", {n: v[i : i + 1] for n, v in given.items()})[0])


def test_an_adapter_of_peft_comes_with_its_head_and_goes_back(tiny: Callable[..., Path], tmp_path: Path):
    peft = pytest.importorskip("peft")
    backbone = open_backbone(str(tiny("qwen2")))
    of = transformers.AutoModelForSequenceClassification
    base = of.from_pretrained(backbone.folder, attn_implementation="eager", num_labels=3)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=3, target_modules=["q_proj", "down_proj"])
    theirs = peft.get_peft_model(base, config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    theirs.save_pretrained(tmp_path / "theirs")
    delta = importer_of(tmp_path / "theirs").read(tmp_path / "theirs", backbone, ImportRequest("mood"))
    assert (delta.card.head, delta.card.head_reads, delta.card.labels) == (
        "score",
        "last_token",
        ("LABEL_0", "LABEL_1", "LABEL_2"),
    )
    Peft().write(delta, backbone, tmp_path / "back")
    again = of.from_pretrained(backbone.folder, attn_implementation="eager", num_labels=3)
    back = peft.PeftModel.from_pretrained(again, tmp_path / "back").eval()
    ids = torch.from_numpy(ragged(1, 8, SIZES["qwen2"])["input_ids"])
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model = load_model(backbone, "eager")
    with torch.no_grad():
        expected = theirs(**rows).logits
        for found in (delta.logits(model, rows), back(**rows).logits):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_tasks_of_one_structure_answer_in_one_pass(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("llama")))
    how: dict[str, Any] = {"settings": {"rank": 2}}
    deltas = {n: random_delta(backbone, "lora", n, seed=seed, **how) for seed, n in enumerate(("one", "two"))}
    deltas["score"] = random_delta(backbone, "lora", "score", None, kind="regression", seed=5, **how)
    folder = bundled(deltas, backbone, tmp_path, "fp32")
    tasks, texts = ["two", "one", "score", "one", "two"], [text.first for text in TEXTS[:5]]
    with Runtime(folder, threads=1, cache=False) as runtime:
        opened = {task: runtime.session(task) for task in ("one", "two", "score")}
        assert runtime.mixer._can_mix(opened)
        found = [answer.logits for answer in runtime.predict_mixed(tasks, texts)]
        alone = [runtime.predict(task, [text])[0].logits for task, text in zip(tasks, texts, strict=True)]
    for one, other in zip(found, alone, strict=True):
        require_alike(one, other, folder)


def test_the_last_feed_forward_has_the_read_rows_alone(tiny: Callable[..., Path]):
    """By the shapes that a run gives its output: [rows, d] in the pruned graph, [tokens, d] in the other."""
    backbone = open_backbone(str(tiny("llama")))
    case = suite.Case(examples(methods()["lora"])[0], backbone)
    whole = splice(
        backbone.architecture.graph(backbone.checkpoint),
        case.graph,
        backbone.architecture.bindings,
        backbone.checkpoint,
    )
    pruned = copied(whole)
    drop_unread_rows(pruned)
    rows = {name: tensor.numpy() for name, tensor in case.rows(5, 9).items()}
    assert sum("read/layer.1.ffn" in output for node in pruned.graph.node for output in node.output) > 2
    one, other = (case._session(model).run(["logits"], rows)[0] for model in (pruned, whole))
    case.exact(case.rows(5, 9)).require(one)
    case.exact(case.rows(5, 9)).require(other)


def test_long_texts_lose_their_beginnings(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("llama")))
    delta = random_delta(backbone, "lora", "mood", settings={"rank": 2}, max_length=8)
    folder = bundled({"mood": delta}, backbone, tmp_path, "fp32")
    words = [f"w{5 + i}" for i in range(30)]
    with Runtime(folder, threads=1, cache=False) as runtime:
        long, end = runtime.predict("mood", [" ".join(words), " ".join(words[-6:])])  # beside [CLS] and [SEP]
    np.testing.assert_allclose(long.logits, end.logits, atol=1e-6)


def test_weights_that_are_no_numbers_are_said(tiny: Callable[..., Path], tmp_path: Path):
    damaged = Path(shutil.copytree(tiny("llama"), tmp_path / "damaged"))
    tensors = load_file(damaged / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, damaged / "model.safetensors", {"format": "pt"})
    backbone = open_backbone(str(damaged))
    with pytest.raises(VerificationFailed, match=r"its check rows give NaN .* take a sound checkpoint"):
        bundled({"mood": random_delta(backbone, "lora", "mood")}, backbone, tmp_path, "fp32")
    assert not (tmp_path / "bundle").exists()
