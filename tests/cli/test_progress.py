"""Long work is never silent: a bar on a terminal, a line every ten seconds elsewhere; with a clock of our own."""

import io
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import typer
from rich.console import Console
from verbs import edgepeft

from edgepeft.cli._main import main
from edgepeft.common import progress


class Clock(threading.Event):
    """Time passes when ``tick`` is called, and is over for whoever waits when it returns."""

    now = 0.0

    def __init__(self):
        super().__init__()
        self.asked, self.waiting, self.passed = None, threading.Semaphore(0), threading.Semaphore(0)

    def wait(self, timeout=None):
        self.asked = timeout
        self.waiting.release()
        self.passed.acquire()
        return self.is_set()

    def set(self):
        super().set()
        self.passed.release()

    def tick(self):
        assert self.waiting.acquire(timeout=60)
        Clock.now += self.asked
        self.passed.release()
        assert self.waiting.acquire(timeout=60)  # what was to be said is said
        self.waiting.release()


@pytest.fixture
def clocks(monkeypatch):
    """The clocks that were waited for, in order."""
    made = []

    class Threading:
        Thread = threading.Thread

        @staticmethod
        def Event():
            made.append(Clock())
            return made[-1]

    Clock.now = 0.0
    monkeypatch.setattr(progress, "threading", Threading)
    monkeypatch.setattr(progress, "monotonic", lambda: Clock.now)
    return made


def test_a_verb_that_takes_long_says_every_ten_seconds_what_it_does(clocks, monkeypatch, capsys):
    """Where it has no bar of its own, where it has one, and where a bar is full; the bars are none on a pipe."""
    app = typer.Typer()

    @app.command()
    def verb():
        (clock,) = clocks
        clock.tick()
        with progress.bars() as shown:
            bar = shown.add_task("mood: loading", total=None)
            clock.tick()
            shown.update(bar, description="mood: train", completed=1200, total=4000, state="loss 0.512")
            clock.tick()
            shown.update(bar, completed=4000)
            clock.tick()
        with progress.stages(2) as stage, stage("backbone"):
            clock.tick()
        with progress.shown_steps() as show:
            show("rows", 64, None)
            clock.tick()

    app.command("other")(verb)
    monkeypatch.setattr("sys.argv", ["edgepeft", "verb"])
    with pytest.raises(SystemExit) as end:
        main(app)
    assert end.value.code == 0
    assert [clock.asked for clock in clocks] == [10.0]
    assert capsys.readouterr().err.splitlines() == [
        "edgepeft verb, 10 s",
        "mood: loading, 20 s",
        "mood: train, 1,200 of 4,000, loss 0.512, 30 s",
        "edgepeft verb, 40 s",
        "backbone, 0 of 2, 50 s",
        "rows, 64, 60 s",
    ]


def test_every_run_of_a_sweep_that_is_under_way_is_told_and_what_is_left_where_the_speed_says_it(clocks, capsys):
    with progress.bars(get_time=lambda: Clock.now) as shown:
        shown.add_task("runs", total=3, state="", left=None)
        bar = shown.add_task("tone lora", total=None, state="loading")
        clocks[0].tick()
        shown.update(bar, completed=0, total=100, state="train")
        clocks[0].tick()
        shown.update(bar, completed=20)  # in 10 s
        clocks[0].tick()
        shown.update(bar, completed=40)
        clocks[0].tick()
        shown.add_task("tone bitfit", total=None, state="loading")
        for i in range(4):
            shown.add_task(f"tone linear {i}", total=None, state="loading")
        clocks[0].tick()
    first, _, _, fourth, last = capsys.readouterr().err.splitlines()
    assert first == "runs, 0 of 3; tone lora, loading, 10 s"
    assert fourth == "runs, 0 of 3; tone lora, 40 of 100, train, about 30 s left, 40 s"
    assert last.endswith("tone linear 1, loading; and 2 more, 50 s")


def test_what_waits_for_others_says_nothing(clocks, capsys):
    with progress.heartbeat("edgepeft serve"):
        clocks[0].tick()
        progress.no_longer()
    assert capsys.readouterr().err == "edgepeft serve, 10 s\n"


def test_a_terminals_bar_is_gone_when_an_error_is_told_and_says_no_lines(clocks, capsys, monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=80, _environ={})
    monkeypatch.setattr(progress, "messages", lambda: terminal)
    with pytest.raises(ValueError, match="wrong"), progress.bars() as shown:
        shown.add_task("mood: train", total=4)
        clocks[0].tick()
        raise ValueError("wrong")
    drawn = terminal.file.getvalue()
    assert "mood: train" in drawn
    assert drawn.rpartition("\x1b[2K")[2].replace("\x1b[?25h", "") == "", "the last line drawn is erased"
    assert capsys.readouterr().err == ""


def test_a_pipe_gets_no_bar(exported):
    done = edgepeft("verify", exported)
    assert done.returncode == 0
    assert done.stderr == ""
    assert not progress.messages().is_terminal


def test_a_notebook_that_has_rich_s_widgets_sees_a_bar_and_another_gets_the_lines(monkeypatch):
    drawn = []

    class Output:  # of ipywidgets: what is printed within it stands in its place
        def __enter__(self):
            drawn.append("widget")

        def __exit__(self, *_):
            return None

        def clear_output(self, wait=False):
            drawn.append("cleared")

        def close(self):
            drawn.append("closed")

    def module(name, **names):
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, name, made)

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with progress.bars(auto_refresh=False) as shown:
        assert shown.disable
    module("ipywidgets", Output=Output)
    module("IPython")
    module("IPython.display", display=lambda *_, **__: drawn.append("shown"))
    with progress.bars(auto_refresh=False) as shown:
        shown.update(shown.add_task("training", total=4), advance=1)
        shown.refresh()
    assert not shown.disable and {"shown", "widget", "closed"} <= {*drawn}
