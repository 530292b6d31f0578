"""Folders and files that appear whole or not at all."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from edgepeft.common.atomic import _exchanged, check_replaceable, check_target, new_folder, write_atomically, write_json
from edgepeft.common.errors import EdgepeftError, UsageError, VerificationFailed
from edgepeft.common.own_folder import LOCK_FILE, locked
from edgepeft.common.resources import cache_folder, private_folder


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


@pytest.mark.parametrize("in_one_step", [True, False])
def test_an_old_folder_and_the_new_one_change_places(tmp_path, monkeypatch, in_one_step):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale").write_text("old")
    if in_one_step:  # as Linux can, so that nothing is moved aside
        if not _exchanged(tmp_path / "out", Path(shutil.copytree(tmp_path / "out", tmp_path / "other"))):
            pytest.skip("this file system cannot exchange folders")
        shutil.rmtree(tmp_path / "other")
        monkeypatch.setattr("pathlib.Path.rename", lambda *_: pytest.fail("for a moment there is no folder"))
    else:
        monkeypatch.setattr("edgepeft.common.atomic._exchanged", lambda *_: False)
    fill(tmp_path / "out", force=True)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == ["out", "out/part"]


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


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "no space left.*Free some space"), (errno.EIO, "out cannot be written")]
)
def test_what_the_library_of_weights_files_says_of_the_disk_is_said_as_of_other_files(tmp_path, number, said):
    wrapped = SafetensorError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")
    with pytest.raises(EdgepeftError, match=said):
        fill(tmp_path / "out", wrapped)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(SafetensorError, match="damaged"):  # of a file that was read
        fill(tmp_path / "out", SafetensorError("damaged"))


def test_a_mount_point_is_refused_before_the_work_since_no_folder_can_take_its_place(tmp_path, monkeypatch):
    volume = tmp_path / "volume"
    volume.mkdir()
    monkeypatch.setattr("pathlib.Path.is_mount", lambda path: path == volume)
    with pytest.raises(UsageError, match=r"is a mount point.*volume/out"):
        fill(volume, AssertionError("the work began"))
    fill(volume / "out")
    assert (volume / "out" / "part").read_text() == "new"


@pytest.mark.parametrize("where", ["pipe", "/dev/null", "/dev/stdout"])
def test_no_file_takes_the_place_of_a_device_or_a_pipe(tmp_path, monkeypatch, where):
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: pytest.fail("it was replaced"))
    os.mkfifo(tmp_path / "pipe")
    for refused in (check_target, lambda path: write_atomically(path, b"new")):
        with pytest.raises(UsageError, match="a device or a pipe"):
            refused(tmp_path / where)


@pytest.mark.parametrize("name", [".", "", "kept"])
def test_no_file_takes_the_place_of_a_folder(tmp_path, monkeypatch, name):
    (tmp_path / "kept" / "inside").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is a folder; name a file"):
        write_atomically(Path(name), b"content")
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "inside"]


def test_a_folder_behind_a_link_is_replaced_there_and_the_link_stays(tmp_path):
    (tmp_path / "disk" / "out").mkdir(parents=True)
    (tmp_path / "disk" / "out" / "stale").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "out")
    fill(tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink()
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "disk",
        "disk/out",
        "disk/out/part",
        "link",
    ]


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
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY | os.ST_NOSUID))
    with pytest.raises(EdgepeftError, match="on a read-only file system"):
        check_target(tmp_path / "result.json")


def test_a_mount_that_shows_at_the_end_only_is_named_too(tmp_path, monkeypatch):
    def busy(path, _):
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    (tmp_path / "volume").mkdir()
    monkeypatch.setattr("pathlib.Path.rename", busy)
    monkeypatch.setattr("edgepeft.common.atomic._exchanged", lambda *_: False)
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


def held_by_another_process(folder):
    """A process that is in ``locked`` until its standard input ends."""
    code = f"import sys; from edgepeft.common.own_folder import locked; from pathlib import Path\nwith locked(Path({str(folder)!r})):\n"
    code += "    print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_that_does_not_come_free_names_its_holder(tmp_path):
    with held_by_another_process(tmp_path) as holder:
        with pytest.raises(EdgepeftError, match=rf"process {holder.pid} has held"), locked(tmp_path, wait_s=0.2):
            pytest.fail("it was held")
        holder.communicate("")
    with locked(tmp_path, wait_s=0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_file_system_that_is_read_only_is_to_be_copied(tmp_path, monkeypatch):
    opened = os.open

    def refused(path, *flags, **more):
        if str(path).endswith(".edgepeft.lock"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, *flags, **more)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(EdgepeftError, match=r"Read-only file system.*Work on a copy"), locked(tmp_path):
        pass


def test_what_a_killed_process_held_is_free(tmp_path):
    with held_by_another_process(tmp_path) as holder:
        holder.kill()
        holder.wait()
    assert (tmp_path / LOCK_FILE).is_file()
    with locked(tmp_path, wait_s=0):
        pass


def test_a_lock_on_the_folder_itself_holds_nobody_up(tmp_path):
    """Whoever may read a folder can take flock(2) on it; the lock's own file is this user's alone."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with locked(tmp_path, wait_s=0):
        assert (tmp_path / LOCK_FILE).stat().st_mode & 0o777 == 0o600
    os.close(descriptor)


