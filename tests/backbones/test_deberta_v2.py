"""DeBERTa's config, its table of shapes, its rows of distances, its graph and its sites, against transformers'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from graphs import Both, read, require_files_own_weights, require_sites, require_transformers_table
from onnx import TensorProto
from tiny import SIZES, ragged, randomise
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from edgepeft.backbones.base import Distances, Role
from edgepeft.backbones.config import config_of
from edgepeft.backbones.deberta_v2 import rows_of_distances
from edgepeft.backbones.packing import LONGER
from edgepeft.common.errors import UsageError

MODEL_TYPE = "deberta-v2"
SMALL = {"model_type": MODEL_TYPE} | SIZES[MODEL_TYPE]


APART = {"position_biased_input": True, "share_att_key": False}  # as transformers has it where nothing is said


@pytest.mark.parametrize("config", [config_of("deberta-v3-base"), SMALL, SMALL | APART], ids=["base", "small", "apart"])
def test_the_tensor_table_is_transformers(config: dict[str, Any]):
    require_transformers_table(config)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (8, 24, True)),
        ({"max_relative_positions": -1}, (8, 64, True)),  # as many as positions
        ({"position_buckets": -1}, (24, 24, False)),
        ({"pos_att_type": "P2C | c2p"}, (8, 24, True)),
    ],
)
def test_distances_are_read_from_the_config(changed: Any, expected: Any):
    assert read(SMALL | changed).distances == Distances(*expected)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3; supported: 0"),  # v2-xlarge
        ({"relative_attention": False}, "relative_attention is False; supported: True"),
        ({"relative_attention": None}, "relative_attention is None"),
        ({"share_att_key": None}, "share_att_key is None"),
        ({"pos_att_type": "c2p"}, "pos_att_type is 'c2p'"),
        ({"pos_att_type": ["c2p", 2]}, r"pos_att_type is \['c2p', 2\]"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none'"),
        ({"position_biased_input": 1}, "position_biased_input is 1"),
        ({"type_vocab_size": 2}, "type_vocab_size is 2; supported: 0"),
        ({"embedding_size": 16}, "embedding_size is 16; supported: 32"),
        ({"attention_head_size": 16}, "attention_head_size is 16; supported: 8"),
        ({"position_buckets": 7}, "position_buckets is 7; supported: even numbers from 4 on, less than 46"),
        ({"position_buckets": 46}, "position_buckets is 46"),
        ({"position_buckets": 0}, "position_buckets as a positive int; found 0"),
        ({"max_relative_positions": 0}, "max_relative_positions as a positive int; found 0"),
        ({"max_relative_positions": "24"}, "max_relative_positions as a positive int; found '24'"),
        ({"hidden_size": 30}, "not a multiple"),
        ({"hidden_act": "silu"}, "'silu'"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_by_its_key_and_value(changed: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=said):
        read(SMALL | changed)


def test_a_key_that_is_left_out_has_transformers_own_default():
    with pytest.raises(UsageError, match="relative_attention is False"):
        read({key: value for key, value in SMALL.items() if key != "relative_attention"})
    silent = read({key: value for key, value in SMALL.items() if key not in APART})
    assert silent == read(SMALL | APART) != read(SMALL)


@pytest.mark.parametrize(("span", "furthest"), [(256, 512), (8, 24), (4, 100), (320, 2000)])
def test_the_rows_of_distances_are_transformers(span: int, furthest: int):
    distances = torch.arange(1, furthest + 100)
    expected = torch.clamp(make_log_bucket_position(distances, span, furthest).long(), max=span)
    found = np.minimum(rows_of_distances(span, furthest), span)
    np.testing.assert_array_equal(found, expected[:furthest].numpy())
    assert (expected[furthest:] == found[-1]).all()  # beyond, none is told apart


VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "every distance its own": {"position_buckets": -1, "max_relative_positions": 7},
    "wide heads": {"num_attention_heads": 2, "hidden_act": "relu"},
    "places and projections of their own": APART,
}
SHAPES = [(1, 1), (1, 2), (5, 7), (3, 30), (2, 61)]  # distances of 24 and more are one


@pytest.mark.numerical
@pytest.mark.parametrize("sizes", VARIANTS.values(), ids=VARIANTS)
def test_states_equal_transformers_on_ragged_rows(tiny: Callable[..., Path], sizes: dict[str, Any]):
    both = Both(tiny(MODEL_TYPE, **sizes))
    for seed, (batch, length) in enumerate(SHAPES):
        both.assert_equal(ragged(batch, length, SIZES[MODEL_TYPE], seed))


def test_more_rows_than_a_byte_counts_are_told_apart(tiny: Callable[..., Path]):
    both = Both(tiny(MODEL_TYPE, max_position_embeddings=1024, position_buckets=600, max_relative_positions=-1))
    both.assert_equal(ragged(2, 300, SIZES[MODEL_TYPE]))  # each of 299 distances has a row of its own


def test_padding_on_the_left_and_holes_in_the_mask_are_masked_tokens_too(tiny: Callable[..., Path]):
    source = np.random.default_rng(1)
    mask = (source.random((4, 30)) > 0.4).astype(np.int64)
    mask[0, :15], mask[1, 1:29], mask[2, :-1] = 0, 0, 0
    mask[:, -1] = 1
    Both(tiny(MODEL_TYPE)).assert_equal({"input_ids": source.integers(5, 60, (4, 30)), "attention_mask": mask})


def test_a_batch_gives_each_row_what_it_has_alone(tiny: Callable[..., Path]):
    both = Both(tiny(MODEL_TYPE))
    rows = ragged(4, 40, SIZES[MODEL_TYPE], seed=3)
    together, error = both.ours(rows)["pooled.mean"], both.exact(rows).error
    for i, n in enumerate(rows["attention_mask"].sum(1)):
        alone = both.ours({name: array[i : i + 1, :n] for name, array in rows.items()})["pooled.mean"]
        np.testing.assert_allclose(together[i], alone[0], rtol=0, atol=2 * error)


def test_every_site_its_input_and_residual_are_what_the_modules_see(tiny: Callable[..., Path]):
    n_layer_sites = 2 * (8 + 7 + 2)  # values, what linear layers and the activation read, residuals
    others = 2  # the words', and what the first layer reads
    rows = ragged(4, 11, SIZES[MODEL_TYPE])
    assert require_sites(Both(tiny(MODEL_TYPE)), rows) == n_layer_sites + others
    assert require_sites(Both(tiny(MODEL_TYPE, **APART)), rows) == n_layer_sites + others + 1  # the places'


def test_queries_and_keys_alone_have_rows_of_distances():
    architecture = read(SMALL)
    longer = {site for site, value in architecture.bindings.items() if value.endswith(LONGER)}
    names = [site.name for site in architecture.sites_of(Role.QUERY, Role.KEY)]
    assert longer == {*names, *(f"{name}.input" for name in names)}


@pytest.mark.parametrize("whole", [False, True])
def test_weights_are_the_unchanged_files_own(tiny: Callable[..., Path], tmp_path: Path, whole: bool):
    """Of the base model, and of a whole one, whose names have a prefix."""
    folder = tiny(MODEL_TYPE)
    if whole:
        folder, config = tmp_path, transformers.AutoConfig.for_model(MODEL_TYPE, **SIZES[MODEL_TYPE])
        randomise(transformers.AutoModelForTokenClassification.from_config(config)).save_pretrained(folder)
        Both(folder).assert_equal(ragged(3, 8, SIZES[MODEL_TYPE]))
    model = require_files_own_weights(folder, "deberta." if whole else "")
    inline = [i for i in model.graph.initializer if i.data_location != TensorProto.EXTERNAL]
    assert all(np.prod(i.dims, dtype=int) <= 4 or len(i.raw_data) % 64 == 0 for i in inline)


def test_rows_of_distances_that_have_projections_of_their_own_are_no_states_of_tokens(tiny: Callable[..., Path]):
    """Tuning keeps states of tokens, and takes what ends so for none; see ``tuning/activation_cache.py``."""
    graph = require_files_own_weights(tiny(MODEL_TYPE, **APART), "").graph
    made = [node.output[0] for node in graph.node if any("pos_" in name and "bias" in name for name in node.input)]
    assert len(made) == 2 * 2 and all(value.endswith(LONGER) for value in made)
