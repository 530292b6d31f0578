"""Decoders of Llama's kind: configs, tensors, both graphs and deltas of each model type, against transformers' and PEFT's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from deltas import TEXTS, random_delta, saved
from graphs import read, session
from tiny import DECODERS, SIZES, ragged, write_model
from tolerance import exact_logits, exactly
from writing import Bare

from edgepeft.backbones.config import rope_of
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.text import BEFORE, LOGITS
from edgepeft.common.errors import UsageError
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.generation import TextState
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle
from edgepeft.training.interop.base import ImportRequest, importer_of
from edgepeft.training.interop.peft import Peft

LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((model_type, {}) for model_type in DECODERS),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16}, "rope_theta": 500.0}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "num_key_value_heads": 4}),
    ("qwen3", {"num_key_value_heads": 1, "rope_theta": 1_000_000.0}),
    ("llama", {"head_dim": 16}),  # is lowered, as are all of the usual sizes
    ("gemma3_text", {"head_dim": 16, "query_pre_attn_scalar": 16}),
]
NAMES = [f"{model_type}-{i}" for i, (model_type, _) in enumerate(VARIANTS)]


@pytest.mark.parametrize(("model_type", "sizes"), VARIANTS, ids=NAMES)
def test_the_tensor_table_is_transformers(model_type: str, sizes: dict[str, Any]):
    config = {"model_type": model_type, **SIZES[model_type], **sizes}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    architecture = read(config)
    assert dict(architecture.tensors) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert set(architecture.norms) == {n for n, module in model.named_modules() if "Norm" in type(module).__name__}


@pytest.mark.numerical
@pytest.mark.parametrize(("model_type", "sizes"), VARIANTS, ids=NAMES)
def test_logits_of_ragged_rows_and_of_rows_padded_in_front_are_transformers(
    tiny: Callable[..., Path], model_type: str, sizes: dict[str, Any]
):
    """Of a target's tokens, each row beside transformers' own pass over the row and its target, without padding."""
    backbone = open_backbone(str(tiny(model_type, **sizes)))
    model = load_model(backbone, "eager").double()
    graph = backbone.architecture.teaching_graph(backbone.checkpoint)
    run = session(graph, backbone.folder)
    for seed, (batch, length, n) in enumerate([(1, 1, 1), (1, 7, 3), (5, 9, 4)]):
        rows = ragged(batch, length, SIZES[model_type], seed)
        rows.pop("token_type_ids")
        written = np.random.default_rng(seed).integers(5, 60, (batch, n))
        in_front = {name: np.flip(values, 1).copy() for name, values in rows.items()}
        for given in (rows, in_front):
            found = run.run([LOGITS], {**given, BEFORE: written})[0]
            for i in range(batch):
                prompt = given["input_ids"][i][given["attention_mask"][i] == 1]
                ids = torch.from_numpy(np.concatenate([prompt, written[i, 1:]]))[None]
                with torch.no_grad():
                    exact = exactly(lambda ids=ids, n=n: {"logits": model(input_ids=ids).logits[0, -n:]})["logits"]
                exact.require(found[i])


@pytest.fixture(scope="module", params=[*zip(VARIANTS, NAMES, strict=True)], ids=NAMES)
def bare(request: pytest.FixtureRequest, tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bare:
    (model_type, sizes), _ = request.param
    return Bare(tiny(model_type, **sizes), tmp_path_factory.mktemp("bare"))


@pytest.mark.parametrize("decoding", [Decoding(12), Decoding(12, beams=4), Decoding(9, beams=3, length_penalty=2.0)])
def test_ragged_rows_are_written_as_transformers_writes_them(bare: Bare, decoding: Decoding):
    for seed, shape in enumerate([(1, 5), (6, 9), (3, 1)]):
        rows = ragged(*shape, SIZES[bare.backbone.architecture.model_type], seed)
        bare.require_same(rows, decoding)


@pytest.mark.parametrize("decoding", [Decoding(12, no_repeat_ngram=2), Decoding(9, beams=3, no_repeat_ngram=1)])
def test_no_n_gram_of_a_prompt_is_written_again_as_transformers_counts_them(bare: Bare, decoding: Decoding):
    """Row by row: to transformers the padding in front of a row is a token like others."""
    rows = ragged(3, 9, SIZES[bare.backbone.architecture.model_type])
    for ids, mask in zip(rows["input_ids"], rows["attention_mask"] != 0, strict=True):
        bare.require_same(
            {"input_ids": ids[None, mask], "attention_mask": np.ones((1, mask.sum()), np.int64)}, decoding
        )


METHODS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 2},
    "prompt-t": {"length": 3},
    "pfeiffer": {"bottleneck": 4},
    "ia3": {},
    "bitfit": {},
    "spartan": {},
    "prefix": {"length": 3},
    "mam": {"length": 3, "bottleneck": 4, "projection": 5},
}


@pytest.mark.parametrize(
    ("method", "model_type"), [*zip(METHODS, [*DECODERS, "llama", "qwen3", "gemma3_text"], strict=True)]
)
def test_a_delta_writes_what_it_writes_under_transformers_hooks(
    tiny: Callable[..., Path], tmp_path: Path, method: str, model_type: str
):
    """A step is compared for each of 64 rows, log-probabilities within rounding: see ``deploy.verify``."""
    lowered = model_type not in ("qwen3", "gemma3_text")  # whose heads have 10 numbers here
    backbone = open_backbone(str(tiny(model_type, **({"head_dim": 16} if lowered else {}))))
    delta = random_delta(backbone, method, "t", None, settings=METHODS[method], head="text")
    export_bundle(backbone, [saved(delta, tmp_path / "delta")], tmp_path / "bundle", texts=TEXTS[:20], weights="fp32")
    task = json.loads((tmp_path / "bundle" / "edgepeft.json").read_text())["tasks"]["t"]
    assert task["verification"]["max_abs_difference"] < task["verification"]["tolerance"]
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        assert (runtime.generator.session("t").encoder is None) == lowered
    rows = ragged(4, 6, SIZES[model_type])
    inputs = {name: torch.from_numpy(rows[name]) for name in ("input_ids", "attention_mask")}
    before = torch.from_numpy(rows["input_ids"][:, :2].copy())
    plain = random_delta(backbone, "lora", "none", None, settings={"rank": 2}, head="text").eval()
    for parameter in plain.parameters():
        parameter.data.zero_()
    model = load_model(backbone, "eager")
    moved, bare = (
        each.logits(model, {**inputs, "decoder_input_ids": before}).detach() for each in (delta.eval(), plain)
    )
    assert (moved - bare).abs().max() > 0.1  # the delta moves the logits, or nothing would be compared


def test_a_delta_goes_to_peft_and_comes_back_with_the_same_logits(tiny: Callable[..., Path], tmp_path: Path):
    peft = pytest.importorskip("peft")
    backbone = open_backbone(str(tiny("qwen2")))
    delta = random_delta(backbone, "lora", "t", None, settings={"rank": 3}, head="text").eval()
    Peft().write(delta, backbone, tmp_path / "peft")
    card = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert card["task_type"] == "CAUSAL_LM"
    rows = ragged(3, 6, SIZES["qwen2"])
    ids = torch.from_numpy(rows["input_ids"][:1])  # the full row
    model = transformers.AutoModelForCausalLM.from_pretrained(backbone.folder, attn_implementation="eager")
    theirs = peft.PeftModel.from_pretrained(model, tmp_path / "peft").eval()
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits[:, -1:].numpy()
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :1]}
    exact_logits(delta, load_model(backbone, "eager"), given).require(expected)
    back = importer_of(tmp_path / "peft").read(tmp_path / "peft", backbone, ImportRequest("again"))
    assert back.card.writes and back.card.method == "lora"
    exact_logits(back, load_model(backbone, "eager"), given).require(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "must divide"),
        ({"head_dim": 7}, "pairs"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "default, linear, llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor as a positive number"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object; found 'yarn'"),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16, "high_freq_factor": 1.0}},
            "low_freq_factor 1.0 and high_freq_factor 1.0, no greater",
        ),
        ({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"hidden_act": "relu2"}, "supported: silu"),
        ({"eos_token_id": 60}, "beyond its vocabulary"),
        ({"final_logit_softcapping": 30.0}, "not capped"),
        ({"num_hidden_layers": 4000}, "at most 1000"),
    ],
)
def test_a_config_of_another_kind_is_refused_by_name(changes: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        read({"model_type": "llama", **SIZES["llama"], **changes})


@pytest.mark.parametrize("types", [3, "full_attention", ["full_attention"], ["full_attention", "linear_attention"]])
def test_layers_of_other_kinds_of_attention_are_refused(types: Any):
    sizes = {"num_hidden_layers": 2, "layer_types": types}
    with pytest.raises(UsageError, match="the config's layer_types"):
        read({"model_type": "gemma3_text", **SIZES["gemma3_text"], **sizes})


def test_rope_parameters_that_are_not_divided_by_kinds_of_layers_are_those_of_layers_that_see_all():
    flat = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    config, known = {"rope_parameters": flat}, {"scaled": ("linear",)}
    assert rope_of(config, kind="full_attention", **known) == flat
    plain = {"rope_type": "default", "rope_theta": 10_000.0}
    assert rope_of(config, "rope_local_base_freq", kind="sliding_attention", **known) == plain


def test_a_config_that_says_nothing_of_the_activation_has_transformers_default():
    silent = {name: value for name, value in SIZES["gemma3_text"].items() if "activation" not in name}
    expected = transformers.AutoConfig.for_model("gemma3_text").hidden_activation
    assert read({"model_type": "gemma3_text", **silent}).activation == expected == "gelu_pytorch_tanh"


def test_a_window_bounds_prompt_and_answer(tiny: Callable[..., Path]):
    assert open_backbone(str(tiny("mistral"))).architecture.max_length == 56
    assert open_backbone(str(tiny("llama"))).architecture.max_length == 64


def test_eight_bits_are_rounded_in_groups_and_a_table_of_words_too(tmp_path: Path):
    """The weights that a bundle stands for are within half a step of each group of 32; the graph multiplies those."""
    sizes = {"hidden_size": 64, "vocab_size": 1100, "intermediate_size": 96, "tie_word_embeddings": True}
    folder = write_model(tmp_path / "model", "llama", **sizes)
    (tmp_path / "bundle").mkdir()
    bare = Bare(folder, tmp_path / "bundle", "int8")
    stored, exact = bare.runtime.bundle.checkpoint, bare.backbone.checkpoint
    rounded = {}
    for name, shape in bare.backbone.architecture.tensors.items():
        weight, found = exact.read(name), stored.read(name)
        rounded[name] = torch.from_numpy(np.array(found))
        if len(shape) == 1:
            np.testing.assert_array_equal(found, weight)
            continue
        groups = np.abs(weight).reshape(-1, 32)
        step = np.repeat(groups.max(1) / 127, 32).reshape(shape)
        assert np.all(np.abs(found - weight) <= 0.5001 * step) and np.abs(found - weight).max() > 0
    bare.model.load_state_dict(rounded, strict=False)  # transformers with what the bundle stands for
    rows = ragged(3, 9, SIZES["llama"])
    state = TextState(bare.runtime.generator.session(None), rows)
    decoder = bare.backbone.architecture.decoder
    assert decoder is not None
    found = state.step(decoder.starts(rows["input_ids"], rows["attention_mask"]), np.arange(3))
    with torch.no_grad():
        for i, length in enumerate(rows["attention_mask"].sum(1)):
            ids = torch.from_numpy(rows["input_ids"][i : i + 1, :length])
            expected = bare.model(input_ids=ids).logits[0, -1].numpy()
            # Activations have 8 bits too, in groups of their own: 2 ** -8 of what is summed, in each of 15 products.
            assert np.abs(found[i] - expected).max() < 15 * 2**-8 * np.abs(expected).max()


def test_tokens_of_a_request_are_counted_with_the_tasks_source(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("llama")))
    template = {"source": "w9 {text} w10 w11"}
    delta = random_delta(backbone, "lora", "t", None, settings={"rank": 2}, head="text", template=template)
    export_bundle(backbone, [saved(delta, tmp_path / "delta")], tmp_path / "bundle", texts=TEXTS[:8], weights="fp32")
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        assert runtime.n_tokens("t", ["w5 w6", "w5"]) == (2 + 3 + 2) + (1 + 3 + 2)  # [CLS] and [SEP] are two each
