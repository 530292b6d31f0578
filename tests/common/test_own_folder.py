"""Nothing is written, deleted or locked in a folder that others can write to, or through a link."""

import fcntl
import os

import pytest

from edgepeft.common.atomic import new_folder
from edgepeft.common.errors import EdgepeftError
from edgepeft.common.own_folder import LOCK_FILE, held_folder, locked, own_folder

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def test_what_becomes_of_a_folders_name_changes_nothing(tmp_path):
    """Who can write to the folder around it puts a link in its place while we work."""
    if not os.path.isdir("/proc/self/fd"):  # noqa: PTH112
        pytest.skip("no /proc")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "old").touch()
    with own_folder(tmp_path, "ours", make=True) as folder:
        (tmp_path / "ours").rename(tmp_path / "aside")
        (tmp_path / "ours").symlink_to("precious")
        (folder / "new").touch()
        (folder / "old").unlink(missing_ok=True)
    assert {path.name for path in (tmp_path / "precious").iterdir()} == {"old"}
    assert {path.name for path in (tmp_path / "aside").iterdir()} == {"new"}


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(EdgepeftError, match="no name of a folder"), own_folder(tmp_path, name, make=True):
        pytest.fail("it was opened")


def test_a_file_in_its_place_is_refused_and_errors_have_names_that_were_given(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(EdgepeftError, match="file is a file, and a folder is needed"), own_folder(tmp_path, "file"):
        pytest.fail("it was opened")
    with pytest.raises(EdgepeftError) as caught, own_folder(tmp_path, "ours", make=True) as folder:
        raise EdgepeftError(f"{folder}/state.json is damaged.")
    assert str(caught.value) == f"{tmp_path}/ours/state.json is damaged."


@AS_ROOT
@pytest.mark.parametrize("spoil", ["theirs", "open", "link", "folder"])
def test_all_that_lies_in_it_is_looked_at(tmp_path, spoil):
    inner = tmp_path / "ours" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    (inner / "beside").symlink_to("file")  # as tuf's root.json
    with own_folder(tmp_path, "ours", deep=True):
        pass
    if spoil == "theirs":
        os.chown(inner / "file", 4242, 4242)
    elif spoil == "open":
        (inner / "file").chmod(0o666)
    elif spoil == "link":
        (inner / "out").symlink_to("../../precious")
    else:
        (tmp_path / "ours" / "other").symlink_to("inner")
    words = {"theirs": "file belongs to user 4242", "open": "file, of user 0, can be written to by every user"}
    with pytest.raises(EdgepeftError, match=words.get(spoil, "is a link")), own_folder(tmp_path, "ours", deep=True):
        pytest.fail("it was opened")


@AS_ROOT
def test_root_works_in_a_folder_of_another_user_by_files_of_its_own(tmp_path):
    """As in a container that a user's folder is mounted into."""
    os.chown(tmp_path, 4242, 4242)
    with held_folder(tmp_path, "ours") as folder, locked(tmp_path, 0):
        (folder / "file").touch()
    assert (tmp_path / "ours" / "file").stat().st_uid == 0


@AS_ROOT
def test_a_lock_of_another_user_is_refused_with_its_owner(tmp_path):
    (tmp_path / LOCK_FILE).touch(0o600)
    os.chown(tmp_path / LOCK_FILE, 4242, 4242)
    with pytest.raises(EdgepeftError, match=rf"{LOCK_FILE} is of user 4242.* Remove"), locked(tmp_path, 0):
        pytest.fail("it was locked")
    os.chown(tmp_path, 4242, 4242)  # whose folder it is may hold its lock
    with locked(tmp_path, 0):
        pass


def test_a_lock_that_others_could_open_is_made_anew(tmp_path):
    descriptor = os.open(tmp_path / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    os.fchmod(descriptor, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with locked(tmp_path, 0):
        assert (tmp_path / LOCK_FILE).stat().st_mode & 0o777 == 0o600
        with pytest.raises(EdgepeftError, match="has held"), locked(tmp_path, 0):
            pytest.fail("it was locked twice")
    os.close(descriptor)


def test_a_held_folder_goes_when_it_is_empty_and_its_parents_with_it(tmp_path):
    with held_folder(tmp_path, "a", "b") as folder:
        assert [path.name for path in folder.iterdir()] == [LOCK_FILE]
    assert list(tmp_path.iterdir()) == []
    with held_folder(tmp_path, "a", "b") as folder:
        (folder / "kept").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["kept"]


@AS_ROOT
def test_what_another_user_left_beside_a_new_folder_is_not_removed(tmp_path):
    left = tmp_path / ".out.0123abcd"
    left.mkdir()
    (left / "file").touch()
    os.chown(left, 4242, 4242)
    with new_folder(tmp_path / "out") as new:
        (new / "part").touch()
    assert (left / "file").is_file()
