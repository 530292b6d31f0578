from __future__ import annotations

import numpy as np
import pytest

from edgepeft.backbones.base import family_of
from edgepeft.backbones.config import architecture_names, config_of
from edgepeft.bench.result.rows import flops_per_instance


@pytest.fixture(scope="module")
def roberta():
    config = config_of("roberta-base")
    return family_of(config).architecture(config)


def test_roberta_base_at_128_tokens_costs_what_the_arithmetic_says(roberta):
    n, d, ff = 128, 768, 3072
    expected = 12 * (2 * n * (4 * d * d + 2 * d * ff) + 4 * n * n * d)
    assert expected == pytest.approx(22.35e9, rel=1e-3)
    assert flops_per_instance(roberta, [128]) == expected


def test_the_count_equals_torchs_own_counter_on_the_real_model():
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig, BertModel

    sizes = {
        "hidden_size": 48,
        "num_attention_heads": 4,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "vocab_size": 99,
    }
    model = BertModel(BertConfig(**sizes, attn_implementation="eager"), add_pooling_layer=False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.ones(1, 17, dtype=torch.long))
    config = model.config.to_dict()
    assert flops_per_instance(family_of(config).architecture(config), [17]) == counter.get_total_flops()


def test_training_everything_costs_three_passes_and_a_delta_fewer(roberta):
    infer = flops_per_instance(roberta, [128])
    frozen = flops_per_instance(roberta, [128], "finetune")
    assert flops_per_instance(roberta, [128], "finetune", full=True) == 3 * infer
    assert 2 * infer < frozen < 3 * infer


def test_mixed_lengths_give_the_mean_of_their_texts(roberta):
    one, two = flops_per_instance(roberta, [10]), flops_per_instance(roberta, [100])
    assert flops_per_instance(roberta, [10, 100]) == pytest.approx((one + two) / 2)


@pytest.mark.parametrize("length", [1, 5, 64, 65, 66, 130, 700])
def test_local_attention_counts_the_pairs_that_see_each_other(length):
    config = config_of("modernbert-base")
    architecture = family_of(config).architecture(config)
    places = np.arange(length)
    near = int((abs(places[:, None] - places) <= 64).sum())  # of the 14 layers that are no third one
    matrices = 22 * (768 * 3 * 768 + 768 * 768 + 768 * 2 * 1152 + 1152 * 768)
    expected = 2 * length * matrices + 4 * 768 * (8 * length**2 + 14 * near)
    assert flops_per_instance(architecture, [length]) == expected


def test_disentangled_attention_has_two_products_more_of_each_pair():
    config = config_of("deberta-v3-base")
    n, d = 100, 768
    expected = 12 * (2 * n * 12 * d * d + 8 * n * n * d)
    assert flops_per_instance(family_of(config).architecture(config), [n]) == expected


def test_a_layer_counts_each_time_that_it_runs_though_its_tensors_are_stored_once():
    config = config_of("albert-base-v2")
    n, d, f = 100, 768, 3072
    expected = 12 * (2 * n * (4 * d * d + 2 * d * f) + 4 * n * n * d) + 2 * n * 128 * d
    assert flops_per_instance(family_of(config).architecture(config), [n]) == expected


# Parameters of the published encoders without pooler (roberta-base: reference figures of the project).
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("roberta-base", 124.06),
        ("bert-base-uncased", 108.89),
        ("distilbert-base-uncased", 66.36),
        ("electra-small-discriminator", 13.48),  # 13.55 with its discriminator head
        ("xlm-roberta-base", 277.45),
        ("all-MiniLM-L6-v2", 22.57),
        ("mpnet-base", 108.90),
        ("modernbert-base", 149.01),
        ("nomic-embed-text-v1.5", 136.73),  # the published file's 546,926,592 bytes of float32
        ("deberta-v3-base", 183.83),
        ("camembert-base", 110.03),  # 110.62 with its pooler; Martin et al., 2020, say 110
        ("albert-base-v2", 11.09),  # 11.68 with its pooler; Lan et al., table 2, say 12
        ("xlm-roberta-xl", 3475.93),  # Goyal et al., 2021, say 3.5 billion
        ("roformer_chinese_base", 123.46),
        ("t5-base", 222.88),  # with the 32,100 rows of its tokenizer; counted, not run
        ("t5-small", 60.51),  # with the 32,128 rows that its checkpoint has
        ("SmolLM2-135M", 134.515),
        ("SmolLM2-360M", 361.82),
        ("Qwen2.5-0.5B", 494.03),
        ("Qwen3-0.6B", 596.05),
        ("gemma-3-270m", 268.10),
        ("Llama-3.2-1B", 1235.81),
    ],
)
def test_a_named_architecture_has_its_published_size(name, millions):
    config = config_of(name)
    architecture = family_of(config).architecture(config)
    assert architecture.n_parameters / 1e6 == pytest.approx(millions, abs=0.006)


def test_every_shipped_architecture_is_tested_above():
    assert len(architecture_names()) == 22
