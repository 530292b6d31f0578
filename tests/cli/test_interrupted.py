"""Ctrl-C is one word and exit code 130, whenever it comes; SIGTERM leaves as little behind."""

import os
import signal
import subprocess
import sys
from types import ModuleType

import pytest
from verbs import ENTRY, SURROUNDING

from edgepeft.__main__ import main
from edgepeft.cli import _main


class Importing(ModuleType):
    """A module whose import Ctrl-C interrupts."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


def half_imported():
    """As torch, which looks at a module that it is importing while the interruption passes."""
    try:
        raise KeyboardInterrupt
    except sys.nothing:
        pass


def ended():
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_while_the_command_is_imported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "edgepeft.cli._main", Importing("edgepeft.cli._main"))
    assert (ended(), capsys.readouterr().err) == (130, "interrupted\n")


def test_where_a_library_makes_another_error_of_it(monkeypatch, capsys):
    monkeypatch.setattr(_main, "main", half_imported)
    assert (ended(), capsys.readouterr().err) == (130, "interrupted\n")


def test_other_errors_pass(monkeypatch):
    monkeypatch.setattr(_main, "main", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main()


def test_sigterm_leaves_no_half_of_a_file_and_ends_the_process_as_whoever_sent_it_expects(bundle, tmp_path):
    """As docker, systemd and timeout send it."""
    place = tmp_path / "answers"
    asked = ["run", bundle, "--task", "mood", "--input", "-", "--out", place / "out.csv"]
    command = [sys.executable, "-c", ENTRY, *map(str, asked)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | SURROUNDING
    ) as running:
        for _ in range(6_000):  # it reads them to the last, and waits for more
            print('{"sentence1": "w5 w6"}', file=running.stdin)
        running.stdin.flush()
        assert [path.name for path in place.iterdir()] != ["out.csv"]
        running.send_signal(signal.SIGTERM)
        assert running.stderr.read().endswith("interrupted\n")
    assert running.returncode == -signal.SIGTERM
    assert not [*place.iterdir()]
