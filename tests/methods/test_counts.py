"""Parameter counts that papers and their authors' code give."""

from __future__ import annotations

import pytest

from edgepeft.methods.bitfit import BitFit
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.dora import DoRA
from edgepeft.methods.full import Full
from edgepeft.methods.fusion import Fusion
from edgepeft.methods.houlsby import Houlsby
from edgepeft.methods.ia3 import IA3
from edgepeft.methods.layernorm import LayerNormTuning
from edgepeft.methods.linear import LinearProbe
from edgepeft.methods.lora import LoRA
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.spartan import Spartan

NORMS = 38_400  # 25 LayerNorms of 2 x 768


@pytest.mark.parametrize(
    ("method", "count"),
    [
        (Houlsby(norms=False), 2_379_264),
        (Houlsby(), 2_379_264 + NORMS),
        (LayerNormTuning(), NORMS),
        (LinearProbe(), 0),
        (IA3(), 12 * (2 * 768 + 3072)),
        (Pfeiffer(), 1_189_632),
        (Pfeiffer(placement="attention", norms=True), 1_189_632 + NORMS),
        (Spartan(norms=False), 1_032_192),
        (Spartan(), 1_032_192 + NORMS),
        (LoRA(), 294_912),  # 0.3 M in LoRA's table 2
        (LoRA(rank=4, roles=("ffn_output",)), 12 * 4 * (3072 + 768)),
        (DoRA(), 294_912 + 12 * 2 * 768),  # LoRA's, and one magnitude an output
        (LoRA(rank=4, roles=("ffn_up",)), 12 * 4 * (768 + 3072)),
        # 2 m d + m + d, and two norms of the adapter's own
        (BottleneckAdapter(norm_before=True, norm_after="sum"), 12 * (2 * 64 * 768 + 64 + 768 + 4 * 768)),
        # n (2 m d + m + d), query and key with biases, and a value without
        (Fusion(adapters=3), 12 * (3 * (2 * 64 * 768 + 64 + 768) + 2 * (768 + 1) * 768 + 768 * 768)),
        # 12 x (q, k, v, o: 4 x 768; up: 3072; down: 768; two norms) and the embeddings' norm
        (BitFit(), 12 * (4 * 768 + 3072 + 768 + 2 * 768) + 768),
    ],
    ids=str,
)
@pytest.mark.parametrize("backbone", ["roberta-base", "bert-base-uncased"])
def test_count_on_a_base_model(named, backbone: str, method, count: int):
    assert method.n_parameters(named(backbone)) == count


@pytest.mark.parametrize(
    ("backbone", "count"),
    [
        ("roberta-base", 124_055_040),  # methods.md, without head
        ("bert-base-uncased", 108_891_648),  # transformers' 109,482,240 less the pooler's 590,592
        ("distilbert-base-uncased", 66_362_880),
        ("xlm-roberta-base", 277_453_056),
        ("modernbert-base", 149_014_272),  # 149 M in the paper
        ("deberta-v3-base", 183_831_552),  # 184 M in the paper
        ("nomic-embed-text-v1.5", 136_731_648),  # 137 M in the paper; the published file's 546,926,592 bytes of float32
        ("mpnet-base", 108_895_872),  # transformers' 109,486,464 less the pooler's 590,592
    ],
)
def test_full_counts_the_encoder(named, backbone: str, count: int):
    assert Full().n_parameters(named(backbone)) == count


def test_the_pooler_counts_where_the_head_reads_it_and_the_method_trains_it(named):
    bert, pooler = named("bert-base-uncased"), ("pooler.dense.weight", "pooler.dense.bias")
    assert Full().n_parameters(bert, pooler) == 109_482_240
    assert BitFit().n_parameters(bert, pooler) - BitFit().n_parameters(bert, ()) == 768
    assert Houlsby().n_parameters(bert, pooler) == Houlsby().n_parameters(bert)
