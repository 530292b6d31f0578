from __future__ import annotations

import json

import pytest
from verbs import edgepeft

from edgepeft.common.errors import UsageError
from edgepeft.device.profiles.loader import load_profile, with_settings


@pytest.mark.parametrize("text", ["2", "2GB", "2 GiB", "2gb", "2.0GB"])
def test_a_board_is_had_with_another_memory_that_it_is_sold_with(text):
    assert with_settings(load_profile("rpi4"), [f"memory={text}"]).memory_bytes == 2 * 2**30


def test_a_name_may_carry_its_variant():
    assert load_profile("rpi4:memory=4GB").memory_bytes == 4 * 2**30
    assert load_profile("rpi4").memory_bytes == 8 * 2**30
    assert load_profile("rpi4:memory=4GB").limits().memory_bytes == 4 * 2**30


def test_a_device_without_named_variants_takes_any_plausible_memory():
    assert with_settings(load_profile("jetson-nano"), ["memory=500MB"]).memory_bytes == 500 * 10**6


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("memory=3GB", "is sold with 1 GiB, 2 GiB, 4 GiB, 8 GiB"),
        ("memory=2MB", "is sold with"),
        ("memory=lots", "an amount of memory was expected"),
        ("memory=", "an amount of memory was expected"),
        ("memory", "name=value is needed"),
        ("memroy=2GB", "Did you mean 'memory'"),
        ("cores=2", "memory can be set"),
    ],
)
def test_what_is_no_variant_is_a_usage_error(setting, said):
    with pytest.raises(UsageError, match=said):
        with_settings(load_profile("rpi4"), [setting])


def test_nine_petabytes_are_refused():
    with pytest.raises(UsageError, match="no device's memory"):
        with_settings(load_profile("jetson-nano"), ["memory=9000000000GB"])


def test_the_verb_shows_a_variant_and_wants_its_device():
    assert json.loads(edgepeft("profiles", "rpi4", "--set", "memory=2GB", "--json").stdout)["memory_bytes"] == 2 * 2**30
    alone = edgepeft("profiles", "--set", "memory=2GB")
    assert alone.returncode == 2 and "name it" in alone.stderr
