"""Who holds a task: this user's processes, one at a time, and nobody who may only read."""

import fcntl
import os

import pytest

from edgepeft.common.errors import EdgepeftError, UsageError
from edgepeft.data.training_loop.checkpoint import claim, discard


def test_a_reader_of_the_folder_cannot_hold_a_task(bundle):
    """flock(2) asks for a descriptor, and a descriptor for the right to read."""
    with claim(bundle, "mood"):
        files = [path for path in (bundle / ".tune" / "mood").iterdir() if path.is_file()]
        assert files and {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_what_a_reader_held_of_an_earlier_version_holds_nobody_up(bundle):
    """There the lock's file was everybody's to read."""
    folder = bundle / ".tune" / "mood"
    folder.mkdir(parents=True)
    for name in ("lock", ".edgepeft.lock"):
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    with (
        claim(bundle, "mood"),
        pytest.raises(UsageError, match="is being tuned by another process"),
        claim(bundle, "mood"),
    ):
        pytest.fail("it was held")


@pytest.mark.parametrize("place", [".tune", ".tune/mood"])
def test_a_link_in_the_place_of_its_folder_is_refused_and_nothing_behind_it_goes(bundle, tmp_path, place):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "10.safetensors").write_text("theirs")
    (bundle / place).parent.mkdir(exist_ok=True)
    (bundle / place).symlink_to(tmp_path / "theirs")
    with pytest.raises(EdgepeftError, match=rf"{place} is a link"), claim(bundle, "mood") as work:
        discard(work)
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["10.safetensors"]


def test_a_folder_of_another_user_is_refused_with_its_owner(bundle, given_away):
    (bundle / ".tune").mkdir()
    owner = given_away(bundle / ".tune")
    with pytest.raises(EdgepeftError, match=rf"\.tune belongs to user {owner}"), claim(bundle, "mood"):
        pytest.fail("it was held")


def test_nothing_is_left_of_a_claim_and_checkpoints_stay(bundle):
    with claim(bundle, "mood"):
        pass
    assert not (bundle / ".tune").exists()
    with claim(bundle, "mood") as work:
        (work / "3.safetensors").touch()
    assert [path.name for path in (bundle / ".tune" / "mood").iterdir()] == ["3.safetensors"]
    with claim(bundle, "mood") as work:
        discard(work)
    assert not (bundle / ".tune").exists()
