"""What an unknown name is told: the nearest one, and not a thousand others; errors in other processes."""

import pickle

import pytest

from edgepeft.common.errors import DataError, DoesNotFit, UnknownName


def test_the_nearest_name_is_offered_and_a_long_list_is_cut():
    said = str(UnknownName("task of this bundle", "t77", [f"t{i}" for i in range(1000)]))
    assert "Did you mean 't77" in said and "and 960 more." in said and len(said) < 500


@pytest.mark.parametrize(("asked", "known"), [("LoRA", "lora"), ("BITFIT", "bitfit"), ("rpi4", "RPi4")])
def test_the_nearest_name_may_be_written_in_another_case(asked, known):
    assert f"Did you mean {known!r}?" in str(UnknownName("PE method", asked, [known, "spartan"]))


def test_what_is_no_text_is_an_unknown_name_too():
    assert str(UnknownName("task", None, ["mood"])) == "no task is called None. Known: mood."  # type: ignore[arg-type]


def test_a_short_list_is_whole():
    assert str(UnknownName("task", "moot", ["pair", "mood"])).endswith("Known: mood, pair.")


@pytest.mark.parametrize(
    "error", [UnknownName("method", "spratan", ["spartan"]), DataError("row 3"), DoesNotFit("1 GB")]
)
def test_an_error_crosses_processes_with_its_message(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.exit_code == error.exit_code
