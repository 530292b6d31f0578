"""Entries of a store: made once, whole, and removed in the order of their last use, never while in use."""

import os
import subprocess
import sys
import textwrap

import pytest

from edgepeft.bundle.store import Store
from edgepeft.common.errors import EdgepeftError


def writing(n_bytes=10, calls=None):
    def build(folder):
        (folder / "content").write_bytes(b"x" * n_bytes)
        if calls is not None:
            calls.append(folder)

    return build


def sound(folder):
    return (folder / "content").is_file()


def used_at(store, key, seconds):
    os.utime(store.root / key / "in-use", (seconds, seconds))


def test_an_entry_is_built_once(tmp_path):
    store, calls = Store(tmp_path, 1000), []
    first = store.hold("a", writing(calls=calls), sound)
    second = store.hold("a", writing(calls=calls), sound)
    assert first.folder == second.folder == tmp_path / "a"
    assert len(calls) == 1


def test_an_entry_that_is_not_sound_is_built_again(tmp_path):
    store = Store(tmp_path, 1000)
    store.hold("a", writing(), sound).release()
    (tmp_path / "a" / "content").unlink()
    assert sound(store.hold("a", writing(), sound).folder)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Hold an entry of two pages and a half again; returns how often it was asked whether it is sound."""
    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    monkeypatch.setattr("edgepeft.bundle.store._BOOT", boot)
    store, calls = Store(tmp_path / "store", 1 << 20), []

    def hold():
        calls.clear()
        store.hold("a", writing(10_000), lambda folder: not calls.append(folder)).release()
        return len(calls)

    hold()
    return hold, tmp_path / "store" / "a" / "content", boot


def test_an_entry_that_was_found_sound_and_lies_in_memory_since_is_not_asked_again(asked):
    hold, content, _ = asked
    assert [hold(), hold()] == [0, 0]
    content.write_bytes(content.read_bytes())  # the same, and yet another one
    assert [hold(), hold()] == [1, 0]


def test_it_is_asked_again_after_the_system_was_started_anew_or_where_that_has_no_name(asked):
    hold, _, boot = asked
    boot.write_text("second\n")
    assert [hold(), hold()] == [1, 0]
    boot.unlink()
    assert [hold(), hold()] == [1, 1]


def dropped(path):
    """A descriptor of a file that the system is told to hold in memory no longer."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return file


def test_what_is_read_from_the_disk_is_asked_again(asked, tmp_path):
    hold, content, _ = asked
    (tmp_path / "other").write_bytes(content.read_bytes())
    file = dropped(tmp_path / "other")
    try:
        os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)  # which has the system begin to read it
        pytest.skip("this file system keeps its files in memory")
    except BlockingIOError:
        pass
    except OSError as error:
        pytest.skip(f"this file system does not say what lies in memory: {error}")
    finally:
        os.close(file)
    os.close(dropped(content))
    assert hold() == 1
    content.read_bytes()
    assert hold() == 0


@pytest.mark.parametrize("note", ["", "{", "[]", '{"boot": "first"}'])
def test_a_damaged_note_is_none(asked, note):
    hold, content, _ = asked
    (content.parent / "in-use").write_text(note)
    assert [hold(), hold()] == [1, 0]


def test_a_foreign_folder_in_its_place_is_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "theirs").write_text("?")
    held = Store(tmp_path, 1000).hold("a", writing(), sound)
    assert sorted(path.name for path in held.folder.iterdir()) == ["content", "in-use"]


def test_the_least_recently_used_goes_first(tmp_path):
    store = Store(tmp_path, 25)
    for when, key in enumerate(("a", "b")):
        store.hold(key, writing(), sound).release()
        used_at(store, key, when + 1)
    store.hold("a", writing(), sound).release()  # used again: b is the older one now
    store.hold("c", writing(), sound).release()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", "lock"}


def test_an_entry_in_use_stays_although_it_is_the_oldest(tmp_path):
    store = Store(tmp_path, 25)
    held = store.hold("a", writing(), sound)
    used_at(store, "a", 1)
    store.hold("b", writing(), sound).release()
    store.hold("c", writing(), sound).release()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c", "lock"}
    held.release()
    store.hold("d", writing(), sound).release()
    assert not (tmp_path / "a").exists()


def test_an_entry_larger_than_the_limit_is_kept_while_it_is_the_one_in_use(tmp_path):
    store = Store(tmp_path, 5)
    assert sound(store.hold("a", writing(), sound).folder)


def test_a_failed_build_leaves_nothing_and_the_next_one_succeeds(tmp_path):
    def failing(folder):
        writing()(folder)
        raise EdgepeftError("no")

    store = Store(tmp_path, 1000)
    with pytest.raises(EdgepeftError, match="no"):
        store.hold("a", failing, sound)
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}
    assert sound(store.hold("a", writing(), sound).folder)


def test_what_a_killed_process_left_is_removed_and_blocks_nobody(tmp_path):
    code = f"""
        import os, signal
        from pathlib import Path
        from edgepeft.bundle.store import Store

        def build(folder):
            (folder / "content").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        Store(Path({str(tmp_path)!r}), 1000).hold("a", build, lambda folder: True)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == -9
    assert any(path.name.startswith(".a") for path in tmp_path.iterdir())
    held = Store(tmp_path, 1000).hold("a", writing(), sound)
    assert (held.folder / "content").read_bytes() == b"x" * 10
    assert {path.name for path in tmp_path.iterdir()} == {"a", "lock"}


def test_many_processes_at_once_build_it_once(tmp_path):
    code = f"""
        import sys, time
        from pathlib import Path
        from edgepeft.bundle.store import Store

        def build(folder):
            (folder / "content").write_bytes(b"x")
            time.sleep(0.3)
            print("built")

        print(Store(Path({str(tmp_path)!r}), 1000).hold("a", build, lambda f: (f / "content").is_file()).folder.name)
    """
    running = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    printed = [process.communicate(timeout=60)[0].split() for process in running]
    assert sorted(map(tuple, printed)) == [("a",), ("a",), ("a",), ("built", "a")]


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        Store(tmp_path / "file" / "store", 1000).hold("a", writing(), sound)
