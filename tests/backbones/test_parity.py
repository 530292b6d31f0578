"""The built graph against transformers' own eager model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import Both
from tiny import MODEL_TYPES, PRE_NORM, ROTARY, SAME_BUT_FOR_NAMES, SIZES, known, ragged, write_model

MINILM = {"hidden_size": 24, "num_attention_heads": 12, "num_hidden_layers": 3, "layer_norm_eps": 1e-12}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((model_type, {}) for model_type in (*MODEL_TYPES, *SAME_BUT_FOR_NAMES, *PRE_NORM, "roformer", *known(*ROTARY))),
    ("bert", MINILM),
    ("bert", {"hidden_act": "relu"}),
    ("bert", {"hidden_act": "gelu_new"}),
    ("bert", {"type_vocab_size": 1}),
    ("bert", {"type_vocab_size": 4, "pad_token_id": 3}),
    ("roberta", {"type_vocab_size": 2}),
    ("electra", {"embedding_size": 20}),
    ("distilbert", {"activation": "relu"}),
    ("albert", {"embedding_size": 32, "num_hidden_groups": 1}),  # projected all the same
    ("ernie", {"use_task_id": False}),
    ("roformer", {"embedding_size": 32}),
    ("rembert", {"input_embedding_size": 32}),
    *((model_type, {"hidden_act": "gelu_new"}) for model_type in known("nomic_bert")),
    *((model_type, {"type_vocab_size": n}) for model_type in known("gte") for n in (0, 3)),
]
SHAPES = [(1, 1), (1, 5), (3, 7), (33, 17), (4, 62)]


@pytest.mark.numerical
@pytest.mark.parametrize(("model_type", "sizes"), VARIANTS, ids=lambda value: str(value)[:40])
def test_hidden_states_equal_transformers_on_ragged_rows(tiny: Callable[..., Path], model_type: str, sizes: Any):
    both = Both(tiny(model_type, **sizes))
    config = {**SIZES[model_type], **sizes}
    for seed, (batch, length) in enumerate(SHAPES):
        both.assert_equal(ragged(batch, length, config, seed))


@pytest.mark.parametrize("model_type", ["bert", "roberta", "mpnet", "roformer", *known(*ROTARY)])
def test_hidden_states_equal_transformers_at_512_tokens(tmp_path: Path, model_type: str):
    sizes = {"max_position_embeddings": 514}
    both = Both(write_model(tmp_path / "m", model_type, **sizes))
    both.assert_equal(ragged(2, 512, SIZES[model_type] | sizes))


def test_attention_of_the_tiny_models_is_not_flat(tiny: Callable[..., Path]):
    both = Both(tiny("bert"))
    rows = ragged(2, 9, SIZES["bert"])
    import torch

    both.model.set_attn_implementation("eager")
    with torch.no_grad():
        inputs = {name: torch.from_numpy(rows[name]) for name in both.backbone.architecture.inputs}
        attention = both.model(**inputs, output_attentions=True).attentions
    full_row = torch.stack(attention)[:, 0]
    assert full_row.max(-1).values.mean() > 2.5 / 9  # flat attention would give each of nine tokens a ninth


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_padding_on_the_left_and_holes_in_the_mask_are_masked_tokens_too(tiny: Callable[..., Path], model_type: str):
    rows = ragged(4, 9, SIZES[model_type])
    rows["attention_mask"] = np.array(
        [[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1, 1, 0, 0], [0] * 8 + [1], [1] * 9]
    )
    rows["input_ids"] = np.random.default_rng(1).integers(5, 60, (4, 9))
    Both(tiny(model_type)).assert_equal(rows)


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "mpnet"])
def test_roberta_counts_positions_from_ids_that_are_not_padding_and_never_from_the_mask(
    tiny: Callable[..., Path], model_type: str
):
    both = Both(tiny(model_type))
    rows = ragged(3, 8, SIZES[model_type])
    rows["attention_mask"][:] = 1
    rows["input_ids"][:] = np.random.default_rng(2).integers(5, 60, (3, 8))
    rows["input_ids"][0, 2] = rows["input_ids"][1, 0] = 1  # pad ids at places that the mask calls real
    rows["attention_mask"][2, 1] = 0  # and a masked id that is no padding, which counts
    both.assert_equal(rows)


@pytest.mark.parametrize("model_type", ["bert", "electra", "distilbert"])
def test_bert_takes_positions_from_the_column_whatever_the_ids(tiny: Callable[..., Path], model_type: str):
    rows = ragged(3, 8, SIZES[model_type])
    rows["attention_mask"][:] = 1
    rows["input_ids"][:] = np.random.default_rng(2).integers(5, 60, (3, 8))
    rows["input_ids"][0, 2] = 0
    Both(tiny(model_type)).assert_equal(rows)


def test_token_types_reach_the_embedding(tiny: Callable[..., Path]):
    both = Both(tiny("bert"))
    rows = ragged(2, 6, SIZES["bert"])
    other = rows | {"token_type_ids": 1 - rows["token_type_ids"]}
    both.assert_equal(other)
    assert np.abs(both.ours(rows)["pooled.mean"] - both.ours(other)["pooled.mean"]).max() > 0.1


def test_a_batch_gives_each_row_what_it_has_alone(tiny: Callable[..., Path]):
    both = Both(tiny("roberta"))
    rows = ragged(5, 11, SIZES["roberta"])
    together = both.ours(rows)["pooled.first"]
    for i in range(5):
        n = rows["attention_mask"][i].sum()
        alone = both.ours({name: array[i : i + 1, :n] for name, array in rows.items()})["pooled.first"]
        np.testing.assert_allclose(together[i], alone[0], rtol=0, atol=2 * both.exact(rows).error)
