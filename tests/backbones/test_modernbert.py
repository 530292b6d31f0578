"""ModernBERT's config in two forms, its table of shapes, its graph, its windows and its sites, against transformers'."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from graphs import Both, build, read, require_files_own_weights, require_sites, require_transformers_table
from onnx import TensorProto
from tiny import SIZES, ragged, randomise

from edgepeft.backbones.base import Attention, Role
from edgepeft.backbones.config import config_of
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.packing import frequencies
from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import UsageError
from edgepeft.common.operators import product_flops
from edgepeft.graph.cost import count_run

SMALL = {"model_type": "modernbert", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
SMALL |= {"intermediate_size": 48, "vocab_size": 60, "max_position_embeddings": 64, "pad_token_id": 0}
FAR, NEAR = "full_attention", "sliding_attention"


BIASED = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), True)


@pytest.mark.parametrize(
    "config", [config_of("modernbert-base"), SMALL, SMALL | BIASED], ids=["base", "small", "biased"]
)
def test_the_tensor_table_is_transformers(config: dict[str, Any]):
    architecture = require_transformers_table(config)
    assert "layers.0.attn_norm" not in architecture.norms and not architecture.absent_biases


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [(160_000.0, None), (10_000.0, 64), (10_000.0, 64)]),  # what both versions take where nothing is said
        (
            {
                "global_attn_every_n_layers": 2,
                "global_rope_theta": 500,
                "local_rope_theta": 20.5,
                "local_attention": 10,
            },
            [(500.0, None), (20.5, 5), (500.0, None)],
        ),
        ({"local_rope_theta": None, "rope_scaling": None}, [(160_000.0, None), (160_000.0, 64), (160_000.0, 64)]),
        ({"global_attn_every_n_layers": 1}, [(160_000.0, None)] * 3),
        # As transformers 5 writes it.
        (
            {
                "layer_types": [NEAR, FAR, NEAR],
                "rope_parameters": {
                    FAR: {"rope_type": "default", "rope_theta": 500.0},
                    NEAR: {"rope_type": "default", "rope_theta": 20.0},
                },
                "local_attention": 7,
            },
            [(20.0, 3), (500.0, None), (20.0, 3)],
        ),
        ({"rope_parameters": {FAR: {"rope_type": "default"}}}, [(160_000.0, None), (10_000.0, 64), (10_000.0, 64)]),
    ],
)
def test_attention_is_read_from_configs_of_transformers_4_and_5(config: Any, expected: Any):
    assert read(SMALL | config).attention == tuple(Attention(*layer) for layer in expected)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 36, "num_attention_heads": 12}, "num_attention_heads is 12"),  # heads of three numbers
        ({"num_hidden_layers": 10**6}, "1000"),
        ({"pad_token_id": 60}, "pad_token_id is 60"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'; supported: gelu"),
        ({"norm_eps": 0}, "norm_eps"),
        ({"norm_bias": 1}, "norm_bias is 1"),
        ({"attention_bias": None}, "attention_bias is None"),
        ({"mlp_bias": "yes"}, "mlp_bias is 'yes'"),
        ({"local_attention": 0}, "local_attention as a positive int; found 0"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers as a positive int; found 0"),
        ({"global_rope_theta": "10000"}, "global_rope_theta .* found '10000'"),
        ({"local_rope_theta": -1}, "local_rope_theta .* found -1"),
        ({"global_rope_theta": math.inf}, "global_rope_theta .* found inf"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling has the rope_type 'linear'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling has the rope_type 'yarn'"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object; found 'yarn'"),
        ({"rope_parameters": {NEAR: {"rope_type": "dynamic"}}}, "rope_parameters has the rope_type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters has the rope_type 'yarn'"),
        ({"rope_parameters": {FAR: {"rope_theta": 0}}}, "rope_theta.* found 0"),
        ({"rope_parameters": {FAR: {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor"),
        ({"rope_parameters": {FAR: 3}}, "rope_parameters must be an object; found 3"),
        ({"layer_types": [FAR, "chunked_attention", FAR]}, "layer_types has 'chunked_attention'"),
        ({"layer_types": [FAR, [], FAR]}, r"layer_types has \[\]"),
        ({"layer_types": [FAR]}, "layer_types must name the attention of 3 layers"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; supported: cls, mean"),
        ({"classifier_pooling": ["cls"]}, r"classifier_pooling is \['cls'\]"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_its_key_and_value(changed: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        read(SMALL | changed)


@pytest.mark.parametrize(("said", "pooling"), [("cls", Pooling.FIRST), ("mean", Pooling.MEAN)])
def test_a_task_pools_as_the_models_own_classifier_does(tiny: Callable[..., Path], said: str, pooling: Pooling):
    backbone = open_backbone(str(tiny("modernbert", classifier_pooling=said)))
    assert (backbone.pooling, backbone.head) == (pooling, "linear")


def test_a_sentence_transformers_folder_that_says_cls_outweighs_a_config_that_says_mean(tiny, tmp_path):
    folder = shutil.copytree(tiny("modernbert", classifier_pooling="mean"), tmp_path / "cls")  # as gte-modernbert's is
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert open_backbone(str(folder)).pooling is Pooling.FIRST


@pytest.mark.parametrize("theta", [500.0, 10_000.0, 160_000.0])
@pytest.mark.parametrize("width", [8, 64])
def test_frequencies_are_pytorchs_to_the_last_bit(theta: float, width: int):
    expected = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)
    np.testing.assert_array_equal(frequencies(theta, width), expected.numpy())


VARIANTS: dict[str, dict[str, Any]] = {
    "three to each side": {},
    "itself alone": {"local_attention": 1, "hidden_activation": "relu"},
    "blocks of 40": {"local_attention": 80, "num_hidden_layers": 4, "global_attn_every_n_layers": 3},
    "wide heads": {"num_attention_heads": 2, "local_attention": 6, "local_rope_theta": 50.0},
    "global alone": {"global_attn_every_n_layers": 1},
    "biased": BIASED,
}
# Blocks are of 32 places, of 40 in one variant: below, at and past the end of one block and of whole blocks.
SHAPES = [(1, 1), (5, 7), (2, 128), (2, 129), (1, 160), (2, 161), (1, 210)]
RELATIVE = 1e-5


@pytest.mark.numerical
@pytest.mark.parametrize("sizes", VARIANTS.values(), ids=VARIANTS)
def test_states_equal_transformers_on_ragged_rows(tiny: Callable[..., Path], sizes: dict[str, Any]):
    both = Both(tiny("modernbert", max_position_embeddings=512, **sizes))
    for seed, (batch, length) in enumerate(SHAPES):
        rows = ragged(batch, length, SIZES["modernbert"], seed)
        both.assert_equal(rows)
        found, exact = both.ours(rows)["last_hidden_state"], both.exact(rows).value
        real = rows["attention_mask"].astype(bool)
        assert np.abs(found[real] - exact[real]).max() <= RELATIVE * np.abs(exact[real]).max()


def test_states_equal_transformers_eager_attention_in_float32(tiny: Callable[..., Path]):
    both = Both(tiny("modernbert", max_position_embeddings=512))
    eager = load_model(both.backbone, "eager")
    for batch, length in [(5, 9), (3, 150)]:
        rows = ragged(batch, length, SIZES["modernbert"])
        with torch.no_grad():
            inputs = {name: torch.from_numpy(rows[name]) for name in both.backbone.architecture.inputs}
            theirs = eager(**inputs).last_hidden_state.numpy()
        real, error = rows["attention_mask"].astype(bool), both.exact(rows).error
        np.testing.assert_allclose(both.ours(rows)["last_hidden_state"][real], theirs[real], rtol=0, atol=2 * error)


@pytest.mark.parametrize("length", [9, 200])
def test_padding_on_the_left_and_holes_in_the_mask_are_masked_tokens_too(tiny: Callable[..., Path], length: int):
    source = np.random.default_rng(1)
    rows = {"input_ids": source.integers(5, 60, (4, length))}
    mask = (source.random((4, length)) > 0.4).astype(np.int64)
    mask[0, : length // 2], mask[1, 1 : length - 1], mask[2, :-1] = 0, 0, 0  # nothing for two blocks and more
    mask[:, -1] = 1
    Both(tiny("modernbert", max_position_embeddings=512)).assert_equal(rows | {"attention_mask": mask})


def test_a_batch_gives_each_row_what_it_has_alone_though_its_blocks_are_others(tiny: Callable[..., Path]):
    both = Both(tiny("modernbert", max_position_embeddings=512))
    rows = ragged(4, 170, SIZES["modernbert"], seed=3)
    together, error = both.ours(rows)["pooled.mean"], both.exact(rows).error
    for i, n in enumerate(rows["attention_mask"].sum(1)):
        alone = both.ours({name: array[i : i + 1, :n] for name, array in rows.items()})["pooled.mean"]
        np.testing.assert_allclose(together[i], alone[0], rtol=0, atol=2 * error)


def test_local_layers_cost_what_they_look_at(tiny: Callable[..., Path]):
    """Products of attention, counted on the graph: 3 x 32 keys for each place of a whole block, not all of the row."""
    backbone = open_backbone(str(tiny("modernbert", max_position_embeddings=2048)))
    architecture, model = backbone.architecture, build(backbone)

    def products(length: int) -> int:
        rows = {name: np.ones((1, length), np.int64) for name in architecture.inputs}
        return product_flops(count_run(model, rows).works)

    def expected(length: int, keys: int) -> int:
        matrices = 2 * length * sum(math.prod(s) for n, s in architecture.tensors.items() if ".W" in n)
        pooling = 2 * length * 32
        return matrices + pooling + 4 * 32 * (2 * length * length + length * keys)  # layers 0 and 2 are global

    assert products(96) == expected(96, 96)
    assert products(128) == expected(128, 128)
    assert products(160) == expected(160, 96)
    assert products(1024) == expected(1024, 96)


def test_every_site_its_input_and_residual_are_what_the_modules_see(tiny: Callable[..., Path]):
    n_layer_sites = 3 * (11 + 7 + 2) - 1  # values, inputs of linear layers, residuals; the first layer has no norm
    others = 3  # embeddings before and past their norm, and the last norm's
    assert require_sites(Both(tiny("modernbert")), ragged(4, 11, SIZES["modernbert"])) == n_layer_sites + others


def test_query_key_and_value_are_thirds_of_one_layer_and_the_gate_half_of_another():
    architecture = read(SMALL)
    columns = {site.role: (site.reads, site.columns) for site in architecture.sites if site.layer == 1}
    assert columns[Role.QUERY] == ("layers.1.attn.Wqkv", (0, 32))
    assert columns[Role.KEY] == ("layers.1.attn.Wqkv", (32, 64))
    assert columns[Role.VALUE] == ("layers.1.attn.Wqkv", (64, 96))
    assert columns[Role.FFN_GATE] == ("layers.1.mlp.Wi", (0, 48))
    assert columns[Role.FFN_GATED] == ("layers.1.mlp.Wi", (48, 96))


@pytest.mark.parametrize("whole", [False, True])
def test_weights_are_the_unchanged_files_own(tiny: Callable[..., Path], tmp_path: Path, whole: bool):
    """Of the base model, and of a whole one, whose names have a prefix."""
    folder = tiny("modernbert")
    if whole:
        folder, config = tmp_path, transformers.AutoConfig.for_model("modernbert", **SIZES["modernbert"])
        randomise(transformers.AutoModelForMaskedLM.from_config(config)).save_pretrained(folder)
        Both(folder).assert_equal(ragged(3, 8, SIZES["modernbert"]))
    model = require_files_own_weights(folder, "model." if whole else "")
    inline = [i for i in model.graph.initializer if i.data_location != TensorProto.EXTERNAL]
    assert all(np.prod(i.dims, dtype=int) <= 4 for i in inline)
    assert model.graph.ByteSize() < 200_000
