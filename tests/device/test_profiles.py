from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from verbs import edgepeft

from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.device.profiles import known_profiles, load_profile, toml_of, with_settings

GOOD = """
name = "board"
title = "A board"
[cores]
value = 2
unit = "cores"
kind = "spec"
source = "its data sheet"
[memory]
value = 512
unit = "MB"
kind = "spec"
source = "its data sheet"
[isa]
value = ["asimd"]
unit = "flags"
kind = "unsourced"
[figures.copy]
value = 1.5
unit = "GB/s"
kind = "unsourced"
"""
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALAR = st.one_of(TEXT, st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False))
VALUE = st.one_of(SCALAR, st.lists(SCALAR, max_size=3))
TABLE = st.dictionaries(TEXT, VALUE, max_size=4)
ROWS = st.lists(TABLE.filter(bool), min_size=1, max_size=3)


def written(folder, text):
    path = folder / "board.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(("name", "cores", "memory_bytes"), [("rpi4", 4, 8 * 2**30), ("iphone11", 6, 4 * 2**30)])
def test_cores_and_memory_are_those_of_the_papers_emulation(name, cores, memory_bytes):
    profile = load_profile(name)  # SPARTAN: "Raspberry Pi 4 (4 cores, 8GB RAM)", "A13 Bionic (6 cores, 4GB RAM)"
    limits = profile.limits()
    assert (profile.name, limits.cores, limits.memory_bytes) == (name, cores, memory_bytes)


def test_a_pi_4_has_neither_fp16_arithmetic_nor_a_dot_product():
    assert not {"asimddp", "fphp", "asimdhp"} & set(load_profile("rpi4").isa.value)


def test_derived_figures_follow_from_the_figures_they_name():
    figures = load_profile("rpi4").figures
    assert figures["fp32_peak"].value == pytest.approx(4 * figures["clock_later"].value * 8)
    assert figures["energy_resnet50"].value == pytest.approx(figures["power_load"].value * 0.590, abs=0.01)


def test_a_users_own_file_is_read_by_its_path(tmp_path):
    profile = load_profile(str(written(tmp_path, GOOD)))
    assert (profile.cores.value, profile.memory_bytes, profile.isa.value) == (2, 512_000_000, ("asimd",))


def test_a_profile_cannot_be_changed():
    with pytest.raises(ValidationError):
        load_profile("rpi4").name = "other"


def test_an_unknown_name_is_answered_with_the_nearest_known():
    with pytest.raises(UnknownName, match=r"no profile is called 'rpi6'. Did you mean 'rpi"):
        load_profile("rpi6")


@pytest.mark.parametrize("name", ["../profiles/rpi4", "", ".", "rpi4/", "/etc/passwd", "README"])
def test_a_name_does_not_reach_other_files(name):
    with pytest.raises(UnknownName):
        load_profile(name)


def test_a_path_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="there is no profile file"):
        load_profile(tmp_path / "none.toml")


def test_a_folder_named_like_a_profile_is_a_usage_error(tmp_path):
    (tmp_path / "x.toml").mkdir()
    with pytest.raises(UsageError):
        load_profile(tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "A board"', 'tittle = "A board"', "unknown key 'tittle' (did you mean 'title'?)"),
        ("[figures.copy]\nvalue = 1.5\nunit", "[figures.copy]\nvalue = 1.5\nunits", "did you mean 'unit'?"),
        ('kind = "spec"\nsource = "its data sheet"\n[memory]', 'kind = "spec"\n[memory]', "needs a source"),
        ('source = "its data sheet"\n[memory]', 'source = "  "\n[memory]', "cores: a spec figure needs a source"),
        ("value = 2\n", 'value = "2"\n', "cores.value"),
        ("value = 2\n", "value = 0\n", "cores.value"),
        ("value = 2\n", "value = true\n", "cores.value"),
        ("value = 2\n", "value = 2.5\n", "cores.value"),
        ("value = 512\n", "value = -1\n", "memory.value"),
        ("value = 512\n", "value = nan\n", "memory.value"),
        ("value = 512\n", "value = inf\n", "memory.value"),
        ("value = 512\n", "value = 1e300\n", "is the unit right?"),
        ("value = 512\n", "value = 1e308\n", "is the unit right?"),  # in bytes more than a float holds
        ('unit = "MB"', 'unit = "B"', "512 B is no device's memory"),
        ('unit = "MB"', 'unit = "Mb"', "memory.unit"),
        ('kind = "unsourced"\n[figures', 'kind = "guessed"\n[figures', "isa.kind"),
        ('name = "board"', 'name = "../../etc"', "name"),
        ('name = "board"', "", "name is missing"),
        ("value = 1.5", "value = [1]", "figures.copy.value"),
        ('name = "board"', "name = ", "is not TOML"),
        ('name = "board"', 'name = "board"\nname = "b"', "is not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_path_and_the_key(tmp_path, old, new, says):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(DataError) as caught:
        load_profile(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00name", b"\x00" * 100, b"[" * 5000, b"a=" + b"[" * 20000, b"a=" + b"9" * 9999]
)
def test_a_file_that_is_no_profile_at_all_is_a_data_error(tmp_path, content):
    with pytest.raises(DataError):
        load_profile(written(tmp_path, content))


def test_known_profiles_are_sorted_names():
    assert list(known_profiles()) == sorted(known_profiles())


def test_a_profile_is_graded_by_what_its_own_rows_say():
    grades = {name: load_profile(name).grade for name in known_profiles()}
    assert grades["rpi4"] == "A" and grades["rpi5"] == "C" and grades["iphone11"] == "D"
    assert load_profile("rpi4").model_copy(update={"calibrations": ()}).grade == "E"
    others = tuple(row for row in load_profile("rpi4").calibrations if row.runtime != "onnxruntime")
    assert load_profile("rpi4").model_copy(update={"calibrations": others}).grade == "B"


def test_a_home_that_is_not_known_is_a_file_that_is_not_there():
    with pytest.raises(UsageError, match=r"no profile file ~nobody-of-that-name/board\.toml"):
        load_profile("~nobody-of-that-name/board.toml")


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


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no test decides by the clock
@given(st.dictionaries(TEXT, st.one_of(VALUE, TABLE.filter(bool), ROWS), max_size=5))
def test_any_document_comes_back_as_it_was(document):
    assert tomllib.loads(toml_of(document, "a comment\nof two lines")) == document


def test_tables_in_tables_and_their_own_keys_stay_where_they_belong():
    document = {"a": 1, "figures": {"x": {"value": 1.5}, "y": {"value": 2}}, "rows": [{"n": 1}, {"n": 2}], "z": "end"}
    assert tomllib.loads(toml_of(document)) == document


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_not_written(bad):
    with pytest.raises(ValueError):
        toml_of({"x": bad})
