from __future__ import annotations

import pytest

from bench.published import family_named, works_of
from edgepeft.common.errors import UnknownName
from edgepeft.common.operators import GraphKind, graph_kind_of, product_flops

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


@pytest.mark.parametrize(
    ("graph", "kind"),
    [
        ("vgg-16", GraphKind.CONV_3X3),
        ("resnet-18", GraphKind.CONV),
        ("resnet-34", GraphKind.CONV),
        ("resnet-50", GraphKind.CONV),
        ("mobilenet-v1", GraphKind.SEPARABLE),
        ("vit-b-32-384", GraphKind.MATRIX),
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
