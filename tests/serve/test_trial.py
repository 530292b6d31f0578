"""What ends the process that opens it, never ends, or takes too much, is one task's error: the others are answered."""

from __future__ import annotations

import json
import signal
import sys
import time

import psutil
import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from bad_tasks import spoil
from onnx import TensorProto, helper
from served import serving

from edgepeft.bundle.bundle import Bundle
from edgepeft.serve import trial
from edgepeft.serve.trial import Trials

# The trial's own process, in which native code aborts for one task, and sleeps or computes for ever for another.
FATAL = """
import os, sys, time
from edgepeft.runtime.runtime import Runtime
from edgepeft.serve import trial
answer = Runtime.predict_mixed
def predict_mixed(self, tasks, texts, **options):
    print(*tasks, file=open({asked!r}, "a"))
    if tasks[0] == "mood":
        os.abort()
    if tasks[0] == "score":
        {score}
    return answer(self, tasks, texts, **options)
Runtime.predict_mixed = predict_mixed
sys.argv = ["trial", *sys.argv[1:]]
trial._main()
"""
SLEEPS, COMPUTES, EATS = "time.sleep(600)", "while self: pass", "bytearray(1 << 40)"


@pytest.fixture
def fatal(tmp_path, monkeypatch):
    """Trials whose tasks do that, and what they were asked for (``None`` opens each process)."""
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    asked, made = tmp_path / "asked", []
    asked.touch()

    def make(bundle, score=SLEEPS, budget_s=1.0):
        (tmp_path / "fatal.py").write_text(FATAL.format(asked=str(asked), score=score))
        trials = Trials(bundle, 1, budget_s)
        trials.command = [sys.executable, str(tmp_path / "fatal.py"), *trials.command[3:]]
        made.append(trials)
        return trials

    yield make, lambda: asked.read_text().split()
    for trials in made:
        trials.close()


def problems(trials, bundle, tasks, seconds=60.0):
    """Why each may not be opened, once all have been tried."""
    bundle, until = Bundle(bundle), time.monotonic() + seconds
    while True in [trials.untried(bundle, task) for task in tasks]:  # of each, so that all are asked for
        assert time.monotonic() < until
        time.sleep(0.02)
    found = {task: trials.problem(bundle, task) for task in tasks}
    return {task: str(error) for task, error in found.items() if error is not None}


def test_an_abort_and_a_hang_are_errors_of_their_tasks_alone_and_are_tried_once(bundle, fatal, monkeypatch):
    make, asked = fatal
    monkeypatch.setattr(trial, "_HANGS_S", 3.0)
    trials, begin = make(bundle), time.monotonic()
    assert problems(trials, bundle, ["score", "mood", "pair", None, "no such task"]) == {
        "mood": "task mood cannot be run: opening it ended a process of its own (SIGABRT).",
        "score": "task score cannot be run: opening it did not end within 3 s.",
    }
    assert time.monotonic() - begin < 60
    assert sorted(name for name in asked() if name != "None") == ["mood", "pair", "score"]
    before = len(asked())
    assert set(problems(trials, bundle, ["score", "pair", "mood"])) == {"mood", "score"}
    assert len(asked()) == before


def test_what_takes_too_much_memory_is_not_opened_here(bundle, fatal):
    make, _ = fatal
    assert "MB of memory" in problems(make(bundle, EATS), bundle, ["score"])["score"]


def test_a_graph_that_takes_minutes_is_refused_after_the_others_have_answered(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))

    def products(graph):  # of 3000 x 3000, 600 of them, whose result is added to the logits
        for node in graph.graph.node:
            node.output[:] = ["plain" if name == "logits" else name for name in node.output]
        shape = helper.make_tensor("side", TensorProto.INT64, [2], [3000, 3000])
        graph.graph.initializer.append(shape)
        graph.graph.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [2], [0, 1]))
        graph.graph.node.append(helper.make_node("Expand", ["row.0", "side"], ["square.0"], name="square"))
        graph.graph.initializer.append(helper.make_tensor("row.0", TensorProto.FLOAT, [1, 1], [1e-3]))
        for i in range(600):
            names = [f"square.{i}", "square.0"]
            graph.graph.node.append(helper.make_node("MatMul", names, [f"square.{i + 1}"], name=f"product.{i}"))
        graph.graph.node.append(
            helper.make_node("ReduceMean", ["square.600", "axes"], ["mean"], name="mean", keepdims=0)
        )
        graph.graph.node.append(helper.make_node("Add", ["plain", "mean"], ["logits"], name="sum"))

    spoil(bundle, products, "mood")
    trials, opened = Trials(bundle, 1, 1.0), Bundle(bundle)
    try:
        assert trials.untried(opened, "mood")
        assert problems(trials, bundle, ["pair", "score"]) == {}
        assert isinstance(trials.problem(opened, "mood"), trial.Untried)  # has a second, longer turn
        assert "took more than 1 s of processor time and 10 times as much" in problems(trials, bundle, ["mood"])["mood"]
    finally:
        trials.close()


