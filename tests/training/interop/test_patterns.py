"""Patterns of foreign files match as Python's do, in a process that ends with its limits."""

import re

import pytest

from edgepeft.common.errors import BundleError
from edgepeft.training.interop.peft_methods.base import Patterns

NAMES = [
    f"bert.encoder.layer.{i}.{m}"
    for i in (0, 11)
    for m in ("attention.self.query", "attention.self.value", "output.dense")
]
# As adapters on the Hub and PEFT's documentation have them.
WRITTEN = [
    r".*\.(q_proj|v_proj)",
    r".*\.(query|value)",
    r".*(self_attn|attention\.self).*(query|value).*$",
    r"^(?!.*(lm_head|output)).*(query|dense).*",
    r"(?:.*?(?:encoder|decoder).*?(?:attention|mlp).*?(?:query|key|value|dense).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:mlp)\.)",
    r".*layer\.(?:[0-5])\.attention\.self\.(query|key)$",
    r"(?<=bert\.).*",
    r"(.*)layer\.(\d+)\.(?P<kind>\w+).*",
    r"(.*\.)?(query)$",
]


@pytest.fixture(scope="module")
def patterns():
    return Patterns()


@pytest.mark.parametrize("pattern", WRITTEN)
def test_a_pattern_matches_as_in_python(patterns, pattern):
    for name in NAMES:
        expected = re.match(pattern, name)
        assert patterns.match(pattern, name) == (expected and (expected[0], *expected.groups()))


@pytest.mark.parametrize("pattern", [r"((.|\w)+)+[#!]", "[a-z]?" * 1500, "(" * 4000 + ")" * 4000])
def test_a_pattern_that_takes_long_in_all_is_stopped_and_the_next_file_is_read(pattern):
    hostile = Patterns(core_s=1)
    with pytest.raises(BundleError, match="list names"):
        for i in range(2000):  # as of so many modules' ranks
            hostile.match(f"{pattern}(?#{i})", NAMES[0])
    assert Patterns().match("bert", NAMES[0]) == ("bert",)


def test_what_is_no_pattern_or_too_long_a_one_is_refused(patterns):
    with pytest.raises(BundleError, match="no regular expression"):
        patterns.match("(", "a")
    with pytest.raises(BundleError, match="10,001 characters"):
        patterns.match("a" * 10_001, "a")
    assert patterns.match("a", "ab") == ("a",)


def test_the_child_ends_with_the_object():
    patterns = Patterns()
    patterns.match("a", "a")
    child = patterns._child
    del patterns
    assert child.returncode is not None
