"""What ends the process that opens it, or never ends, is one task's error: the service lives and answers for the others."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from served import serving

from edgepeft.bundle.bundle import Bundle
from edgepeft.serve import trial
from edgepeft.serve.trial import Trials

# The trial's own process, in which native code aborts for one task and never ends for another.
FATAL = """
import os, sys, time
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve import trial
answer = Runtime.predict_mixed
print("process", file=open({asked!r}, "a"))
def predict_mixed(self, tasks, texts, **options):
    print(tasks[0], file=open({asked!r}, "a"))
    if tasks[0] == "mood":
        os.abort()
    if tasks[0] == "score":
        time.sleep(600)
    return answer(self, tasks, texts, **options)
Runtime.predict_mixed = predict_mixed
sys.argv = ["trial", *sys.argv[1:]]
trial._main()
"""


@pytest.fixture
def fatal(tmp_path, monkeypatch):
    """The command of a trial whose tasks do that, and what it was asked for."""
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    asked = tmp_path / "asked"
    asked.touch()
    (tmp_path / "fatal.py").write_text(FATAL.format(asked=str(asked)))
    return lambda command: [sys.executable, str(tmp_path / "fatal.py"), *command[3:]], lambda: asked.read_text().split()


def test_an_abort_and_a_hang_are_errors_of_their_tasks_alone_and_are_tried_once(bundle, fatal):
    spoilt, asked = fatal
    trials = Trials(bundle, 1, seconds=15.0)
    trials.command = spoilt(trials.command)
    problems = trials.problems(Bundle(bundle), ["mood", "pair", None, "score", "no such task"])
    assert {task: str(error) for task, error in problems.items()} == {
        "mood": "task mood cannot be run: opening it ended a process of its own (SIGABRT).",
        "score": "task score cannot be run: opening it did not end within 15 s.",
    }
    assert asked() == ["process", "mood", "process", "pair", "None", "score"]
    assert set(trials.problems(Bundle(bundle), ["score", "pair", "mood"])) == {"mood", "score"}
    assert len(asked()) == 6


def test_what_answered_is_remembered_by_its_hashes_and_what_did_not_is_not(bundle, fatal):
    spoilt, asked = fatal
    first = Trials(bundle, 1)
    first.command = spoilt(first.command)
    first.problems(Bundle(bundle), ["mood", "pair"])
    again = Trials(bundle, 1)
    again.command = first.command
    assert set(again.problems(Bundle(bundle), ["mood", "pair"])) == {"mood"}
    assert asked() == ["process", "mood", "process", "pair", "process", "mood"]
    document = json.loads((bundle / "edgepeft.json").read_bytes())
    document["tasks"]["pair"]["sha256"] = document["tasks"]["score"]["sha256"]
    (bundle / "edgepeft.json").write_text(json.dumps(document))
    again.problems(Bundle(bundle), ["pair"])
    assert asked()[6:] == ["process", "pair"]  # another graph of that name


def test_a_task_that_is_merely_refused_is_left_to_the_one_who_opens_it(bundle, fatal):
    spoilt, asked = fatal
    (bundle / "tasks" / "pair.onnx").write_bytes(b"damaged")
    trials = Trials(bundle, 1)
    trials.command = spoilt(trials.command)
    assert trials.problems(Bundle(bundle), ["pair"]) == {}
    assert trials.problems(Bundle(bundle), ["pair"]) == {}
    assert asked() == ["process", "pair"]


def test_a_cache_of_another_shape_is_no_answer(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path))
    for content in (b"{", b"7", b'{"a": 1}'):
        path = trial._kept()
        path.write_bytes(content)
        assert trial._read() in (set(), {"a"})


def test_the_service_answers_for_the_others_and_marks_the_task(bundle, tmp_path, fatal):
    spoilt, _ = fatal
    entry = (
        "from edgepeft.serve.trial import Trials\n"
        "made = Trials.__init__\n"
        "def init(self, *arguments, **options):\n"
        "    made(self, *arguments, **options)\n"
        f"    self.command, self._seconds = [{sys.executable!r}, {spoilt([])[1]!r}, *self.command[3:]], 15.0\n"
        "Trials.__init__ = init\n"
        "from edgepeft.cli._main import main\n"
        "main()\n"
    )
    with serving(bundle, tmp_path, entry=entry) as own:
        own.wait_for(lambda: own.get("/readyz")[0] == 200, 60)
        assert sorted(own.get("/readyz")[2]["unavailable"]) == ["mood", "score"]
        assert own.predict("pair", {"text": "w5"})[0] == 200
        assert own.predict("mood", {"text": "w5"})[0] == 503
        assert "opening it ended a process of its own (SIGABRT)" in own.log
