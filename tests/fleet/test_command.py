"""``edgepeft pull`` as a user types it: what it says, what it refuses, and when it comes again."""

from __future__ import annotations

import json
import shutil

import pytest
from boards_of import tree, tuned
from verbs import edgepeft

from edgepeft.fleet.pull import moments, seconds_of


def test_it_says_what_was_taken_up_and_what_stays(fleet, board, retrained):
    assert "nothing changed" in edgepeft("pull", fleet.served.address, board).stderr
    fleet.publish(retrained / "newer")
    done = json.loads(edgepeft("pull", fleet.served.address, board, "--json").stdout)
    assert done["taken"] == ["mood"] and done["n_bytes"] > done["requests"] > 2
    tuned(board, fleet.bundle)
    tuned(board, fleet.bundle, "score")
    done = edgepeft("pull", fleet.served.address, board)
    assert done.returncode == 0 and "mood stays: rolled back on this board (--replace-tuned" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{http}", "{new}"], "trusts no repository yet. Give --root FILE"),
        (["{http}", "{new}", "--root", "{new}"], "is no TUF root"),
        (["{http}", "{new}", "--root", "{bundle}/config.json"], "is no TUF root"),
        (["{http}", "{board}", "--root", "{other}/metadata/1.root.json"], "is not the root that this board trusts"),
        (["{http}", "{board}", "--channel", "stabel"], "Did you mean 'stable'"),
        (["{http}", "{full}", "--root", "{root}"], "is not a bundle, and not empty"),
        (["{other}", "{bundle}", "--root", "{other}/metadata/1.root.json"], "is of another bundle"),
        (["{new}", "{board}"], "is no folder; a repository is one, or a URL"),
        (["ftp://x/y", "{board}"], "is no folder; a repository is one, or a URL"),
        (["{http}", "{board}", "--every", "5"], "--every is a time such as 30m, 1h or 1d"),
    ],
)
def test_a_wrong_command_says_what_to_do_and_leaves_nothing(words, said, fleet, board, bundle, retrained, tmp_path):
    if any("other" in word for word in words):
        from edgepeft.fleet.publish import publish

        publish(retrained / "other", tmp_path / "other", tmp_path / "others")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    places = {name: tmp_path / name for name in ("board", "bundle", "full", "new", "other")}
    before = tree(tmp_path, but="nothing")
    words = [word.format(**places, http=fleet.served.address, root=fleet.root) for word in words]
    done = edgepeft("pull", *words)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    changed = {name for name, sha256 in tree(tmp_path, but="nothing").items() if before.get(name) != sha256}
    assert changed <= {"board/.fleet/lock", "board/.fleet/metadata/root.json"}
    assert not (tmp_path / "new").exists() and not (tmp_path / "full" / ".fleet").exists()


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(fleet, board):
    import os

    (fleet.repository / "metadata" / "timestamp.json").unlink()
    os.mkfifo(fleet.repository / "metadata" / "timestamp.json")
    done = edgepeft("pull", fleet.repository, board)
    assert done.returncode == 1 and "is no regular file" in done.stderr


def test_a_damaged_state_says_what_to_do(fleet, board):
    (board / ".fleet" / "state.json").write_text("{")
    done = edgepeft("pull", fleet.served.address, board)
    assert done.returncode == 1 and "Remove it" in done.stderr


def test_nobody_listens(fleet, board):
    done = edgepeft("pull", "http://127.0.0.1:9", board)
    assert done.returncode == 1 and "cannot be read" in done.stderr and "refused" in done.stderr


def test_a_fleet_that_is_switched_on_at_once_comes_evenly(fleet):
    """At 1 pull a period each: in every minute of an hour about a sixtieth of the boards, first and later hours alike."""
    drawn = [(i * 0.6180339887) % 1 for i in range(1000)]
    counts = [0] * 180
    for first, board in enumerate(drawn):
        now, waits = 0.0, []
        draws = iter([board, drawn[(first * 7) % 1000], drawn[(first * 13) % 1000]])
        for _ in zip(range(3), moments(3600, waits.append, lambda _: None, draws.__next__), strict=False):
            now += waits[-1]
            counts[int(now // 60)] += 1
    assert sum(counts) == 3000 and max(counts[:60]) <= 18 and max(counts) <= 40


@pytest.mark.parametrize(("text", "seconds"), [("30m", 1800), ("1h", 3600), ("1d", 86400), ("45s", 45)])
def test_times(text, seconds):
    assert seconds_of(text) == seconds


def test_what_a_pull_every_hour_meets_is_said_and_it_goes_on(fleet, board, monkeypatch):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            shutil.rmtree(fleet.repository / "metadata")
        if len(waits) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(moments, "__defaults__", (lambda _: None, sleep, iter([0.5] * 9).__next__))
    done = edgepeft("pull", fleet.served.address, board, "--every", "1h")
    assert waits == [1800, 3600, 3600, 3600] and done.stderr.count("a file is missing") == 2
    assert "nothing changed" in done.stderr


def test_a_service_outlives_what_the_system_refuses(fleet, board, monkeypatch):
    """Such as a card that cannot be read for a while: an error of the system, not of edgepeft's."""
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    def refused(*_, **__):
        raise OSError(5, "Input/output error", "state.json")

    monkeypatch.setattr(moments, "__defaults__", (lambda _: None, sleep, iter([0.5] * 9).__next__))
    monkeypatch.setattr("edgepeft.fleet.pull.pull", refused)
    done = edgepeft("pull", fleet.served.address, board, "--every", "1h")
    assert len(waits) == 3 and done.stderr.count("Input/output error") == 2