def test_what_answered_is_remembered_by_its_hashes_and_what_did_not_is_not(bundle, fatal):
    make, asked = fatal
    problems(make(bundle), bundle, ["mood", "pair"])
    again, before = make(bundle), len(asked())
    assert set(problems(again, bundle, ["mood", "pair"])) == {"mood"}
    assert asked()[before:] == ["None", "mood"]
    document = json.loads((bundle / "edgepeft.json").read_bytes())
    document["tasks"]["pair"]["sha256"] = document["tasks"]["score"]["sha256"]
    (bundle / "edgepeft.json").write_text(json.dumps(document))
    before = len(asked())
    problems(again, bundle, ["pair"])
    assert asked()[before:] == ["None", "pair"]  # another graph of that name


def test_a_task_that_is_merely_refused_is_left_to_the_one_who_opens_it(bundle, fatal):
    make, asked = fatal
    (bundle / "tasks" / "pair.onnx").write_bytes(b"damaged")
    trials = make(bundle)
    assert problems(trials, bundle, ["pair"]) == {}
    assert problems(trials, bundle, ["pair"]) == {}
    assert asked() == ["None", "pair"]


def test_a_process_that_opened_another_version_decides_nothing(bundle, fatal):
    make, asked = fatal
    trials, before = make(bundle), Bundle(bundle)
    document = json.loads((bundle / "edgepeft.json").read_bytes())
    del document["tasks"]["pair"]
    (bundle / "edgepeft.json").write_text(json.dumps(document))
    assert trials.untried(before, "pair")
    until = time.monotonic() + 30
    while trials._asked:
        assert time.monotonic() < until
        time.sleep(0.02)
    assert not trials._other and not trials._answered
    assert "pair" not in asked()


def test_a_cache_of_another_shape_is_no_answer(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path))
    for content in (b"{", b"7", b'{"a": 1}'):
        path = trial._kept()
        path.write_bytes(content)
        assert trial._read() in (set(), {"a"})


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """The code of a service whose trials are those: its start waits for 2 s, a task may take long."""
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "fatal.py").write_text(FATAL.format(asked=str(tmp_path / "asked"), score=COMPUTES))
    return (
        "from edgepeft.serve.trial import Trials\n"
        "made = Trials.__init__\n"
        "def init(self, folder, threads, budget_s):\n"
        "    made(self, folder, threads, 2.0)\n"
        f"    self.command = [{sys.executable!r}, {str(tmp_path / 'fatal.py')!r}, *self.command[3:-1], '60']\n"
        "Trials.__init__ = init\n"
        "from edgepeft.cli._main import main\n"
        "main()\n"
    )


def test_the_service_answers_for_the_others_while_one_computes_on_and_trials_end_with_it(bundle, tmp_path, entry):
    with serving(bundle, tmp_path, entry=entry) as own:
        assert own.predict("pair", {"text": "w5"})[0] == 200
        own.wait_for(lambda: "mood cannot be run: opening it ended a process of its own (SIGABRT)" in own.log)
        assert own.get("/readyz")[2] == {"status": "ok", "unavailable_tasks": 2, "unavailable": ["mood", "score"]}
        assert own.predict("mood", {"text": "w5"})[2]["error"]["code"] == "task_unavailable"
        status, headers, answer = own.predict("score", {"text": "w5"})
        assert (status, headers["retry-after"], answer["error"]["code"]) == (503, "1", "starting")
        rows = [{"text": "w5", "task": task} for task in ("score", "pair", "mood")]
        answers = own.post("/v1/predict", {"rows": rows})[2]["answers"]
        assert [[*answer] for answer in answers] == [["error"], ["prediction"], ["error"]]
        tried = psutil.Process(own.process.pid).children(recursive=True)
        assert tried
        own.process.send_signal(signal.SIGKILL)
        own.process.wait(10)
        assert not psutil.wait_procs(tried, timeout=5)[1]


def test_a_line_that_is_begun_and_never_ended_is_waited_for_no_longer_than_any(monkeypatch):
    monkeypatch.setattr(trial, "_HANGS_S", 0.5)
    child = "import sys; print('key answered', flush=True); sys.stdin.readline(); "
    child += "print('key ', end='', flush=True); sys.stdin.readline()"
    process = trial._Process([sys.executable, "-c", child], 0)
    assert process.outcome(trial._Tried(0, 0, "mood", "key", "other")) == "did not end within 0.5 s."
    process.close()
