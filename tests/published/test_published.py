from __future__ import annotations

import statistics

import pytest

from bench.published import family_named, works_of
from bench.published.whisper import REAL_TIME_FACTORS, SOUND_S, SPEEDUPS, encoder_seconds
from edgepeft.common.errors import UnknownName
from edgepeft.common.operators import GraphKind, graph_kind_of, product_flops
from edgepeft.device.profiles import load_profile

# Multiply-adds in thousand millions: torchvision's own table of its models (weights' "_ops"), MobileNet v1's from its paper.
GIGA_MULTIPLY_ADDS = {
    "resnet-18": 1.814,
    "resnet-34": 3.664,
    "resnet-50": 4.089,
    "resnet-101": 7.801,
    "resnet-152": 11.514,
    "vgg-11": 7.609,
    "vgg-13": 11.308,
    "vgg-16": 15.47,
    "vgg-19": 19.632,
    "densenet-121": 2.834,
    "mobilenet-v2": 0.301,
    "mobilenet-v1": 0.569,
}


@pytest.mark.parametrize(("graph", "expected"), GIGA_MULTIPLY_ADDS.items())
def test_a_published_model_has_its_published_multiply_adds(graph, expected):
    assert product_flops(works_of(graph)) / 2e9 == pytest.approx(expected, abs=5e-4)


def test_a_vision_transformer_costs_its_layers_its_patches_and_its_head():
    t, d, f = 145, 768, 3072
    expected = 12 * (2 * t * (4 * d * d + 2 * d * f) + 4 * t * t * d) + 2 * 144 * 3072 * d + 2 * d * 1000
    assert product_flops(works_of("vit-b-32-384")) == expected


def test_an_encoder_of_hats_is_as_wide_as_it_says_except_in_its_attention():
    t, d, a, f = 30, 640, 512, 1024
    expected = 6 * (2 * t * (4 * d * a + 2 * d * f) + 4 * t * t * a)
    assert product_flops(works_of("wmt-640-1024")) == expected
    uneven = product_flops(works_of("wmt-640-1109.33"))  # 6656 over 6 layers
    assert uneven - expected == 2 * t * 2 * d * (6656 - 6144)


def test_whispers_encoder_costs_its_layers_convolutions_and_the_decoders_keys_and_values():
    t, d = 1500, 384
    layers = 4 * (2 * t * 12 * d * d + 4 * t * t * d)
    expected = layers + 2 * 3000 * 3 * 80 * d + 2 * t * 3 * d * d + 8 * 2 * t * d * d
    assert product_flops(works_of("whisper-tiny-encoder")) == expected


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_encoders_share_and_the_rest_give_the_published_times_with_two_and_three_threads(precision):
    """Fitted to 1 and 4 threads; the other two were not looked at."""
    one, two, three, four = (factor * SOUND_S for factor in REAL_TIME_FACTORS[precision])
    rest = one - encoder_seconds(precision, 1)
    assert rest + encoder_seconds(precision, 4) == pytest.approx(four)
    for threads, seconds in ((2, two), (3, three)):
        assert rest + encoder_seconds(precision, threads) == pytest.approx(seconds, rel=0.03)


def test_the_profiles_rows_are_what_follows_from_the_published_times():
    rows = [row for row in load_profile("rpi4").latencies if row.graph == "whisper-tiny-encoder"]
    assert len(rows) == 8
    for row in rows:
        assert row.value == round(1000 * encoder_seconds(row.precision, row.threads)) and row.kind == "derived"
    whole = [row for row in load_profile("rpi4").latencies if row.model == "Whisper tiny.en"]
    assert [row.value for row in whole] == [
        round(1000 * REAL_TIME_FACTORS[row.precision][row.threads - 1] * SOUND_S) for row in whole
    ]
    slowest, quickest = (encoder_seconds("fp32", 4, which) for which in (min, max))
    flops = product_flops(works_of("whisper-tiny-encoder"))
    assert (flops / slowest / 1e9, flops / quickest / 1e9) == (
        pytest.approx(17.1, abs=0.1),
        pytest.approx(25.6, abs=0.1),
    )
    assert statistics.median(SPEEDUPS[3]) == pytest.approx(2.66, abs=0.005)


@pytest.mark.parametrize(
    ("graph", "kind"),
    [
        ("vgg-16", GraphKind.CONV_3X3),
        ("resnet-18", GraphKind.CONV),
        ("resnet-34", GraphKind.CONV),
        ("resnet-50", GraphKind.CONV),
        ("mobilenet-v1", GraphKind.SEPARABLE),
        ("vit-b-32-384", GraphKind.MATRIX),
        ("whisper-tiny-encoder", GraphKind.MATRIX),
    ],
)
def test_graphs_whose_rates_differ_are_of_different_kinds(graph, kind):
    assert graph_kind_of(works_of(graph)) is kind


def test_a_graph_that_is_not_known_is_refused_with_those_that_are():
    for wrong in ("resnet-51", "wmt-512", "wmt-wide-3"):
        with pytest.raises(UnknownName, match="resnet-50"):
            works_of(wrong)


def test_encoders_of_one_width_are_a_family():
    assert family_named("wmt-512-1024") == family_named("wmt-512-2048") != family_named("wmt-640-1024")
    assert family_named("resnet-50") == family_named("resnet-18") != family_named("vgg-16")