def test_a_link_in_the_locks_place_is_not_followed(tmp_path):
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "target")
    with pytest.raises(EdgepeftError, match="cannot be locked"), locked(tmp_path):
        pytest.fail("it was locked")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_new_files_have_the_mode_of_this_processs_files_and_its_umask_is_never_changed(tmp_path, monkeypatch, umask):
    before = os.umask(umask)
    try:
        with monkeypatch.context() as patched:
            patched.setattr("os.umask", lambda _: pytest.fail("the whole process's umask was changed"))
            write_atomically(tmp_path / "file", b"x")
            with new_folder(tmp_path / "folder") as new:
                (new / "part").touch(0o600)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "folder", "folder/part")]
    assert modes == [0o666 & ~umask, 0o777 & ~umask, 0o666 & ~umask]


def test_a_private_folder_is_closed_to_others_and_refused_where_it_is_theirs(tmp_path, given_away):
    (tmp_path / "own").mkdir(mode=0o755)
    assert private_folder(tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "theirs").mkdir()
    owner = given_away(tmp_path / "theirs")
    with pytest.raises(OSError, match=f"user {owner}"):
        private_folder(tmp_path / "theirs")


KILLED = """
import os, signal, sys
from pathlib import Path
from edgepeft.common.atomic import new_folder
with new_folder(Path(sys.argv[1])) as new:
    (new / "weights").write_bytes(b"much")
    print("inside", flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_beside_a_folder_goes_with_the_next_and_what_a_live_one_holds_stays(tmp_path):
    bystander = tmp_path / ".out.notes"
    bystander.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "out")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "inside\n"
        (held,) = set(tmp_path.iterdir()) - {bystander}
        with new_folder(tmp_path / "out") as new:
            (new / "mine").touch()
        assert (held / "weights").read_bytes() == b"much"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait() == -signal.SIGKILL
    assert held.is_dir()
    with new_folder(tmp_path / "out", force=True) as new:
        (new / "mine").touch()
    assert set(tmp_path.iterdir()) == {bystander, tmp_path / "out"}


def test_an_error_within_names_the_folder_that_was_asked_for(tmp_path):
    with pytest.raises(VerificationFailed) as caught, new_folder(tmp_path / "out") as new:
        raise VerificationFailed(f"{new}/tasks/mood.onnx is damaged.")
    assert str(caught.value) == f"{tmp_path}/out/tasks/mood.onnx is damaged."


def test_the_folder_that_one_is_in_is_no_mount_point(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_replaceable(Path())
