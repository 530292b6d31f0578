"""Prefix tuning of decoders beside PEFT's own: logits, texts and labels, in and out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from deltas import TEXTS, random_delta, saved
from tiny import SIZES, ragged
from tolerance import exact_logits, exactly

from edgepeft.backbones.hooks import load_model, padded_in_front
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.common.errors import BundleError, UsageError
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

peft = pytest.importorskip("peft")
P, STEPS = 3, 10
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Heads that are normed, and bases of positions by layer; those of 16 numbers are lowered, those of 10 not.
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"head_dim": 16, "rope_scaling": {**_LLAMA3, "original_max_position_embeddings": 16}}),
    ("qwen3", {"head_dim": 16}),
    ("gemma3_text", {}),
]


@pytest.fixture(params=MODELS, ids=[name for name, _ in MODELS])
def backbone(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> Backbone:
    model_type, sizes = request.param
    return open_backbone(str(tiny(model_type, **sizes)))


def theirs(backbone: Backbone, folder: Path, of: Any, task: str, **more: Any) -> Any:
    """PEFT's model with random vectors, also saved."""
    base = of.from_pretrained(backbone.folder, attn_implementation="eager", **more)
    torch.manual_seed(0)
    model = peft.get_peft_model(base, peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=P)).eval()
    if more:
        model.base_model.score.weight.data.normal_()
    model.save_pretrained(folder)
    return model


def rows(backbone: Backbone) -> dict[str, np.ndarray]:
    found = ragged(5, 7, SIZES[backbone.architecture.model_type])
    return {name: found[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"labels": ("no", "yes")}, "needs no labels, for text has none; found no, yes. Leave --labels out"),
        ({"kind": "classification"}, "--kind classification is a classification; .* answers by text that it writes"),
    ],
)
def test_what_writes_text_is_imported_as_nothing_else(
    tiny: Callable[..., Path], tmp_path: Path, asked: dict[str, Any], message: str
):
    backbone, folder = open_backbone(str(tiny("llama"))), tmp_path / "theirs"
    theirs(backbone, folder, transformers.AutoModelForCausalLM, "CAUSAL_LM")
    with pytest.raises(UsageError, match=message):
        importer_of(folder).read(folder, backbone, ImportRequest("t", **asked, max_length=20))


def test_what_peft_trained_gives_its_logits_and_its_texts(backbone: Backbone, tmp_path: Path):
    model = theirs(backbone, tmp_path / "theirs", transformers.AutoModelForCausalLM, "CAUSAL_LM")
    delta = importer_of(tmp_path / "theirs").read(tmp_path / "theirs", backbone, ImportRequest("t", max_length=20))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert delta.n_parameters() == {"delta": trained, "head": 0}
    ids = torch.from_numpy(rows(backbone)["input_ids"][:1])  # the full row
    with torch.no_grad():
        expected = model(input_ids=ids).logits[:, -3:].numpy()
    read = ids[:, :-2]  # the rest is written
    given = {"input_ids": read, "attention_mask": torch.ones_like(read), "decoder_input_ids": ids[:, -3:]}
    exact_logits(delta, load_model(backbone, "eager"), given).require(expected)

    export_bundle(backbone, [saved(delta, tmp_path / "delta")], tmp_path / "bundle", texts=TEXTS[:20], weights="fp32")
    in_front = padded_in_front({name: torch.from_numpy(values) for name, values in rows(backbone).items()})
    with torch.no_grad():
        texts = model.generate(**in_front, max_new_tokens=STEPS, do_sample=False, eos_token_id=None)
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        found = runtime.generator.write("t", rows(backbone), Decoding(STEPS, ends=False))
        lowered = runtime.generator.session("t").encoder is None
    assert lowered == (backbone.architecture.model_type != "gemma3_text")
    assert [list(one.tokens) for one in found] == texts[:, in_front["input_ids"].shape[1] :].tolist()


def test_what_peft_trained_gives_its_labels(backbone: Backbone, tmp_path: Path):
    of = transformers.AutoModelForSequenceClassification
    model = theirs(backbone, tmp_path / "theirs", of, "SEQ_CLS", num_labels=3).double()
    delta = importer_of(tmp_path / "theirs").read(tmp_path / "theirs", backbone, ImportRequest("t", max_length=20))
    export_bundle(backbone, [saved(delta, tmp_path / "delta")], tmp_path / "bundle", texts=TEXTS[:20], weights="fp32")
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        found = runtime.logits("t", rows(backbone))
    for i, (ids, mask) in enumerate(zip(*rows(backbone).values(), strict=True)):
        alone = torch.from_numpy(ids[mask == 1])[None]
        given = {"input_ids": alone, "attention_mask": torch.ones_like(alone)}
        with torch.no_grad():
            exactly(lambda given=given: {"logits": model(**given).logits[0]})["logits"].require(found[i])


@pytest.mark.parametrize("projection", [0, 4])
def test_ours_gives_its_logits_in_peft_and_comes_back(backbone: Backbone, tmp_path: Path, projection: int):
    settings = {"length": P, "projection": projection}
    delta = random_delta(backbone, "prefix", "t", None, settings=settings, head="text").eval()
    Peft().write(delta, backbone, tmp_path / "peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(backbone.folder, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    ids = torch.from_numpy(rows(backbone)["input_ids"][:1])
    with torch.no_grad():
        expected = model(input_ids=ids).logits[:, -1:].numpy()
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :1]}
    back = importer_of(tmp_path / "peft").read(tmp_path / "peft", backbone, ImportRequest("again", max_length=20))
    for each in (delta, back):
        exact_logits(each, load_model(backbone, "eager"), given).require(expected)


def test_vectors_of_another_width_are_refused(tiny: Callable[..., Path], tmp_path: Path):
    wide = open_backbone(str(tiny("llama", num_key_value_heads=4)))
    theirs(wide, tmp_path / "theirs", transformers.AutoModelForCausalLM, "CAUSAL_LM")
    with pytest.raises(BundleError, match="vectors of width 32 and 2 layers; the backbone's are 16 and 2"):
        importer_of(tmp_path / "theirs").read(
            tmp_path / "theirs", open_backbone(str(tiny("llama"))), ImportRequest("t")
        )
