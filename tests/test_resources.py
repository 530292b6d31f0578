"""Folders and files that appear whole or not at all."""

import errno
import json
from pathlib import Path

import pytest

from edgepeft.errors import EdgepeftError, UsageError
from edgepeft.resources import cache_folder, check_target, new_folder, write_atomically, write_json


def fill(folder, failure=None, *, force=False):
    with new_folder(folder, force=force) as new:
        (new / "part").write_text("new")
        if failure is not None:
            raise failure


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("x"), SystemExit(1)])
def test_an_interrupted_folder_leaves_nothing_behind_not_even_the_parents_it_made(tmp_path, failure):
    (tmp_path / "mine").mkdir()
    with pytest.raises(type(failure)):
        fill(tmp_path / "mine" / "a" / "b" / "out", failure)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_parent_that_somebody_else_began_to_use_stays(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "a" / "b" / "out"):
        (tmp_path / "a" / "note").write_text("theirs")
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "note"]


def test_an_interrupted_replacement_leaves_the_old_folder_as_it_was(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part").write_text("old")
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "out", KeyboardInterrupt(), force=True)
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {"part": "old"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_something_in_it_is_replaced_by_force_only(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale").write_text("old")
    with pytest.raises(UsageError, match="--force"):
        fill(tmp_path / "out")
    fill(tmp_path / "out", force=True)
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {"part": "new"}


def test_a_full_disk_is_said_and_leaves_the_old_file(tmp_path, monkeypatch):
    write_atomically(tmp_path / "file", b"old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EdgepeftError, match="no space left"):
        write_atomically(tmp_path / "file", b"new")
    monkeypatch.undo()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_mount_point_is_refused_before_the_work_since_no_folder_can_take_its_place(tmp_path, monkeypatch):
    volume = tmp_path / "volume"
    volume.mkdir()
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path == volume)
    with pytest.raises(UsageError, match=r"is a mount point.*volume/out"):
        fill(volume, AssertionError("the work began"))
    fill(volume / "out")
    assert (volume / "out" / "part").read_text() == "new"


def test_a_file_on_the_way_to_a_target_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UsageError, match=r"file/a/b cannot be written: .*file is a file"),
        new_folder(tmp_path / "file/a/b"),
    ):
        pytest.fail("the work began")
    check_target(tmp_path / "new" / "folder" / "result.json")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_root_is_no_target_and_neither_is_a_folder_that_cannot_be_entered(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="mount point"), new_folder(Path("/")):
        pytest.fail("the work began")
    check_target(Path("/"))
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may write everywhere
    with pytest.raises(EdgepeftError, match="not this user's to write"):
        check_target(tmp_path / "result.json")


def test_a_mount_that_shows_at_the_end_only_is_named_too(tmp_path, monkeypatch):
    def busy(path, _):
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    (tmp_path / "volume").mkdir()
    monkeypatch.setattr("pathlib.Path.rename", busy)
    with pytest.raises(EdgepeftError, match="mounted"):
        fill(tmp_path / "volume")


def test_a_name_that_has_no_utf_8_does_not_keep_a_document_from_being_written(tmp_path):
    write_json(tmp_path / "card.json", {"split": "40 rows of d\udcff.jsonl, \u4f60"})
    assert json.loads((tmp_path / "card.json").read_bytes()) == {"split": "40 rows of d?.jsonl, \u4f60"}


@pytest.fixture
def homeless(monkeypatch):
    """As `docker run --user 12345` without HOME: a number that no passwd entry has."""
    for name in ("HOME", "XDG_CACHE_HOME", "EDGEPEFT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 12345678)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_hears_what_names_a_cache(tmp_path, monkeypatch):
    with pytest.raises(EdgepeftError, match=r"user 12345678 has no home.*EDGEPEFT_CACHE"):
        cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "edgepeft"
