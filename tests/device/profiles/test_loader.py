from __future__ import annotations

import pytest
from pydantic import ValidationError

from edgepeft.common.errors import DataError, UnknownName, UsageError
from edgepeft.device.profiles.loader import known_profiles, load_profile

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
    assert grades["rpi4"] == "B" and grades["rpi5"] == "C" and grades["iphone11"] == "D"
    assert load_profile("rpi4").model_copy(update={"calibrations": ()}).grade == "E"
    row = load_profile("rpi4").calibrations[0].model_copy(update={"runtime": "onnxruntime"})
    assert load_profile("rpi4").model_copy(update={"calibrations": (row,)}).grade == "A"


def test_a_home_that_is_not_known_is_a_file_that_is_not_there():
    with pytest.raises(UsageError, match=r"no profile file ~nobody-of-that-name/board\.toml"):
        load_profile("~nobody-of-that-name/board.toml")
